"""Every kernel's candidates give what its reference gives, and times are set beside the right floor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from batchfact.cost.devices import Ceilings
from bench.tables import render
from kernels_bench.__main__ import NAMES, as_json, as_table, kernels_of
from kernels_bench.kernel import Arm, Cost, Kernel, MismatchError, Place, close, same
from kernels_bench.measuring import Floors, Row, check, rows_of

FLOORS = Floors(Ceilings(flops_per_s=100.0, bytes_per_s=10.0), disk_bytes_per_s=1.0)


def place_in(folder: Path) -> Place:
    return Place(device="cpu", size="tiny", folder=folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_kernels_candidates_give_what_its_reference_gives(name: str, tmp_path: Path) -> None:
    kernels = 0
    for kernel in kernels_of(name)(place_in(tmp_path)):
        check(kernel)
        kernels += 1
        assert kernel.candidates
        assert all(arm.cost.flops or arm.cost.bytes or arm.cost.disk_bytes for arm in kernel.arms)

    assert kernels


def test_each_file_of_the_package_is_listed() -> None:
    shared = {"__init__", "__main__", "kernel", "measuring", "texts", "stored_rows", "prefix_attention_triton"}
    package = Path(__file__).parents[2] / "kernels_bench"

    assert {path.stem for path in package.glob("*.py")} - shared == set(NAMES)


def test_the_slowest_of_the_three_ceilings_is_the_floor() -> None:
    assert FLOORS.seconds(Cost(flops=300, bytes=20, disk_bytes=1)) == 3
    assert FLOORS.seconds(Cost(flops=300, bytes=40, disk_bytes=1)) == 4
    assert FLOORS.seconds(Cost(flops=300, bytes=40, disk_bytes=5)) == 5


def a_kernel(found: int) -> Kernel:
    return Kernel(
        shape="one number",
        reference=Arm("plain", lambda: 3, Cost(flops=100)),
        candidates=(Arm("other", lambda: found, Cost(bytes=10)),),
        check=same,
        skipped=(("third", "there is no such device"),),
    )


def test_a_candidate_that_differs_is_not_timed(tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="differs"):
        list(rows_of("number", lambda _: iter([a_kernel(4)]), place_in(tmp_path), FLOORS))


def test_rows_table_and_result_say_times_floors_and_what_was_skipped(tmp_path: Path) -> None:
    rows = list(rows_of("number", lambda _: iter([a_kernel(3)]), place_in(tmp_path), FLOORS))
    plain, other, third = rows

    assert plain.is_reference and plain.floor_s == 1
    assert other.floor_s == 1 and other.seconds is not None and other.ratio == other.seconds
    assert third.seconds is None and third.ratio is None and third.note == "skipped: there is no such device"
    assert as_table(rows, FLOORS, place_in(tmp_path)).row_count == 3
    result: dict[str, Any] = json.loads(json.dumps(as_json(rows, FLOORS, place_in(tmp_path), "alone")))
    assert result["ceilings"] == {"flops_per_s": 100.0, "bytes_per_s": 10.0, "disk_bytes_per_s": 1.0}
    assert [row["arm"] for row in result["kernels"]] == ["plain", "other", "third"]
    assert result["note"] == "alone" and "commit" in result
    table = render(result)
    assert "| number | one number | plain (reference) | 1,000 ms |" in table
    assert "| number | one number | third |  | skipped: there is no such device |  |" in table
    assert "durable writes 0 MB/s. alone\n" in table


def test_a_ratio_is_measured_over_floor() -> None:
    assert Row(kernel="a", shape="b", arm="c", floor_s=2.0, seconds=5.0).ratio == 2.5


def test_tensors_that_differ_by_more_than_their_type_explains_do_not_agree() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    ones = torch.ones(4)

    close(ones, ones.to(torch.bfloat16))
    with pytest.raises(MismatchError, match="relative error"):
        close(ones, ones * 1.01)
    with pytest.raises(MismatchError):
        close(ones, ones * float("nan"))


TRITON = """
import torch
from kernels_bench.kernel import close
from kernels_bench.prefix_attention import flat_attention, make_tensors
from kernels_bench.prefix_attention_triton import attention

DEVICE, DTYPE = "{device}", torch.{dtype}
# Tiles that end within a request and within the prefix, one query a request, and one token of prefix.
for shape in ((3, 50, 70, 2, 16), (70, 1, 5, 1, 16), (2, 3, 1, 1, 32)):
    tensors = make_tensors(*shape, device=DEVICE, dtype=DTYPE)
    close(flat_attention(tensors)(), attention(tensors))
"""


def run_triton(device: str, dtype: str, **environment: str) -> None:
    root = str(Path(__file__).parents[2])
    subprocess.run(
        [sys.executable, "-c", TRITON.format(device=device, dtype=dtype)],
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([root, *sys.path])} | environment,
    )


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed (it comes with torch for GPUs)")
def test_the_triton_kernel_is_right_in_tritons_interpreter() -> None:
    run_triton("cpu", "float32", TRITON_INTERPRET="1")


@pytest.mark.gpu
def test_the_triton_kernel_is_right_on_a_gpu() -> None:
    run_triton("cuda", "bfloat16")
