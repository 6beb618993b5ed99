"""Shared-prefix attention as one Triton kernel: the merge of prefix and suffix is the running softmax itself.

A program takes BLOCK_M queries of one head, of as many requests as they reach over. It walks over the shared prefix,
where every query sees every key, and then over its requests' suffixes, where a query sees the keys of its own request
up to itself. No partial result goes through memory, so there is nothing to merge afterwards.
"""

# No `from __future__ import annotations`: Triton reads the annotations as objects.
import torch
import triton
import triton.language as tl

from kernels_bench.prefix_attention import Tensors

BLOCK_M, BLOCK_N = 64, 64
LOG2_E = 1.4426950408889634


def fold_block(queries, keys, values, seen, best, total, summed, scale):  # type: ignore[no-untyped-def]  # Triton's own types
    """One block of keys into the running softmax: its maximum, its sum, and the weighted values."""
    scores = tl.where(seen, tl.dot(queries, keys) * scale, float("-inf"))
    higher = tl.maximum(best, tl.max(scores, 1))
    weights = tl.exp2(scores - higher[:, None])
    kept = tl.exp2(best - higher)
    summed = summed * kept[:, None] + tl.dot(weights.to(values.dtype), values)
    return higher, total * kept + tl.sum(weights, 1), summed


fold = triton.jit(fold_block)


def attend_tile(  # type: ignore[no-untyped-def]  # pointers and numbers in Triton's own types
    query,
    key,
    value,
    prefix_key,
    prefix_value,
    out,
    num_rows,
    prefix,
    suffix,
    heads,
    scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """All tensors are (rows, heads, HEAD_DIM), contiguous; row r of a suffix belongs to request r // suffix."""
    first_row, head = tl.program_id(0) * BLOCK_M, tl.program_id(1)
    rows = first_row + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    places = (rows[:, None] * heads + head) * HEAD_DIM + dims[None, :]
    queries = tl.load(query + places, mask=rows[:, None] < num_rows, other=0.0)
    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    summed = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for start in range(0, prefix, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        offsets = (columns[:, None] * heads + head) * HEAD_DIM + dims[None, :]
        is_key = columns[:, None] < prefix
        keys = tl.load(prefix_key + offsets, mask=is_key, other=0.0)
        values = tl.load(prefix_value + offsets, mask=is_key, other=0.0)
        seen = (columns[None, :] < prefix) & (rows[:, None] >= 0)
        best, total, summed = fold(queries, tl.trans(keys), values, seen, best, total, summed, scale)
    last_row = tl.minimum(first_row + BLOCK_M, num_rows)
    for start in range(first_row // suffix * suffix, last_row, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        offsets = (columns[:, None] * heads + head) * HEAD_DIM + dims[None, :]
        is_key = columns[:, None] < last_row
        keys = tl.load(key + offsets, mask=is_key, other=0.0)
        values = tl.load(value + offsets, mask=is_key, other=0.0)
        is_own = columns[None, :] // suffix == rows[:, None] // suffix
        seen = is_own & (columns[None, :] <= rows[:, None])
        best, total, summed = fold(queries, tl.trans(keys), values, seen, best, total, summed, scale)
    tl.store(out + places, (summed / total[:, None]).to(out.dtype.element_ty), mask=rows[:, None] < num_rows)


tile = triton.jit(attend_tile)


def attention(tensors: Tensors) -> torch.Tensor:
    """(requests, suffix, heads, head_dim); head_dim is a power of two of at least 16, the prefix at least one token."""
    requests, suffix, heads, head_dim = tensors.query.shape
    num_rows = requests * suffix
    out = torch.empty_like(tensors.query)
    tile[(triton.cdiv(num_rows, BLOCK_M), heads)](
        tensors.query,
        tensors.key,
        tensors.value,
        tensors.prefix_key,
        tensors.prefix_value,
        out,
        num_rows,
        tensors.prefix_key.shape[0],
        suffix,
        heads,
        head_dim**-0.5 * LOG2_E,
        HEAD_DIM=head_dim,
        BLOCK_M=BLOCK_M,
        BLOCK_N=BLOCK_N,
    )
    return out
