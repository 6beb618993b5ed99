"""The safetensors format, read and written with numpy alone: a header's length, the header as JSON, the tensors.

It is this short, while its library has no numpy type for bfloat16. Tensors of it are their bits, as uint16.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint16]
Array = npt.NDArray[Any]

DTYPES: Mapping[str, Any] = {"BF16": np.dtype("<u2"), "F16": np.dtype("<f2"), "F32": np.dtype("<f4")}


def to_bfloat16(array: npt.NDArray[np.floating[Any]]) -> Bits:
    """The bits of finite `array` in bfloat16, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def to_float32(array: Array, dtype: str) -> npt.NDArray[np.float32]:
    """The values of a tensor as `TensorFile` gives it, which float32 holds exactly."""
    if dtype == "BF16":
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array.astype(np.float32)


class TensorFile:
    """A safetensors file whose tensors are read when they are asked for.

    Raises: ValueError for a file that is no safetensors file; OSError if it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
        size = int.from_bytes(self._bytes[:8].tobytes(), "little")
        if len(self._bytes) < 8 + size or size == 0:
            raise ValueError(f"{path} is no safetensors file, or was cut off")
        self._header: dict[str, dict[str, Any]] = json.loads(self._bytes[8 : 8 + size].tobytes())
        self._header.pop("__metadata__", None)
        self._start = 8 + size
        if self._start + max((each["data_offsets"][1] for each in self._header.values()), default=0) > len(self._bytes):
            raise ValueError(f"{path} was cut off")

    def __iter__(self) -> Iterator[str]:
        """The tensors' names, as the file lays them out."""
        return iter(sorted(self._header, key=lambda name: self._header[name]["data_offsets"]))

    def shape_of(self, name: str) -> tuple[int, ...]:
        return tuple(self._header[name]["shape"])

    def dtype_of(self, name: str) -> str:
        return str(self._header[name]["dtype"])

    def raw(self, name: str) -> Array:
        """A tensor's bytes."""
        start, end = self._header[name]["data_offsets"]
        return self._bytes[self._start + start : self._start + end]

    def read(self, name: str) -> Array:
        """A tensor of a type in DTYPES, in its shape. Raises: ValueError for another type."""
        if self.dtype_of(name) not in DTYPES:
            raise ValueError(f"the tensor {name} is {self.dtype_of(name)}, which is none of {', '.join(DTYPES)}")
        return self.raw(name).view(DTYPES[self.dtype_of(name)]).reshape(self.shape_of(name))


class TensorWriter:
    """Writes tensors one after the other to a file whose names, types and shapes are known beforehand."""

    def __init__(self, path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        """`tensors` are types (of DTYPES) and shapes by name, in the order in which they will come."""
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, (dtype, shape) in tensors.items():
            start, end = end, end + DTYPES[dtype].itemsize * int(np.prod(shape, dtype=np.int64))
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        packed = json.dumps(header, separators=(",", ":")).encode()
        packed += b" " * (-len(packed) % 8)  # tensors start at a multiple of 8 bytes
        self._file = path.open("wb")
        self._file.write(len(packed).to_bytes(8, "little") + packed)

    def write(self, array: Array) -> None:
        self._file.write(np.ascontiguousarray(array).data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def write_safetensors(path: Path, weights: Mapping[str, Bits]) -> None:
    """Write bfloat16 bits, sorted by name."""
    names = sorted(weights)
    with TensorWriter(path, {name: ("BF16", weights[name].shape) for name in names}) as file:
        for name in names:
            file.write(weights[name].astype("<u2", copy=False))
