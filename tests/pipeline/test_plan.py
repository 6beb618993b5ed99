"""`batchfact plan` with a model and a device: tokens by the model's tokenizer, cost by the roofline."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from batchfact.assembly import Assembler
from batchfact.cli.plan import cost_notes, plan
from batchfact.config import Identity, RunConfig
from batchfact.cost.devices import Device, known_devices
from batchfact.cost.roofline import Prediction, Work, predict
from batchfact.cost.shape import read_shape
from batchfact.engines.tokenizer import load_tokenizer
from batchfact.engines.vllm import CPU_BLOCK_TOKENS
from batchfact.errors import UsageError
from batchfact.models import find_model
from batchfact.paradigms import make_paradigm
from batchfact.paradigms.program import Running
from batchfact.planning import TokenRates, plan_input
from batchfact.prediction import count_tokens
from batchfact.preparation import make_contexts, make_counters, make_prompts
from batchfact.records import Pair
from batchfact.source import Source, open_source
from batchfact.token_rates import common, measure_rates
from tests.small_tokenizers import byte_level

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 800,
    "max_position_embeddings": 8192,
}
DOCUMENTS = [
    " ".join(f"The mayor of town {town} said that bridge {bridge} would open late." for bridge in range(3 + town))
    for town in range(6)
]
# Two summaries a document, of two and of one sentence, and one that is there twice.
PAIRS = [
    (document, summary)
    for number, document in enumerate(DOCUMENTS)
    for summary in (f"Bridge {number} is late. The mayor said so.", f"Town {number} has a mayor, the paper says.")
] + [(DOCUMENTS[5], "Town 5 has a mayor, the paper says.")]


@pytest.fixture
def described_model(tmp_path: Path) -> Path:
    """config.json and tokenizer of a model, without weights."""
    folder = tmp_path / "described"
    byte_level().pretrained.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return folder


def prompts_of(source: Source, identity: Identity, folder: Path) -> set[tuple[int, ...]]:
    """Every distinct prompt of a run, as token ids."""
    tokenizer = load_tokenizer(folder)
    assembler, counters = Assembler(tokenizer), make_counters(tokenizer)
    paradigm = make_paradigm(
        identity,
        make_prompts(identity, find_model(str(folder)), tokenizer, reasoning=False),
        reasoning=False,
        demonstrations=(),
        contexts=make_contexts(identity, counters, 8192),
    )
    return {
        tuple(assembler.assemble(request.prompt))
        for pair in source.pairs()
        if isinstance(pair, Pair)
        for request in Running(paradigm(pair)).wanted
    }


def unique_tokens(prompts: set[tuple[int, ...]]) -> int:
    """Tokens that differ by themselves or by what is before them: what a cache of single tokens would compute."""
    ordered = sorted(prompts)
    return len(ordered[0]) + sum(len(right) - common(left, right) for left, right in itertools.pairwise(ordered))


@pytest.mark.parametrize("paradigm", ["sent-nli", "summ-nli"])
def test_tokens_are_those_of_the_prompts_themselves(paradigm: Any, described_model: Path, make_input: Any) -> None:
    source = open_source([str(make_input(PAIRS))])
    identity = Identity(model=str(described_model), paradigm=paradigm)
    config = RunConfig(inputs=(), output="", identity=identity)
    prompts = prompts_of(source, identity, described_model)
    rates = measure_rates(source, config, find_model(str(described_model)), described_model, block=1)
    found = plan_input(source, config, rates)

    assert rates.is_measured
    assert found.distinct_requests == len(prompts) == (18 if paradigm == "sent-nli" else 12)
    assert found.prompt_tokens == pytest.approx(sum(map(len, prompts)), rel=0.05)
    # Bytes differ from the estimate by half a token for each prompt that finds its prefix.
    assert found.computed_tokens == pytest.approx(unique_tokens(prompts), rel=0.05)
    assert found.cached_tokens == found.prompt_tokens - found.computed_tokens
    assert found.longest_prompt == pytest.approx(max(map(len, prompts)), rel=0.05)


def test_documents_are_measured_by_the_models_own_context(described_model: Path, make_input: Any) -> None:
    source = open_source([str(make_input(PAIRS))])
    config = RunConfig(inputs=(), output="", identity=Identity(model=str(described_model)))
    fitting = count_tokens(source, config, None, has_model=True)
    (described_model / "config.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": 512}), "utf-8")
    short = count_tokens(source, config, None, has_model=True)

    assert not fitting.notes
    assert any("pairs are aligned" in note for note in short.notes)


def test_an_input_without_rows_keeps_the_guesses(described_model: Path, make_input: Any) -> None:
    source = open_source([str(make_input([("", "A.")]))])
    config = RunConfig(inputs=(), output="", identity=Identity(model=str(described_model)))
    rates = measure_rates(source, config, find_model(str(described_model)), described_model, block=16)

    assert rates == TokenRates(block=16)
    assert plan_input(source, config, rates).work.computed == 0


def test_label_only_requests_decode_nothing_and_reasoning_does(make_input: Any) -> None:
    source = open_source([str(make_input(PAIRS))])
    label_only, reasoning = (
        plan_input(source, RunConfig(inputs=(), output="", identity=Identity(reasoning=reasons))).work
        for reasons in (False, True)
    )

    assert label_only.generated == 0
    assert reasoning.generated == 19 * 201 - 2 * 19


def test_plan_predicts_flops_time_and_memory(
    make_input: Any, described_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = tmp_path / "kernels.json"
    measured.write_text(json.dumps({"device": "cuda", "ceilings": {"flops_per_s": 5e14, "bytes_per_s": 4e12}}))
    plan([str(make_input(PAIRS))], model=str(described_model), device="h200", devices=2, measured=measured)
    said = capsys.readouterr().out
    figures = dict(re.findall(r"^ *(\S.*?)  +(\S.*?) *$", said, re.MULTILINE))

    assert float(figures["FLOPs on 2 H200"].removeprefix("about ")) > 1e7
    assert figures["time without the engine's start"].endswith(" s")
    assert "GPU memory: weights" in figures and "tokens" in figures["GPU memory: left for the KV cache"]
    assert "note: peak of H200: 500 TFLOP/s and 4,000 GB/s (measured: " in said


def test_a_measurement_or_a_device_that_is_not_there_is_refused(make_input: Any, tmp_path: Path) -> None:
    source = str(make_input(PAIRS))

    with pytest.raises(UsageError, match="--measured goes with --device"):
        plan([source], measured=tmp_path / "kernels.json")
    with pytest.raises(UsageError, match="did you mean 'A100-80'"):
        plan([source], device="A100-8")


def test_a_model_that_does_not_fit_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(
            CONFIG
            | {"num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "intermediate_size": 28672}
        )
    )
    device = known_devices()["L4"]

    def notes(devices: int) -> str:
        found: Prediction = predict(
            read_shape(tmp_path), Work(requests=1, computed=1, attended=1), device, devices=devices
        )
        return " ".join(cost_notes(found, device, devices))

    assert "does not fit 4 L4: raise --devices" in notes(4)
    assert "needs 8 of them: run with --tensor-parallel-size" in notes(8)


def test_blocks_are_as_large_as_the_engine_makes_them() -> None:
    cpu = Device(name="cpu", memory_bytes=1, flops_per_s=1, bytes_per_s=1, prefill_share=1, source="")
    assert cpu.block_tokens == CPU_BLOCK_TOKENS


def test_a_folder_without_config_or_tokenizer_is_refused(make_input: Any, tmp_path: Path) -> None:
    source = open_source([str(make_input(PAIRS))])
    empty = tmp_path / "empty"
    empty.mkdir()
    config = RunConfig(inputs=(), output="", identity=Identity(model=str(empty)))

    with pytest.raises(UsageError, match="holds no tokenizer"):
        measure_rates(source, config, find_model(str(empty)), empty, block=16)
