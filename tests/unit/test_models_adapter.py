"""An adapter becomes a model once, on the base that it belongs to and on no other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from batchfact.errors import UsageError
from batchfact.models import add_model, find_model, is_local, locate, model_digest
from batchfact.models.adapter import Adapter, merge
from batchfact.models.registry import EXPORTED, AdapterFolder, ModelEntry, register, shipped_models
from batchfact.models.tensor_files import TensorFile, to_float32
from batchfact.prompts.loader import PromptBook, shipped_texts
from tests.tiny_models import save_llama

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHFACT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BATCHFACT_CONFIG_DIR", str(tmp_path / "config"))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_llama(tmp_path / "base")


@pytest.fixture
def adapter(tmp_path: Path, base: Path) -> Path:
    return save_adapter(base, tmp_path / "adapter")


def save_adapter(base: Path, folder: Path, **settings: Any) -> Path:
    torch.manual_seed(1)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        LoraConfig(r=3, lora_alpha=12, target_modules="all-linear", init_lora_weights=False, **settings),
    )
    model.save_pretrained(folder)
    return folder


def entry_of(base: Path, adapter: Path, digest: str | None = None) -> ModelEntry:
    source = AdapterFolder(base=str(base), base_digest=digest or model_digest(base), path=adapter)
    return ModelEntry(name="tuned", source=source)


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(5, 60)[None]).logits[0]


@pytest.mark.parametrize("settings", [{}, {"use_rslora": True}])
def test_the_merged_model_answers_as_peft_does(tmp_path: Path, base: Path, settings: dict[str, Any]):
    adapter = save_adapter(base, tmp_path / "adapter", **settings)
    folder = locate(entry_of(base, adapter))
    merged = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    torch.testing.assert_close(logits_of(merged), logits_of(expected), atol=1e-3, rtol=1e-3)
    assert (logits_of(merged) - logits_of(plain)).abs().max() > 0.1


def test_a_base_in_bfloat16_stays_so_and_is_rounded_once(tmp_path: Path, base: Path, adapter: Path):
    half = tmp_path / "half"
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(half)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (half / name).write_bytes((base / name).read_bytes())
    (tmp_path / "out").mkdir()
    found = Adapter(adapter)
    merge(half, found, tmp_path / "out")
    before, after = TensorFile(half / "model.safetensors"), TensorFile(tmp_path / "out" / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    exact = to_float32(before.read(name), "BF16") + found.delta(name)
    got = to_float32(after.read(name), after.dtype_of(name))
    assert after.dtype_of(name) == "BF16"
    assert np.abs(got - exact).max() <= np.abs(exact).max() * 2**-8
    untouched = "model.norm.weight"
    assert np.array_equal(before.raw(untouched), after.raw(untouched))


def test_it_is_merged_once_and_anew_when_the_adapter_changes(tmp_path: Path, base: Path, adapter: Path):
    entry = entry_of(base, adapter)
    said: list[str] = []
    assert not is_local(entry)
    folder = locate(entry, tell=said.append)
    assert locate(entry, tell=said.append) == folder and said == [f"Merging tuned into {base}"]
    assert is_local(entry)
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-2] + b"\x11\x3c")
    assert locate(entry, tell=said.append) != folder


def test_of_two_processes_at_once_one_merges_and_the_other_waits(base: Path, adapter: Path):
    register(entry_of(base, adapter))
    command = [sys.executable, "-m", "batchfact", "models", "pull", "tuned"]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)
    ]
    said = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert {out for out, _ in said} == {f"tuned is ready: {locate(find_model('tuned'))}\n"}
    assert sum(err.count("Merging tuned") for _, err in said) == 1


def test_an_adapter_of_another_base_is_refused(tmp_path: Path, base: Path, adapter: Path):
    with pytest.raises(UsageError, match=r"tuned is an adapter of another base: .* digest 000000000000\.\.\."):
        locate(entry_of(base, adapter, digest="0" * 64))
    config = json.loads((base / "config.json").read_text())
    assert config["hidden_size"] == 32
    other = tmp_path / "other"
    torch.manual_seed(0)
    model_config = AutoModelForCausalLM.from_pretrained(base).config
    model_config.intermediate_size = 96
    AutoModelForCausalLM.from_config(model_config).save_pretrained(other)
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match=r"changes model\.layers\.0\.mlp\.down_proj\.weight.*: it is another base's"):
        merge(other, Adapter(adapter), tmp_path / "out")


def test_what_cannot_be_merged_is_refused(tmp_path: Path, base: Path):
    with pytest.raises(UsageError, match="has DoRA, which is not merged"):
        Adapter(save_adapter(base, tmp_path / "dora", use_dora=True))
    with pytest.raises(UsageError, match="is no readable adapter"):
        Adapter(base)
    cut = save_adapter(base, tmp_path / "cut") / "adapter_model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-100])
    with pytest.raises(UsageError, match="was cut off"):
        Adapter(tmp_path / "cut")


def test_an_adapter_that_is_not_there_says_where_it_should_be(tmp_path: Path, base: Path):
    with pytest.raises(UsageError, match=r"the adapter of tuned is not at .*/nowhere"):
        locate(entry_of(base, tmp_path / "nowhere", digest="0" * 64))


def test_a_folder_that_was_exported_is_registered_with_what_it_was_trained_for(
    tmp_path: Path, base: Path, adapter: Path
):
    exported = {
        "name": "elsewhere",
        "source": {"kind": "adapter", "base": str(base), "base_digest": model_digest(base), "path": "."},
        "prompts": "short",
        "prompt_style": "plain",
        "trained": [{"paradigm": "sent-nli", "reasoning": False}],
        "prompt_digests": {"sent_nli": "0" * 64},
    }
    (adapter / EXPORTED).write_text(json.dumps(exported))
    add_model("mine", str(adapter))
    entry = find_model("mine")
    assert entry.source == AdapterFolder(base=str(base), base_digest=model_digest(base), path=adapter)
    assert (entry.prompts, entry.trained[0].paradigm, entry.prompt_digests) == (
        "short",
        "sent-nli",
        {"sent_nli": "0" * 64},
    )
    assert locate(entry).is_dir()


def test_shipped_adapters_are_pinned_small_and_trained_with_the_shipped_prompts():
    shipped = [entry for entry in shipped_models().values() if isinstance(entry.source, AdapterFolder)]
    assert [entry.name for entry in shipped] == ["smollm2-135m-factual"]
    for entry in shipped:
        with pytest.raises(UsageError, match="is pinned by batchfact"):
            register(ModelEntry(name=entry.name, source=entry.source))
        assert isinstance(entry.source, AdapterFolder)
        assert (entry.source.folder / "adapter_model.safetensors").stat().st_size <= 24_000_000
        digests = PromptBook(lambda _: None, texts=shipped_texts(entry.prompts)).digests
        assert entry.prompt_digests == {name: digests[name] for name in ("summ_nli", "sent_nli")}
