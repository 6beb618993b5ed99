"""Measures what a device does at most: large matrix products and copies, by torch, in a second or two."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from batchfact.cost.devices import Ceilings
from batchfact.errors import UsageError

ROUNDS = 7
CPU_SIZE, GPU_SIZE = 2048, 8192
CPU_COPY_BYTES, GPU_COPY_BYTES = 64 << 20, 1 << 30
"""Well above the caches, well below the memory."""


def measure_cpu(dtype: str = "bfloat16") -> Ceilings:
    """This machine's ceilings with all its cores. Other work on it lowers them.

    Raises: UsageError where torch is not installed.
    """
    if find_spec("torch") is None:
        raise UsageError(
            "--device cpu measures this machine with torch, which is not installed: pip install 'batchfact[cpu]', or "
            "give --measured FILE"
        )
    return measure("cpu", dtype)


def measure(device: str, dtype: str) -> Ceilings:
    """The best of a few rounds of both."""
    return Ceilings(measure_matmul(device, dtype), measure_copy(device))


def measure_matmul(device: str, dtype: str) -> float:
    """FLOP/s of a square matrix product in `dtype`."""
    import torch

    size = GPU_SIZE if device == "cuda" else CPU_SIZE
    left, right = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
    return float(2 * size**3 / best_seconds(lambda: left @ right, device))


def measure_copy(device: str) -> float:
    """Bytes/s of a copy: each byte counts as read and as written."""
    import torch

    size = GPU_COPY_BYTES if device == "cuda" else CPU_COPY_BYTES
    source, target = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * size / best_seconds(lambda: target.copy_(source), device)


def best_seconds(work: Callable[[], Any], device: str, rounds: int = ROUNDS) -> float:
    """The shortest of `rounds`, after one that warms up. A GPU is waited for."""
    import torch

    def timed() -> float:
        started = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    timed()
    return min(timed() for _ in range(rounds))
