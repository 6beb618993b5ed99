"""A model that is a base with a low-rank adapter on it: merged into the base's weights once, in the cache.

The base's folder and a PEFT folder flow in; a folder of safetensors like any other model's flows out. Engines then know
nothing of adapters. The sums are made in float64 and rounded once, so that the bytes, and with them the model's digest,
are the same on every machine. It needs neither torch nor peft.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from batchfact.errors import UsageError
from batchfact.models.folder import WEIGHTS, model_files
from batchfact.models.tensor_files import TensorFile, TensorWriter, to_bfloat16, to_float32

MERGE = 1
"""Raised whenever a merged folder's content changes, so that a cache made by an older merge is not taken for it."""
CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."


class AdapterConfig(Struct, frozen=True, kw_only=True):
    """What decides the sums of adapter_config.json."""

    peft_type: str = "LORA"
    r: int
    lora_alpha: float
    use_rslora: bool = False
    use_dora: bool = False
    fan_in_fan_out: bool = False
    lora_bias: bool = False
    bias: str = "none"
    modules_to_save: list[str] | None = None
    rank_pattern: dict[str, int] = {}
    alpha_pattern: dict[str, float] = {}

    @property
    def scale(self) -> float:
        return self.lora_alpha / (math.sqrt(self.r) if self.use_rslora else self.r)

    @property
    def unknown(self) -> str | None:
        """What the adapter has that is not merged here."""
        extras = {
            f"peft_type {self.peft_type}": self.peft_type != "LORA",
            "DoRA": self.use_dora,
            "fan_in_fan_out": self.fan_in_fan_out,
            "biases": self.lora_bias or self.bias != "none",
            "whole modules": bool(self.modules_to_save),
            "ranks that differ": bool(self.rank_pattern or self.alpha_pattern),
        }
        return next((name for name, is_there in extras.items() if is_there), None)


class Adapter:
    """An adapter's folder.

    Raises: UsageError if it is none, or has what cannot be merged here.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.config = msgspec.json.decode((folder / CONFIG).read_bytes(), type=AdapterConfig)
            self._file = TensorFile(folder / ADAPTER_WEIGHTS)
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            raise UsageError(f"{folder} is no readable adapter ({error})") from error
        if self.config.unknown:
            raise UsageError(f"the adapter {folder} has {self.config.unknown}, which is not merged; train plain LoRA")
        self._places = self._pair_up(list(self._file))

    def _pair_up(self, names: list[str]) -> Mapping[str, tuple[str, str]]:
        """For each weight of the base that changes, the names of its two factors."""
        ends = (".lora_A.weight", ".lora_B.weight")
        stems = {name.removesuffix(end) for name in names for end in ends if name.endswith(end)}
        if not stems or len(names) != 2 * len(stems) or not all(stem + end in names for stem in stems for end in ends):
            raise UsageError(f"the adapter {self.folder} holds other tensors than pairs of lora_A and lora_B")
        return {f"{stem.removeprefix(PREFIX)}.weight": (stem + ends[0], stem + ends[1]) for stem in sorted(stems)}

    @property
    def weights(self) -> frozenset[str]:
        """Names of the base's weights that it changes."""
        return frozenset(self._places)

    def shape_of(self, weight: str) -> tuple[int, ...]:
        a, b = self._places[weight]
        return self._file.shape_of(b)[0], self._file.shape_of(a)[1]

    def delta(self, weight: str) -> npt.NDArray[np.float64]:
        """What is added to a weight: B A times the scale, (out, in)."""
        a, b = (to_float32(self._file.read(name), self._file.dtype_of(name)) for name in self._places[weight])
        return (b.astype(np.float64) @ a.astype(np.float64)) * self.config.scale

    def write(self, folder: Path, *, base: str) -> None:
        """A copy in bfloat16, whose configuration names `base` and no path of this machine."""
        tensors = {name: ("BF16", self._file.shape_of(name)) for name in self._file}
        with TensorWriter(folder / ADAPTER_WEIGHTS, tensors) as file:
            for name in tensors:
                file.write(to_bfloat16(to_float32(self._file.read(name), self._file.dtype_of(name))))
        kept = msgspec.json.decode((self.folder / CONFIG).read_bytes())
        kept["base_model_name_or_path"] = base
        kept["target_modules"] = (
            sorted(kept["target_modules"]) if isinstance(kept.get("target_modules"), list) else None
        )
        (folder / CONFIG).write_bytes(msgspec.json.format(msgspec.json.encode(kept)) + b"\n")


def check_fit(base: Path, adapter: Adapter) -> None:
    """Raises: UsageError if the base lacks a weight, or has it in another shape: the adapter is another base's."""
    shapes = {name: file.shape_of(name) for file in map(TensorFile, sorted(base.glob(WEIGHTS))) for name in file}
    for name in sorted(adapter.weights):
        if shapes.get(name) != adapter.shape_of(name):
            here = f"has as {shapes[name]}" if name in shapes else "does not have"
            raise UsageError(
                f"the adapter {adapter.folder} changes {name}, {adapter.shape_of(name)}, which {base} {here}: it is "
                "another base's"
            )


def merge(base: Path, adapter: Adapter, folder: Path) -> None:
    """Write the base with the adapter added, in the base's own files and types, into `folder`.

    Raises: UsageError if the adapter does not fit the base.
    """
    check_fit(base, adapter)
    for file in model_files(base):
        if file.match(WEIGHTS):
            _merge_file(TensorFile(file), adapter, folder / file.name)
        else:
            shutil.copyfile(file, folder / file.name)


def _merge_file(source: TensorFile, adapter: Adapter, path: Path) -> None:
    with TensorWriter(path, {name: (source.dtype_of(name), source.shape_of(name)) for name in source}) as file:
        for name in source:
            file.write(_added(source, name, adapter) if name in adapter.weights else source.raw(name))


def _added(source: TensorFile, name: str, adapter: Adapter) -> npt.NDArray[np.generic]:
    dtype = source.dtype_of(name)
    total = to_float32(source.read(name), dtype).astype(np.float64) + adapter.delta(name)
    if dtype == "BF16":
        return to_bfloat16(total.astype(np.float32))
    return total.astype(np.float16 if dtype == "F16" else np.float32)
