"""The cost of a run, against numbers worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from batchfact.cost.devices import MEASURED_SHARE, Ceilings, Device, find_device, known_devices
from batchfact.cost.prefixes import count_computed
from batchfact.cost.roofline import Work, fit_memory, predict
from batchfact.cost.shape import Shape, read_shape
from batchfact.errors import UsageError

SMALL = Shape(layers=2, hidden=8, heads=4, kv_heads=2, head_dim=2, intermediate=16, vocabulary=100, is_tied=True)
LLAMA_2_7B: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
DEVICE = Device(
    name="box", memory_bytes=1e9, flops_per_s=1000.0, bytes_per_s=100.0, prefill_share=0.5, source="made up"
)


def write_config(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(LLAMA_2_7B | changes), encoding="utf-8")
    return folder


def test_a_shape_counts_the_weights_of_published_models(tmp_path: Path) -> None:
    llama = read_shape(write_config(tmp_path))

    # 32 * (4 * 4096^2 + 3 * 4096 * 11008); with embedding and head; 2 * 32 * 32 * 128 numbers of KV.
    assert llama.linear_parameters == 6_476_005_376
    assert llama.parameters == 6_738_149_376
    assert 2 * llama.kv_values == 524_288

    llama3 = read_shape(write_config(tmp_path, num_key_value_heads=8, intermediate_size=14336, vocab_size=128256))
    assert llama3.linear_parameters == 6_979_321_856
    assert 2 * llama3.kv_values == 131_072


def test_a_model_of_another_kind_or_without_its_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="type 't5' is not known"):
        read_shape(write_config(tmp_path, model_type="t5"))
    with pytest.raises(UsageError, match="does not say intermediate_size"):
        read_shape(write_config(tmp_path, intermediate_size=None))
    with pytest.raises(UsageError, match="holds no model"):
        read_shape(tmp_path / "nowhere")


def test_flops_are_those_of_a_layer_written_out() -> None:
    # One layer: queries 8x8, keys and values 8x4 each, output 8x8, MLP three of 8x16 = 64 + 64 + 64 + 384 weights.
    assert SMALL.layer_parameters == 576
    assert SMALL.linear_flops(3) == 2 * 2 * 576 * 3
    # Three tokens see 1, 2 and 3 positions: 6 products of 8 numbers, for scores and for values, in two layers.
    assert SMALL.attention_flops(6) == 2 * 2 * (2 * 8 * 6)
    assert SMALL.head_flops(5) == 2 * 8 * 100 * 5
    assert SMALL.parameters == 2 * 576 + 800


def test_a_documents_prefix_is_computed_once_and_its_windows_each_time() -> None:
    # Two documents of 10 and 20 tokens, two pairs each, one prompt a pair; 4 tokens of lead, 3 of its own.
    found = count_computed(
        np.array([10.0, 10.0, 20.0, 20.0]),
        is_first=np.array([True, False, True, False]),
        is_apart=np.zeros(4, dtype=bool),
        requests_a_pair=1.0,
        lead=4,
        own=3,
        block=1,
    )

    # The lead once, both documents once, four windows, and half a token lost by each of the two later prompts.
    assert found.tokens == 4 + 30 + 4 * 3 + 2 * 0.5
    lead = 1 + 2 + 3 + 4
    documents = sum(range(5, 15)) + sum(range(5, 25))
    windows = 4 * (3 * 19 + 1 + 2 + 3)  # behind 14 or 24 tokens, 19 on average
    assert found.attended == lead + documents + windows + 2 * 0.5 * 19
    assert found.reread == 2 * (19 - 0.5)


def test_an_excerpt_of_its_own_shares_nothing_but_the_lead() -> None:
    found = count_computed(
        np.array([10.0, 10.0]),
        is_first=np.array([True, False]),
        is_apart=np.ones(2, dtype=bool),
        requests_a_pair=2.0,
        lead=4,
        own=3,
        block=16,
    )

    assert found.tokens == 4 + 4 * 13
    assert found.attended == 10 + 4 * sum(range(5, 18))
    assert found.reread == 0


def test_without_rows_there_is_nothing_to_compute() -> None:
    nothing = np.zeros(0)
    found = count_computed(
        nothing, is_first=nothing > 0, is_apart=nothing > 0, requests_a_pair=0.0, lead=4, own=3, block=16
    )

    assert (found.tokens, found.attended, found.reread) == (0, 0, 0)


def test_prefill_takes_what_the_slower_ceiling_takes() -> None:
    flops = 2 * 1152 * 10 + 64 * 55 + 1600 * 2
    found = predict(SMALL, Work(requests=2, computed=10, attended=55, longest=10), DEVICE)

    # Weights once: 2 bytes * 1952; KV of 16 numbers a token written for 10 tokens.
    assert found.prefill.compute_s == pytest.approx(flops / 500)
    assert found.prefill.memory_s == pytest.approx((2 * 1952 + 2 * 16 * 10) / 100)
    assert found.prefill.bound == "compute" and found.seconds == found.prefill.compute_s
    assert found.flops == flops and found.decode.seconds == 0

    quick = Device(
        name="box", memory_bytes=1e9, flops_per_s=1e9, bytes_per_s=100.0, prefill_share=0.5, source="made up"
    )
    assert predict(SMALL, Work(requests=2, computed=10, attended=55), quick).prefill.bound == "bandwidth"


def test_cached_prefixes_are_read_again_by_each_prompt() -> None:
    without = predict(SMALL, Work(requests=2, computed=10, attended=55), DEVICE)
    read = predict(SMALL, Work(requests=2, computed=10, attended=55, reread=30), DEVICE)

    assert read.prefill.memory_s - without.prefill.memory_s == pytest.approx(2 * 16 * 30 / 100)


def test_decoding_reads_the_weights_once_a_step_for_all_sequences() -> None:
    found = predict(SMALL, Work(requests=4, computed=40, attended=100, generated=80, context=15, longest=20), DEVICE)

    assert found.decode.flops == 2 * 1152 * 80 + 64 * 80 * 15 + 1600 * 80
    assert found.decode.memory_s == pytest.approx((3904 * 80 / 4 + 32 * 80 * 15) / 100)


def test_float32_doubles_the_bytes_and_no_arithmetic() -> None:
    work = Work(requests=4, computed=40, attended=100, generated=80, context=15, longest=20)
    narrow = predict(SMALL, work, DEVICE)
    wide = predict(SMALL, work, msgspec.structs.replace(DEVICE, value_bytes=4))

    assert (wide.prefill.memory_s, wide.decode.memory_s) == (2 * narrow.prefill.memory_s, 2 * narrow.decode.memory_s)
    assert wide.flops == narrow.flops
    assert wide.memory and narrow.memory and wide.memory.kv_tokens < narrow.memory.kv_tokens


def test_twice_the_devices_take_half_the_time() -> None:
    work = Work(requests=600, computed=1e5, attended=1e6, longest=20)
    one, two = (predict(SMALL, work, find_device("A100-80"), devices=number) for number in (1, 2))

    assert two.seconds == pytest.approx(one.seconds / 2)


def test_each_replica_reads_its_own_weights_at_each_step() -> None:
    """Twice the devices halve the requests of each, but not its steps: the weights' share of the time stays."""
    work = Work(requests=4, computed=40, attended=100, generated=80, context=15, longest=20)
    one, two = (predict(SMALL, work, DEVICE, devices=number) for number in (1, 2))

    assert one.decode.memory_s == pytest.approx((3904 * 80 / 4 + 32 * 80 * 15) / 100)
    assert two.decode.memory_s == pytest.approx((3904 * 80 / 2 + 32 * 80 * 15) / 200)


def test_7b_fits_an_a100_and_70b_needs_two_of_them(tmp_path: Path) -> None:
    one = fit_memory(read_shape(write_config(tmp_path)), find_device("a100-80"), 4096, devices=8)
    large = read_shape(
        write_config(
            tmp_path,
            num_hidden_layers=80,
            hidden_size=8192,
            num_attention_heads=64,
            num_key_value_heads=8,
            intermediate_size=28672,
        )
    )

    assert one is not None and one.shards == 1
    assert one.weights == pytest.approx(13.5e9, rel=0.01)
    assert one.kv_tokens == pytest.approx(110_000, rel=0.05)  # what vLLM finds on such a card
    assert one.total == pytest.approx(0.9 * 80e9)
    assert fit_memory(large, find_device("A100-80"), 4096, devices=1) is None
    spread = fit_memory(large, find_device("A100-80"), 4096, devices=8)
    assert spread is not None and spread.shards == 2
    assert 2 * spread.weights == pytest.approx(138e9, rel=0.01)
    assert 5_000 < spread.kv_tokens < 15_000  # little is left of 2 * 72 GB


def test_llama_2_7b_on_an_a100_takes_what_the_formula_says(tmp_path: Path) -> None:
    shape = read_shape(write_config(tmp_path))
    # A document of 2,000 tokens, five windows of 90: 5.6 pairs a second at 60 % of 312 TFLOP/s.
    work = Work(requests=5, computed=2450, attended=2000 * 2001 / 2 + 5 * (90 * 2000 + 90 * 91 / 2), longest=2090)

    assert 1 / predict(shape, work, find_device("A100-80")).seconds == pytest.approx(5.6, rel=0.02)


def test_every_device_of_the_table_has_its_source_and_likely_numbers() -> None:
    for device in known_devices().values():
        assert "NVIDIA" in device.source
        assert 5e13 < device.flops_per_s < 5e15
        assert 1e11 < device.bytes_per_s < 1e13
        assert 0.3 <= device.prefill_share <= 0.7


def test_an_unknown_device_names_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="did you mean 'H100'"):
        find_device("H10O")


def measured_file(folder: Path, **changes: Any) -> Path:
    path = folder / "kernels.json"
    content = {"device": "cpu", "ceilings": {"flops_per_s": 2e11, "bytes_per_s": 1e10, "disk_bytes_per_s": 1e8}}
    path.write_text(json.dumps(content | changes), encoding="utf-8")
    return path


def test_a_measurement_takes_the_data_sheets_place(tmp_path: Path) -> None:
    cpu = find_device("cpu", measured_file(tmp_path))
    gpu = find_device("H200", measured_file(tmp_path, device="cuda"))

    assert (cpu.flops_per_s, cpu.bytes_per_s, cpu.prefill_share) == (2e11, 1e10, MEASURED_SHARE)
    assert cpu.is_cpu and cpu.block_tokens == 32
    assert (gpu.name, gpu.flops_per_s, gpu.memory_bytes, gpu.block_tokens) == ("H200", 2e11, 141e9, 16)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": "cuda"}, "measured on 'cuda'"),
        ({"ceilings": None}, "is no result"),
        ({"ceilings": {"flops_per_s": 0, "bytes_per_s": 1}}, "not above 0"),
    ],
)
def test_a_file_that_measured_something_else_is_refused(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=reason):
        find_device("cpu", measured_file(tmp_path, **changes))


def test_this_machine_is_measured_above_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = pytest.importorskip("batchfact.cost.probe")
    monkeypatch.setattr(probe, "CPU_SIZE", 64)
    monkeypatch.setattr(probe, "CPU_COPY_BYTES", 1 << 16)
    found: Ceilings = probe.measure_cpu("float32")

    assert found.flops_per_s > 0 and found.bytes_per_s > 0
