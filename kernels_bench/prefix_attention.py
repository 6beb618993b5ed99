"""Attention of many short suffixes behind one shared prefix: flat, against prefix and suffix apart, merged.

`flat` gives each request the prefix's keys and values again, as an engine without knowledge of shared prefixes reads
them. `split` lets the queries of all requests attend to the prefix at once, each request's queries to its own suffix,
and merges the two by their log-sum-exps:

    out = (exp(lse_p) out_p + exp(lse_s) out_s) / (exp(lse_p) + exp(lse_s))

It reads the prefix once instead of once a request, and makes one tall product of many thin ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec

import torch
from msgspec import Struct
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from kernels_bench.kernel import Arm, Cost, Kernel, Place, close

# (requests, suffix tokens, prefix tokens, heads, head_dim)
SHAPES = {
    "tiny": ((3, 5, 11, 2, 16), (1, 1, 1, 1, 16)),
    "cpu": ((16, 32, 1024, 9, 64),),
    "cuda": ((32, 64, 2048, 32, 128), (256, 1, 2048, 32, 128)),
}


class Tensors(Struct, frozen=True):
    """Queries, suffix keys and values: (requests, suffix, heads, head_dim); the prefix's: (prefix, heads, head_dim)."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    prefix_key: torch.Tensor
    prefix_value: torch.Tensor


def kernels(place: Place) -> Iterator[Kernel]:
    for shape in SHAPES["tiny" if place.is_tiny else place.device]:
        yield compare(make_tensors(*shape, device=place.device, dtype=getattr(torch, place.dtype)), place)


def make_tensors(
    requests: int, suffix: int, prefix: int, heads: int, head_dim: int, *, device: str, dtype: torch.dtype
) -> Tensors:
    own = [torch.randn(requests, suffix, heads, head_dim, device=device).to(dtype) for _ in range(3)]
    shared = [torch.randn(prefix, heads, head_dim, device=device).to(dtype) for _ in range(2)]
    return Tensors(*own, *shared)


def compare(tensors: Tensors, place: Place) -> Kernel:
    requests, suffix, heads, head_dim = tensors.query.shape
    prefix = tensors.prefix_key.shape[0]
    flat = flat_attention(tensors)  # its copies of the prefix are made before the clock starts
    candidates = [Arm("split, merged", lambda: split_attention(tensors), _cost(tensors, prefix_reads=1))]
    reason = triton_missing(place)
    if reason is None:
        from kernels_bench.prefix_attention_triton import attention

        candidates.append(Arm("split, one Triton kernel", lambda: attention(tensors), _cost(tensors, prefix_reads=1)))
    return Kernel(
        shape=f"{requests} x {suffix} behind {prefix} tokens, {heads} heads of {head_dim}",
        reference=Arm("flat", flat, _cost(tensors, prefix_reads=requests)),
        candidates=tuple(candidates),
        check=close,
        skipped=() if reason is None else (("split, one Triton kernel", reason),),
    )


def triton_missing(place: Place) -> str | None:
    """Why the Triton kernel cannot run there."""
    if place.device == "cpu":
        return "Triton compiles for GPUs"
    return None if find_spec("triton") is not None else "triton is not installed"


def flat_attention(tensors: Tensors) -> Callable[[], torch.Tensor]:
    """Each request by itself: (requests, suffix, heads, head_dim)."""
    requests, suffix = tensors.query.shape[:2]
    key, value = (
        torch.cat((shared.expand(requests, *shared.shape), own), dim=1).transpose(1, 2).contiguous()
        for shared, own in ((tensors.prefix_key, tensors.key), (tensors.prefix_value, tensors.value))
    )
    seen = causal_lower_right(suffix, key.shape[2])

    def run() -> torch.Tensor:
        out: torch.Tensor = scaled_dot_product_attention(tensors.query.transpose(1, 2), key, value, attn_mask=seen)
        return out.transpose(1, 2)

    return run


def split_attention(tensors: Tensors) -> torch.Tensor:
    """The same by parts: all requests' queries as one sequence over the prefix, then each over its suffix."""
    requests, suffix = tensors.query.shape[:2]
    all_queries = tensors.query.flatten(0, 1).transpose(0, 1)[None]
    shared_key, shared_value = (each.transpose(0, 1)[None] for each in (tensors.prefix_key, tensors.prefix_value))
    far, far_weight = attend(all_queries, shared_key, shared_value, is_causal=False)
    far = far[0].transpose(0, 1).unflatten(0, (requests, suffix))
    far_weight = far_weight[0].transpose(0, 1).unflatten(0, (requests, suffix))
    own = (each.transpose(1, 2) for each in (tensors.query, tensors.key, tensors.value))
    near, near_weight = attend(*own, is_causal=True)
    return merge(far, far_weight, near.transpose(1, 2), near_weight.transpose(1, 2))


def merge(far: torch.Tensor, far_lse: torch.Tensor, near: torch.Tensor, near_lse: torch.Tensor) -> torch.Tensor:
    """Two partial attentions (..., head_dim) with their log-sum-exps (...) to that over both parts' keys."""
    share = torch.sigmoid(far_lse - near_lse)[..., None]
    return (share * far.float() + (1 - share) * near.float()).to(near.dtype)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, is_causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Torch's flash attention on (batch, heads, tokens, head_dim), with the log-sum-exp (batch, heads, tokens)."""
    if query.device.type == "cuda":
        found = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal)  # noqa: SLF001
    else:
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
        found = flash(query, key, value, 0.0, is_causal)
    return found[0], found[1].float()


def _cost(tensors: Tensors, *, prefix_reads: int) -> Cost:
    """Keys and values of the prefix are read `prefix_reads` times; each query looks at prefix and earlier suffix."""
    requests, suffix, heads, head_dim = tensors.query.shape
    prefix = tensors.prefix_key.shape[0]
    attended = requests * (suffix * prefix + suffix * (suffix + 1) / 2)
    numbers = heads * head_dim * (2 * prefix * prefix_reads + 4 * requests * suffix)
    return Cost(4.0 * heads * head_dim * attended, tensors.query.element_size() * numbers)
