"""The fastest matrix product that this machine does: `python -m bench.ceiling DTYPE DEVICE` prints it as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from batchfact.cost.probe import best_seconds
from bench.facts import ROOT

SIZES = {"cpu": (1024, 2048), "cuda": (4096, 8192)}
REPEATS = 12


def ceiling_of(dtype: str, device: str) -> dict[str, Any]:
    """FLOP/s of square products, the best of several; measured in a process of its own."""
    command = [sys.executable, "-m", "bench.ceiling", dtype, device]
    printed = subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    found: dict[str, Any] = json.loads(printed.stdout)
    return found


def measure(dtype: str, device: str) -> dict[str, Any]:
    import torch

    if device == "cpu":
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    best = {size: _best(torch, size, dtype, device) for size in SIZES[device]}
    size, flops = max(best.items(), key=lambda item: item[1])
    return {"flop_per_s": flops, "size": size, "dtype": dtype, "device": device, "threads": torch.get_num_threads()}


def _best(torch: Any, size: int, dtype: str, device: str) -> float:
    left, right = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
    return 2 * size**3 / best_seconds(lambda: left @ right, device, REPEATS)


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:3])))
