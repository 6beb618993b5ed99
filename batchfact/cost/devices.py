"""What a device can do: from the shipped table, from a measurement's file, or measured here and now.

A name flows in; peak FLOP/s, bandwidth and memory flow out. Models and inputs are unknown here.
"""

from __future__ import annotations

import json
import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct, ValidationError, convert

from batchfact.errors import UsageError, nearest

CPU = "cpu"
MEASURED_SHARE = 0.6
"""Share of a measured matrix-product ceiling that prefill reaches, before one's own run has told: `bench plan` does."""


class Ceilings(Struct, frozen=True):
    """What was measured: matrix products (FLOP/s) and copies (bytes/s, read and written counted)."""

    flops_per_s: float
    bytes_per_s: float


class Device(Struct, frozen=True, kw_only=True):
    """`flops_per_s` at bfloat16, dense; `prefill_share` of it is what prefill is expected to reach.

    `value_bytes` is what a weight and a number of the KV cache take there: 4 on a CPU that computes in float32.
    """

    name: str
    memory_bytes: float
    flops_per_s: float
    bytes_per_s: float
    prefill_share: float
    source: str
    value_bytes: int = 2

    @property
    def is_cpu(self) -> bool:
        return self.name == CPU

    @property
    def block_tokens(self) -> int:
        """Tokens of a block of vLLM's prefix cache there."""
        return 32 if self.is_cpu else 16


class _Sheet(Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of devices.toml; its head says what the numbers mean."""

    memory_gb: float
    bf16_tflops: float
    bandwidth_gb_s: float
    prefill_share: float
    source: str


class _Measured(Struct, frozen=True):
    """The part of a kernels_bench result that is read: the rest is for people."""

    device: str
    ceilings: Ceilings


@cache
def known_devices() -> dict[str, Device]:
    """The shipped table, by name."""
    text = files(__package__).joinpath("devices.toml").read_text(encoding="utf-8")
    return {
        name: Device(
            name=name,
            memory_bytes=sheet.memory_gb * 1e9,
            flops_per_s=sheet.bf16_tflops * 1e12,
            bytes_per_s=sheet.bandwidth_gb_s * 1e9,
            prefill_share=sheet.prefill_share,
            source=sheet.source,
        )
        for name, sheet in convert(tomllib.loads(text), dict[str, _Sheet]).items()
    }


def find_device(name: str, measured: Path | None = None, *, cpu_dtype: str = "bfloat16") -> Device:
    """The device of that name; `cpu` is this machine's, measured within a second or two, or by `measured`.

    Args:
        measured: a result of `python -m kernels_bench --json FILE` on that device, which replaces the data sheet.
        cpu_dtype: what an engine computes in on this CPU.
    Raises: UsageError for an unknown name, a file of another kind of device, or a CPU without torch to measure it.
    """
    is_cpu = name.lower() == CPU
    by_name = {known.lower(): device for known, device in known_devices().items()}
    sheet = by_name.get(name.lower())
    if sheet is None and not is_cpu:
        known = [*known_devices(), CPU]
        raise UsageError(f"--device {name} is not known, only {', '.join(known)}{nearest(name, known)}")
    if measured is not None:
        ceilings, source = read_ceilings(measured, is_cpu=is_cpu), f"measured: {measured}"
    elif sheet is None:
        from batchfact.cost.probe import measure_cpu

        ceilings, source = measure_cpu(cpu_dtype), "measured now, on this machine"
    else:
        return sheet
    return Device(
        name=sheet.name if sheet else CPU,
        memory_bytes=sheet.memory_bytes if sheet else psutil.virtual_memory().total,
        flops_per_s=ceilings.flops_per_s,
        bytes_per_s=ceilings.bytes_per_s,
        prefill_share=MEASURED_SHARE,
        source=source,
        value_bytes=4 if is_cpu and cpu_dtype == "float32" else 2,
    )


def read_ceilings(path: Path, *, is_cpu: bool) -> Ceilings:
    """Raises: UsageError for a file that is no result of kernels_bench, or one of another kind of device."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found = convert(content, _Measured)
    except (OSError, ValueError, ValidationError) as error:
        raise UsageError(f"--measured {path} is no result of `python -m kernels_bench --json`: {error}") from error
    if (found.device == CPU) != is_cpu:
        raise UsageError(f"--measured {path} was measured on {found.device!r}, which is not what --device names")
    if min(found.ceilings.flops_per_s, found.ceilings.bytes_per_s) <= 0:
        raise UsageError(f"--measured {path} has a ceiling that is not above 0")
    return found.ceilings
