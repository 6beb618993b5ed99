"""Counts of tokens to FLOPs, bytes, seconds and memory on a device: the slower of the two ceilings decides.

Prefill and decoding are bound by different things, so each gets its own floor and the two are added. The arithmetic:

    prefill FLOPs = linear(computed) + attention(attended) + head(requests)
    prefill bytes = weights once a batch + KV written + KV of shared prefixes read again
    decode  FLOPs = linear(generated) + attention(generated * context) + head(generated)
    decode  bytes = weights once a step of each replica + KV of every sequence's context, each step
"""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

from batchfact.cost.devices import Device
from batchfact.cost.shape import Shape

BATCH_TOKENS = 8192
"""Prompt tokens of one step."""
MAX_SEQUENCES = 256
"""Requests that are decoded side by side, at most."""
USABLE_MEMORY = 0.9
"""Share of a GPU's memory that an engine takes; the rest is the driver's and the allocator's."""


class Work(Struct, frozen=True, kw_only=True):
    """What has to be computed, in tokens; made by `planning`.

    `attended` is the sum, over all computed prompt tokens, of the positions that each looks at, itself included.
    `reread` is the sum, over all requests, of the prefix tokens that were found in the cache. `generated` are forward
    passes beyond each request's first token, at `context` tokens on average. `longest` is the longest prompt.
    """

    requests: float
    computed: float
    attended: float
    reread: float = 0.0
    generated: float = 0.0
    context: float = 0.0
    longest: float = 0.0


class Phase(Struct, frozen=True):
    """The floor of one phase on all devices: what each ceiling asks for, in seconds."""

    flops: float
    compute_s: float
    memory_s: float

    @property
    def seconds(self) -> float:
        return max(self.compute_s, self.memory_s)

    @property
    def bound(self) -> Literal["compute", "bandwidth"]:
        return "compute" if self.compute_s >= self.memory_s else "bandwidth"


class Memory(Struct, frozen=True, kw_only=True):
    """Bytes on one of the devices, where the model is spread over `shards` of them."""

    shards: int
    weights: float
    activations: float
    kv_cache: float
    kv_tokens: int

    @property
    def total(self) -> float:
        return self.weights + self.activations + self.kv_cache


class Prediction(Struct, frozen=True, kw_only=True):
    """Time on all devices together, without the engine's start."""

    prefill: Phase
    decode: Phase
    memory: Memory | None
    """None where the model does not fit `devices` of this kind."""

    @property
    def flops(self) -> float:
        return self.prefill.flops + self.decode.flops

    @property
    def seconds(self) -> float:
        return self.prefill.seconds + self.decode.seconds


def predict(shape: Shape, work: Work, device: Device, *, devices: int = 1) -> Prediction:
    """The roofline's time for `work` on `devices` of one kind, at the device's prefill share of its peak."""
    memory = fit_memory(shape, device, work.longest, devices=devices)
    shards = memory.shards if memory else 1
    replicas = devices // shards  # a rest of devices that holds no whole model does nothing
    compute = device.prefill_share * device.flops_per_s * replicas * shards
    bandwidth = device.bytes_per_s * replicas * shards
    weights, kv_token = device.value_bytes * shape.parameters, device.value_bytes * shape.kv_values

    prefill_flops = (
        shape.linear_flops(work.computed) + shape.attention_flops(work.attended) + shape.head_flops(work.requests)
    )
    prefill_bytes = weights * math.ceil(work.computed / BATCH_TOKENS) + kv_token * (work.computed + work.reread)
    decode_flops = (
        shape.linear_flops(work.generated)
        + shape.attention_flops(work.generated * work.context)
        + shape.head_flops(work.generated)
    )
    kv_tokens = memory.kv_tokens if memory else math.inf
    side_by_side = max(1.0, min(MAX_SEQUENCES, work.requests / replicas, kv_tokens / max(work.context, 1.0)))
    decode_bytes = weights * work.generated / side_by_side + kv_token * work.generated * work.context
    return Prediction(
        prefill=Phase(prefill_flops, prefill_flops / compute, prefill_bytes / bandwidth),
        decode=Phase(decode_flops, decode_flops / compute, decode_bytes / bandwidth),
        memory=memory,
    )


def fit_memory(shape: Shape, device: Device, longest: float, *, devices: int) -> Memory | None:
    """The fewest devices, a power of two, that hold the model and the KV cache of one longest prompt; None if too few.

    Replicas are better than a spread model, so no more are taken than are needed.
    """
    shards = 1
    while shards <= devices:
        weights = device.value_bytes * shape.parameters / shards
        activations = _activations(shape, device.value_bytes)
        kv_token = device.value_bytes * shape.kv_values / shards
        room = USABLE_MEMORY * device.memory_bytes - weights - activations
        if room >= kv_token * max(longest, 1):
            kv_tokens = int(room / kv_token)
            return Memory(shards=shards, weights=weights, activations=activations, kv_cache=room, kv_tokens=kv_tokens)
        shards *= 2
    return None


def _activations(shape: Shape, value_bytes: int) -> float:
    """The largest intermediate values of one step, and the logits of its last tokens in float32."""
    values = BATCH_TOKENS * (2 * shape.intermediate + 4 * shape.hidden)
    return value_bytes * values + 4.0 * MAX_SEQUENCES * shape.vocabulary
