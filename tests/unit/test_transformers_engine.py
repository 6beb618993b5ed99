"""The transformers engine on tiny models with random weights."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from batchfact.assembly import Assembler
from batchfact.engines import transformers as engine_module
from batchfact.engines.answers import MIN_LOOPS, is_looping
from batchfact.engines.base import EngineSpec, RequestError
from batchfact.engines.tokenizer import EncoderDecoderTokenizer
from batchfact.engines.transformers import TransformersEngine, factory
from batchfact.errors import UsageError
from batchfact.models import find_model
from batchfact.preparation import resolve_engine
from batchfact.records import Data, Prompt, Template
from tests.tiny_models import save_llama, save_t5

pytestmark = pytest.mark.anyio

TEXTS = ("Yes.", "The mayor of Paris said that the bridge would open in 2019.", "Is it so?\nNo\n" * 30)
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"answer": {"enum": ["yes", "no"]}},
        "required": ["answer"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_t5(tmp_path_factory.mktemp("t5"))


@pytest.fixture
async def decoder(llama: Path, tmp_path: Path) -> AsyncIterator[TransformersEngine]:
    async with factory.open(spec_of(llama, log_file=tmp_path / "engine.log")) as engine:
        yield engine


@pytest.fixture
async def encoder_decoder(t5: Path, tmp_path: Path) -> AsyncIterator[TransformersEngine]:
    async with factory.open(spec_of(t5, log_file=tmp_path / "engine.log")) as engine:
        yield engine


def spec_of(model: Path, **settings: Any) -> EngineSpec:
    return EngineSpec(model=model, dtype="float32", **settings)


def prompts_of(engine: TransformersEngine) -> list[list[int]]:
    return [engine.tokenizer.encode(text, special=False) for text in TEXTS]


async def choose(engine: TransformersEngine, ids: list[int], labels: Any) -> tuple[float, ...]:
    return (await engine.choose(ids, labels, priority=0, replica=0)).logprobs


async def write(
    engine: TransformersEngine, ids: list[int], max_tokens: int = 40, stop: tuple[str, ...] = (), schema: Any = None
) -> Any:
    return await engine.write(ids, max_tokens=max_tokens, stop=stop, schema=schema, priority=0, replica=0)


async def sample(engine: TransformersEngine, ids: list[int], seed: int, temperature: float = 1.0) -> Any:
    return await engine.write(
        ids, max_tokens=20, stop=(), schema=None, priority=0, replica=0, temperature=temperature, seed=seed
    )


async def together(ask: Any, many: Sequence[Any]) -> list[Any]:
    """Answers to requests that are all under way at once, in their order."""
    answers: list[Any] = [None] * len(many)

    async def one(place: int, each: Any) -> None:
        answers[place] = await ask(each)

    async with anyio.create_task_group() as tasks:
        for place, each in enumerate(many):
            tasks.start_soon(one, place, each)
    return answers


def batch_sizes(engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fills with the size of each batch that the engine computes."""
    sizes: list[int] = []
    compute = engine._batcher._compute

    def counted(batch: Any) -> Any:
        sizes.append(len(batch))
        return compute(batch)

    monkeypatch.setattr(engine._batcher, "_compute", counted)
    return sizes


async def test_a_choice_is_the_sum_of_its_spellings_in_a_direct_forward_pass(decoder, llama):
    labels = ((300, 301), (17,))
    model = AutoModelForCausalLM.from_pretrained(llama).eval()
    for ids in prompts_of(decoder):
        with torch.inference_mode():
            expected = torch.softmax(model(torch.tensor([ids])).logits[0, -1].double(), -1)
        yes, no = await choose(decoder, ids, labels)
        assert math.exp(yes) == pytest.approx(float(expected[300] + expected[301]), rel=1e-4)
        assert math.exp(no) == pytest.approx(float(expected[17]), rel=1e-4)


async def test_a_decoders_numbers_do_not_depend_on_the_batch(decoder, monkeypatch):
    labels = ((300, 301), (17,))
    alone = [await choose(decoder, ids, labels) for ids in prompts_of(decoder)]
    sizes = batch_sizes(decoder, monkeypatch)
    at_once = await together(lambda ids: choose(decoder, ids, labels), prompts_of(decoder))
    assert max(sizes) > 1
    for one, other in zip(alone, at_once, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


async def test_deterministic_numbers_are_the_same_bits_beside_any_others(llama, tmp_path):
    spec = spec_of(llama, log_file=tmp_path / "engine.log", deterministic=True)
    assert factory.describe(spec)["deterministic"] == "one request at a time"
    labels = ((300, 301), (17,))
    async with factory.open(spec) as engine:
        alone = [await choose(engine, ids, labels) for ids in prompts_of(engine)]
        at_once = await together(lambda ids: choose(engine, ids, labels), prompts_of(engine)[::-1])
    assert at_once[::-1] == alone


async def test_sampled_text_depends_on_its_seed_alone_not_on_its_batch(decoder, monkeypatch):
    ids = prompts_of(decoder)[1]
    alone = [(await sample(decoder, ids, seed)).ids for seed in (1, 2, 3)]
    assert len(set(alone)) == 3
    sizes = batch_sizes(decoder, monkeypatch)
    at_once = await together(lambda seed: sample(decoder, ids, seed), (1, 2, 3))
    assert max(sizes) > 1
    assert [answer.ids for answer in at_once] == alone


async def test_greedy_text_has_no_use_for_a_seed_and_is_the_same_beside_sampled_text(decoder, monkeypatch):
    ids = prompts_of(decoder)[1]
    greedy = (await write(decoder, ids, max_tokens=20)).ids
    assert (await sample(decoder, ids, 7, temperature=0.0)).ids == greedy
    assert (await sample(decoder, ids, 7, temperature=1e-6)).ids == greedy
    sizes = batch_sizes(decoder, monkeypatch)
    first, *_ = await together(lambda warm: sample(decoder, ids, 7, temperature=warm), (0.0, 1.0, 1.0))
    assert max(sizes) > 1
    assert first.ids == greedy


async def test_an_encoder_decoders_numbers_do_not_depend_on_the_batch(encoder_decoder, monkeypatch):
    labels = ((5, 6), (17,))
    alone = [await choose(encoder_decoder, ids, labels) for ids in prompts_of(encoder_decoder)]
    sizes = batch_sizes(encoder_decoder, monkeypatch)
    at_once = await together(lambda ids: choose(encoder_decoder, ids, labels), prompts_of(encoder_decoder))
    assert max(sizes) > 1
    for one, other in zip(alone, at_once, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


async def test_an_encoder_decoder_reads_the_closed_prompt_and_answers_at_the_decoders_start(encoder_decoder, t5):
    model = AutoModelForSeq2SeqLM.from_pretrained(t5).eval()
    ids = prompts_of(encoder_decoder)[1]
    with torch.inference_mode():
        logits = model(torch.tensor([[*ids, 1]]), decoder_input_ids=torch.tensor([[0]])).logits[0, 0]
    expected = torch.softmax(logits.double(), -1)
    yes, no = await choose(encoder_decoder, ids, ((5,), (6,)))
    assert math.exp(yes) == pytest.approx(float(expected[5]), rel=1e-4)
    assert math.exp(no) == pytest.approx(float(expected[6]), rel=1e-4)


async def test_batched_texts_are_those_of_one_by_one_and_of_generate(decoder, llama, monkeypatch):
    alone = [await write(decoder, ids) for ids in prompts_of(decoder)]
    sizes = batch_sizes(decoder, monkeypatch)
    at_once = await together(lambda ids: write(decoder, ids), prompts_of(decoder))
    assert max(sizes) > 1
    assert [each.ids for each in at_once] == [each.ids for each in alone]

    model = AutoModelForCausalLM.from_pretrained(llama).eval()
    ids = prompts_of(decoder)[1]
    whole = model.generate(
        torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=40, do_sample=False
    )
    text = decoder.tokenizer.decode(whole[0, len(ids) :].tolist())
    assert text.startswith(alone[1].text)


async def test_text_ends_before_a_stop_string_and_its_ids_decode_to_it(decoder):
    ids = prompts_of(decoder)[1]
    free = await write(decoder, ids)
    stop = free.text[6:9]
    cut = await write(decoder, ids, stop=("never said", stop))
    assert cut.text == free.text[: free.text.index(stop)]
    assert decoder.tokenizer.decode(cut.ids) == cut.text
    assert cut.finish == "stop"
    assert cut.usage.output < free.usage.output


async def test_each_text_of_a_batch_keeps_its_own_bound(decoder):
    ids = prompts_of(decoder)[1]
    short, long = await together(lambda bound: write(decoder, ids, max_tokens=bound), [3, 12])
    assert (short.finish, short.usage.output) == ("length", 3)
    assert long.usage.output > 3
    assert long.text.startswith(short.text)


async def test_structured_texts_of_a_batch_follow_their_schema(decoder):
    pytest.importorskip("xgrammar")
    answers = await together(lambda ids: write(decoder, ids, schema=SCHEMA), prompts_of(decoder))
    assert {json.loads(each.text)["answer"] for each in answers} <= {"yes", "no"}
    assert {each.finish for each in answers} == {"stop"}


async def test_a_structured_text_that_is_cut_leaves_the_others_alone(decoder):
    pytest.importorskip("xgrammar")
    ids = prompts_of(decoder)[1]
    cut, whole = await together(lambda bound: write(decoder, ids, max_tokens=bound, schema=SCHEMA), [2, 40])
    assert cut.finish == "length"
    assert json.loads(whole.text)


async def test_a_schema_without_xgrammar_fails_that_request_alone(decoder, monkeypatch):
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(RequestError, match="needs xgrammar"):
        await write(decoder, prompts_of(decoder)[0], schema=SCHEMA)
    assert (await write(decoder, prompts_of(decoder)[0], max_tokens=2)).usage.output <= 2


async def test_one_bad_request_of_a_batch_fails_alone(decoder):
    good = prompts_of(decoder)[1]

    async def ask(ids: list[int]) -> Any:
        try:
            return await choose(decoder, ids, ((300,), (17,)))
        except RequestError as error:
            return str(error)

    first, bad, last = await together(ask, [good, [*good, 10**6], good])
    assert first == pytest.approx(last)
    assert "IndexError" in bad


async def test_a_cancelled_request_is_never_computed(decoder, monkeypatch):
    asked: list[int] = []
    is_computing, may_go_on = anyio.Event(), threading.Event()
    compute, loop = decoder._batcher._compute, asyncio.get_running_loop()

    def slow(batch: Any) -> Any:
        asked.extend(len(job.request.prompt_ids) for job in batch)
        loop.call_soon_threadsafe(is_computing.set)
        assert may_go_on.wait(60)
        return compute(batch)

    monkeypatch.setattr(decoder._batcher, "_compute", slow)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(choose, decoder, [5] * 3, ((300,), (17,)))
        await is_computing.wait()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await choose(decoder, [5] * 4, ((300,), (17,)))
        tasks.start_soon(choose, decoder, [5] * 6, ((300,), (17,)))
        await anyio.lowlevel.checkpoint()
        may_go_on.set()
    assert asked == [3, 6]


async def test_a_request_longer_than_the_model_takes_is_too_long(decoder):
    with pytest.raises(RequestError, match="the model takes 1 to 4096") as raised:
        await choose(decoder, [5] * 5000, ((300,), (17,)))
    assert raised.value.status == "too_long"


async def test_what_transformers_says_goes_to_the_log_file(llama, tmp_path, capfd):
    log_file = tmp_path / "deep" / "engine.log"
    async with factory.open(spec_of(llama, log_file=log_file)) as engine:
        logging.getLogger("transformers").warning("a word of warning")
        await write(engine, [5, 6], max_tokens=2)
    assert "a word of warning" in log_file.read_text()
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")


def test_labels_of_an_encoder_decoder_are_spelled_at_the_decoders_start(t5):
    tokenizer = factory.load_tokenizer(spec_of(t5))
    assert isinstance(tokenizer, EncoderDecoderTokenizer)
    before: Prompt = (Data("Is it so?"), Template("\nAnswer:"))
    yes, no = Assembler(tokenizer).label_ids(before, (" Yes", " No"))
    assert tokenizer.encode("Yes", special=False)[0] in yes
    assert tokenizer.encode("No", special=False)[0] in no
    assert tokenizer.end_ids == (1,)


def test_prompts_of_an_encoder_decoder_are_those_of_the_whole_text(t5):
    tokenizer = factory.load_tokenizer(spec_of(t5))
    prompt: Prompt = (Template("Document:\n"), Data("The bridge."), Template("\n\nSentence:\n"), Data("It is late."))
    assembler = Assembler(tokenizer)
    assembler.calibrate([prompt])
    whole = tokenizer.encode("Document:\nThe bridge.\n\nSentence:\nIt is late.", special=True)
    assert assembler.assemble(prompt) == whole


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"extra": {"max_num_seq": "3"}}, "did you mean 'max_num_seqs'"),
        ({"extra": {"max_num_seqs": "0"}}, "must be a number above 0"),
        ({"quantization": "fp8"}, "cannot quantise to fp8"),
        ({"data_parallel_size": 2}, "one copy of the model"),
    ],
)
def test_settings_that_are_not_for_it_are_refused_before_the_start(llama, settings, message):
    with pytest.raises(UsageError, match=message):
        factory.describe(EngineSpec(model=llama, **settings))


def test_its_facts_are_those_that_vllm_tells(llama, monkeypatch):
    monkeypatch.setattr(engine_module, "device_name", lambda: "cuda")
    described = factory.describe(EngineSpec(model=llama))
    assert described.pop("engine_version").count(".") == 1
    assert described == {
        "engine": "transformers",
        "device": "gpu",
        "dtype": "bfloat16",
        "quantization": "none",
        "max_model_len": "4096",
    }


def test_auto_takes_transformers_for_an_encoder_decoder_and_says_so(t5):
    name, note = resolve_engine("auto", find_model(str(t5)))
    assert name == "transformers"
    assert note is not None
    assert "encoder-decoder" in note


def test_vllm_refuses_an_encoder_decoder_before_it_is_fetched():
    with pytest.raises(UsageError, match="flan-t5-xxl is an encoder-decoder model, which vLLM does not run"):
        resolve_engine("vllm", find_model("flan-t5-xxl"))


@pytest.mark.parametrize("missing", ["vllm", "torch"])
def test_auto_without_vllm_falls_back_or_names_the_extras(monkeypatch, missing):
    gone = {"vllm", missing}
    monkeypatch.setattr("batchfact.preparation.find_spec", lambda name: None if name in gone else object())
    if missing == "torch":
        with pytest.raises(UsageError, match=r"batchfact\[transformers\]"):
            resolve_engine("auto", find_model("smollm2-135m"))
    else:
        name, note = resolve_engine("auto", find_model("smollm2-135m"))
        assert name == "transformers"
        assert "vLLM is not installed" in str(note)


def test_a_pattern_that_comes_often_enough_in_a_row_is_a_loop():
    assert is_looping([1, 2, *[3, 4, 5] * MIN_LOOPS])
    assert not is_looping([1, 2, *[3, 4, 5] * (MIN_LOOPS - 1)])
    assert not is_looping(list(range(500)))


def test_an_encoder_decoder_scores_a_file_through_the_command_line(t5, make_input, tmp_path):
    source = make_input([("The bridge is late.", "It is late. It is new."), ("", "Nothing."), ("No.", "Yes.")])
    done = subprocess.run(
        [
            *(sys.executable, "-m", "batchfact", "run", str(source), "out.parquet", "--model", str(t5)),
            *("--min-label-mass", "0", "--quiet"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1
    assert "vLLM runs no encoder-decoder models" in done.stderr
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["batchfact_status"].to_pylist() == ["ok", "empty_document", "ok"]
    assert [len(found) for found in table["batchfact_findings"].to_pylist()] == [2, 0, 1]
    assert b'"engine":"transformers"' in table.schema.metadata[b"batchfact"].replace(b" ", b"")
