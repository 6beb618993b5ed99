"""Prefill of decoder layers in a 7B model's shape, with random weights: what share of the ceiling whole layers reach.

The reference is written plainly: a product for each matrix, and attention with its scores in memory. The candidate
joins products of equal inputs and leaves attention to torch's fused kernel; `compiled` is that through torch.compile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from batchfact.cost.shape import Shape
from kernels_bench.kernel import Arm, Cost, Kernel, Place, close

# Llama-2-7B's shape; (layers, sequences, tokens) by size of the machine. The vocabulary is not used here.
LLAMA_7B = Shape(
    layers=1, hidden=4096, heads=32, kv_heads=32, head_dim=128, intermediate=11008, vocabulary=32_000, is_tied=False
)
TINY = Shape(layers=1, hidden=16, heads=4, kv_heads=2, head_dim=4, intermediate=24, vocabulary=32, is_tied=False)
RUNS = {"tiny": (2, 2, 6), "cpu": (1, 1, 256), "cuda": (8, 4, 2048)}
ROTARY_BASE = 10_000.0


class Layer(NamedTuple):
    """Weights as (out, in), products of equal inputs joined: queries, keys, values; gate and up."""

    attention: torch.Tensor
    out: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class Heads(NamedTuple):
    """Heads of queries, and of keys and values; torch.compile looks through named tuples."""

    query: int
    key: int
    dim: int

    @property
    def sizes(self) -> list[int]:
        """Rows of queries, keys and values in the joined weight."""
        return [self.query * self.dim, self.key * self.dim, self.key * self.dim]


class Rotary(NamedTuple):
    """Cosines and sines, (tokens, head_dim)."""

    cos: torch.Tensor
    sin: torch.Tensor


Forward = Callable[[torch.Tensor, Layer, Heads, Rotary], torch.Tensor]


def kernels(place: Place) -> Iterator[Kernel]:
    shape = TINY if place.is_tiny else LLAMA_7B
    layers, sequences, tokens = RUNS["tiny" if place.is_tiny else place.device]
    dtype = getattr(torch, place.dtype)
    stack = [make_layer(shape, dtype, place.device) for _ in range(layers)]
    states = torch.randn(sequences, tokens, shape.hidden, device=place.device).to(dtype)
    heads = heads_of(shape)
    rotary = make_rotary(tokens, shape.head_dim, place.device, dtype)

    def through(forward: Forward) -> Callable[[], torch.Tensor]:
        def run() -> torch.Tensor:
            hidden = states
            with torch.inference_mode():
                for layer in stack:
                    hidden = forward(hidden, layer, heads, rotary)
            return hidden

        return run

    cost = _cost(shape, layers, sequences, tokens, dtype.itemsize)
    candidates = [Arm("joined, fused attention", through(joined), cost)]
    skipped: tuple[tuple[str, str], ...] = ()
    if place.device == "cuda":
        candidates.append(Arm("compiled", through(torch.compile(joined)), cost))
    else:
        skipped = (("compiled", "compiling takes minutes on a CPU; it is for --device cuda"),)
    yield Kernel(
        shape=f"{layers} layers of {shape.hidden}, {sequences} x {tokens} tokens",
        reference=Arm("plain", through(plain), cost),
        candidates=tuple(candidates),
        check=close,
        skipped=skipped,
    )


def plain(states: torch.Tensor, layer: Layer, heads: Heads, rotary: Rotary) -> torch.Tensor:
    """One layer, (sequences, tokens, hidden), written as the model's paper has it."""
    normed = rms_norm(states, states.shape[-1:])
    query, key, value = (_apart(linear(normed, weight), heads.dim) for weight in layer.attention.split(heads.sizes))
    states = states + linear(_flat(plain_attention(turn(query, rotary), turn(key, rotary), value)), layer.out)
    normed = rms_norm(states, states.shape[-1:])
    gate, up = (linear(normed, weight) for weight in layer.gate_up.chunk(2))
    return states + linear(silu(gate) * up, layer.down)


def joined(states: torch.Tensor, layer: Layer, heads: Heads, rotary: Rotary) -> torch.Tensor:
    """The same layer with two joined products and torch's own attention."""
    normed = rms_norm(states, states.shape[-1:])
    mixed = linear(normed, layer.attention).split(heads.sizes, dim=-1)
    query, key, value = (_apart(each, heads.dim) for each in mixed)
    attended = scaled_dot_product_attention(
        turn(query, rotary), turn(key, rotary), value, is_causal=True, enable_gqa=heads.query != heads.key
    )
    states = states + linear(_flat(attended), layer.out)
    gate, up = linear(rms_norm(states, states.shape[-1:]), layer.gate_up).chunk(2, dim=-1)
    return states + linear(silu(gate) * up, layer.down)


def plain_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Causal attention on (sequences, heads, tokens, head_dim), with all scores in memory, in float32."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    tokens = query.shape[2]
    scores = (query @ key.transpose(2, 3)).float() * query.shape[-1] ** -0.5
    later = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).triu(1)
    return scores.masked_fill(later, float("-inf")).softmax(-1).to(value.dtype) @ value


def turn(vectors: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """Rotary embedding on (sequences, heads, tokens, head_dim)."""
    first, second = vectors.chunk(2, dim=-1)
    return vectors * rotary.cos + torch.cat((-second, first), dim=-1) * rotary.sin


def make_rotary(tokens: int, head_dim: int, device: str, dtype: torch.dtype) -> Rotary:
    frequencies = ROTARY_BASE ** (-torch.arange(0, head_dim, 2, device=device) / head_dim)
    angles = torch.outer(torch.arange(tokens, device=device).float(), frequencies).repeat(1, 2)
    return Rotary(angles.cos().to(dtype), angles.sin().to(dtype))


def make_layer(shape: Shape, dtype: torch.dtype, device: str) -> Layer:
    def weight(outward: int, inward: int) -> torch.Tensor:
        return torch.randn(outward, inward, device=device, dtype=dtype) * inward**-0.5

    inner = shape.heads * shape.head_dim
    return Layer(
        attention=weight(sum(heads_of(shape).sizes), shape.hidden),
        out=weight(shape.hidden, inner),
        gate_up=weight(2 * shape.intermediate, shape.hidden),
        down=weight(shape.hidden, shape.intermediate),
    )


def heads_of(shape: Shape) -> Heads:
    return Heads(shape.heads, shape.kv_heads, shape.head_dim)


def _apart(mixed: torch.Tensor, head_dim: int) -> torch.Tensor:
    """(sequences, tokens, heads * head_dim) to (sequences, heads, tokens, head_dim)."""
    return mixed.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def _flat(attended: torch.Tensor) -> torch.Tensor:
    return attended.transpose(1, 2).flatten(2)


def _cost(shape: Shape, layers: int, sequences: int, tokens: int, value_bytes: int) -> Cost:
    """Of all layers: weights and states are moved once; attention's halves above the diagonal are not counted."""
    attended = sequences * tokens * (tokens + 1) / 2
    flops = layers * (shape.linear_flops(sequences * tokens) + shape.attention_flops(attended))
    numbers = shape.layer_parameters + 2 * sequences * tokens * shape.hidden
    return Cost(flops, layers * value_bytes * numbers)
