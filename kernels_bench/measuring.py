"""Checks and times kernels, and sets each time beside its floor."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from batchfact.cost.devices import Ceilings
from batchfact.cost.probe import measure
from kernels_bench.kernel import Cost, Kernel, MakeKernels, Place

MIN_ROUNDS, MAX_ROUNDS = 2, 20
BUDGET_S = 1.0
"""Seconds of one arm after which no new round begins."""
DISK_BYTES = 16 << 20


class Floors(Struct, frozen=True):
    """What this machine does at most: matrix products and copies on the device, and durable writes."""

    device: Ceilings
    disk_bytes_per_s: float

    def seconds(self, cost: Cost) -> float:
        """The least time for `cost`: the three go side by side, so the slowest decides."""
        return max(
            cost.flops / self.device.flops_per_s,
            cost.bytes / self.device.bytes_per_s,
            cost.disk_bytes / self.disk_bytes_per_s,
        )


class Row(Struct, frozen=True, kw_only=True):
    """One line of the result; `seconds` is the best of `rounds`, None where the arm was skipped."""

    kernel: str
    shape: str
    arm: str
    is_reference: bool = False
    floor_s: float | None = None
    seconds: float | None = None
    rounds: int = 0
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Measured over floor: 1 is the machine's limit."""
        return self.seconds / self.floor_s if self.seconds is not None and self.floor_s else None


def measure_floors(place: Place) -> Floors:
    return Floors(measure(place.device, place.dtype), measure_disk(place.folder))


def measure_disk(folder: Path) -> float:
    """Bytes/s of writing a file and waiting until the disk has it."""
    content, path = os.urandom(DISK_BYTES), folder / "disk"

    def write() -> None:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    seconds, _ = best_of(write, "cpu")
    return DISK_BYTES / seconds


def rows_of(name: str, make: MakeKernels, place: Place, floors: Floors) -> Iterator[Row]:
    """One kernel's rows. A candidate that does not agree with the reference is not timed, and ends the run."""
    import torch

    torch.manual_seed(0)  # the same weights and states whichever kernels run before
    for kernel in make(place):
        check(kernel)
        for arm in kernel.arms:
            seconds, rounds = best_of(arm.run, place.device)
            yield Row(
                kernel=name,
                shape=kernel.shape,
                arm=arm.name,
                is_reference=arm is kernel.reference,
                floor_s=floors.seconds(arm.cost),
                seconds=seconds,
                rounds=rounds,
            )
        for arm_name, reason in kernel.skipped:
            yield Row(kernel=name, shape=kernel.shape, arm=arm_name, note=f"skipped: {reason}")


def check(kernel: Kernel) -> None:
    """Run every arm once and compare. Raises: MismatchError."""
    expected = kernel.reference.run()
    for arm in kernel.candidates:
        kernel.check(expected, arm.run())


def best_of(run: Callable[[], Any], device: str) -> tuple[float, int]:
    """The shortest time of a few rounds within the budget, and their number; the first one warms up."""
    run()
    best, spent, rounds = float("inf"), 0.0, 0
    while rounds < MIN_ROUNDS or (rounds < MAX_ROUNDS and spent < BUDGET_S):
        seconds = _timed(run, device)
        best, spent, rounds = min(best, seconds), spent + seconds, rounds + 1
    return best, rounds


def _timed(run: Callable[[], Any], device: str) -> float:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        started = time.perf_counter()
        run()
        torch.cuda.synchronize()
        return time.perf_counter() - started
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
