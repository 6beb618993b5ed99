"""Matrix products and copies: how near ordinary shapes come to the ceiling that all floors are taken from.

The ceilings themselves are a large square product and a large copy (`batchfact.cost.probe`).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernels_bench.kernel import Arm, Cost, Kernel, Place, close

# (tokens, in, out): a square one, the MLP of a 7B model, and that of a 135M model.
SHAPES = {
    "tiny": ((3, 5, 7),),
    "cpu": ((2048, 2048, 2048), (512, 4096, 11008), (2048, 576, 3072)),
    "cuda": ((8192, 8192, 8192), (8192, 4096, 11008), (8192, 576, 3072)),
}


def kernels(place: Place) -> Iterator[Kernel]:
    """Products in the engine's data type against float32, then a copy against an addition of nothing."""
    dtype = getattr(torch, place.dtype)
    for tokens, inward, outward in SHAPES["tiny" if place.is_tiny else place.device]:
        yield product(torch.randn(tokens, inward, device=place.device), torch.randn(outward, inward), dtype)
    size = 1 << (10 if place.is_tiny else 26)
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=place.device)
    target = torch.empty_like(source)
    moved = Cost(bytes=2 * size)
    yield Kernel(
        shape=f"copy of {size >> 20} MiB",
        reference=Arm("add 0", lambda: source + 0, moved),
        candidates=(Arm("copy", lambda: target.copy_(source), moved),),
        check=close,
    )


def product(values: torch.Tensor, weights: torch.Tensor, dtype: torch.dtype) -> Kernel:
    """(tokens, in) by (out, in), as a linear layer computes it."""
    weights = weights.to(values.device)
    narrow_values, narrow_weights = values.to(dtype), weights.to(dtype)
    (tokens, inward), outward = values.shape, weights.shape[0]
    flops = 2.0 * tokens * inward * outward
    numbers = tokens * inward + outward * inward + tokens * outward
    return Kernel(
        shape=f"{tokens} x {inward} x {outward}",
        reference=Arm("float32", lambda: torch.nn.functional.linear(values, weights), Cost(flops, 4 * numbers)),
        candidates=(
            Arm(
                str(dtype).removeprefix("torch."),
                lambda: torch.nn.functional.linear(narrow_values, narrow_weights),
                Cost(flops, dtype.itemsize * numbers),
            ),
        ),
        check=close,
    )
