"""What every kernel's file gives: arms that compute the same thing, what that needs, and how to compare results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from batchfact.engines.model_facts import cpu_has_bfloat16

Device = Literal["cpu", "cuda"]
Size = Literal["tiny", "full"]
"""`tiny` is for tests of correctness, and is never timed."""


class MismatchError(AssertionError):
    """A candidate does not give what the reference gives."""


class Cost(Struct, frozen=True):
    """The least that the work needs: FLOPs, bytes moved through memory, bytes that a disk must have."""

    flops: float = 0.0
    bytes: float = 0.0
    disk_bytes: float = 0.0


class Arm(Struct, frozen=True):
    """One way to do the work: `run` takes no arguments, may be called again, and returns what can be compared."""

    name: str
    run: Callable[[], Any]
    cost: Cost


class Kernel(Struct, frozen=True, kw_only=True):
    """One piece of work at one shape.

    `check(expected, found)` raises MismatchError; `skipped` are arms, each with the reason.
    """

    shape: str
    reference: Arm
    candidates: tuple[Arm, ...]
    check: Callable[[Any, Any], None]
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def arms(self) -> tuple[Arm, ...]:
        return (self.reference, *self.candidates)


class Place(Struct, frozen=True, kw_only=True):
    """Where kernels are made: on which device, how large, and a folder for files."""

    device: Device
    size: Size
    folder: Path

    @property
    def is_tiny(self) -> bool:
        return self.size == "tiny"

    @property
    def dtype(self) -> str:
        """What an engine would compute in there; exact in tests."""
        has_bfloat16 = self.device == "cuda" or cpu_has_bfloat16()
        return "bfloat16" if has_bfloat16 and not self.is_tiny else "float32"


MakeKernels = Callable[[Place], Iterator[Kernel]]


def same(expected: Any, found: Any) -> None:
    """For results that must be equal."""
    if expected != found:
        raise MismatchError("the candidate's result differs from the reference's")


def close(expected: Any, found: Any) -> None:
    """For tensors: the difference is small beside the result, as a whole and by the dtype of what was found."""
    import torch

    limit = 2e-2 if found.dtype in (torch.bfloat16, torch.float16) else 1e-4
    expected, found = expected.float(), found.float()
    error = float((expected - found).norm() / expected.norm().clamp(min=1e-12))
    if not error <= limit:
        raise MismatchError(f"relative error {error:.2g} is above {limit}")
