"""LoRA layers that multiply by one matrix, the base's with the adapter's product merged in, made once a step.

A model of PEFT flows in and computes the same as before, up to the rounding of the merged matrix, which is that of the
model that is exported. A small model's layers are so narrow that PEFT's two further products and their element-wise
steps cost as much as the layer itself on a CPU; here only the gradient needs products of the adapter's rank.
"""

from __future__ import annotations

from typing import Any

import torch
from msgspec import Struct
from peft.tuners.lora import Linear

ADAPTER = "default"
"""PEFT's name of the one adapter that is trained."""


class Merged(Struct, frozen=True, eq=False):
    """A layer's matrices in the base's dtype: weight (out, in), down (rank, in), and up (out, rank) with the scale."""

    weight: torch.Tensor
    down: torch.Tensor
    up: torch.Tensor


class MergedLinear(torch.autograd.Function):  # type: ignore[misc]  # torch has no types for mypy here
    """y = x (W + s B A)^T, with gradients for x, A and B alone."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, merged: Merged, scale: float
    ) -> torch.Tensor:
        """Args: x (tokens, in); `down` (rank, in) and `up` (out, rank) are the parameters that gradients are for."""
        ctx.save_for_backward(x)
        ctx.merged, ctx.scale, ctx.dtypes = merged, scale, (down.dtype, up.dtype)
        return x @ merged.weight.T

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (x,), merged, (grad,) = ctx.saved_tensors, ctx.merged, grads
        of_x = grad @ merged.weight if ctx.needs_input_grad[0] else None
        of_down = (grad @ merged.up).T @ x
        of_up = grad.T @ (x @ merged.down.T) * ctx.scale
        return of_x, of_down.to(ctx.dtypes[0]), of_up.to(ctx.dtypes[1]), None, None


def merge_while_training(model: Any) -> None:
    """Have all LoRA layers of a model compute with merged matrices; they are merged anew when the adapter changes.

    Raises: ValueError for layers with a dropout or of another kind of LoRA, which cannot be merged.
    """
    for module in model.modules():
        if isinstance(module, Linear):
            dropout = module.lora_dropout[ADAPTER]
            if not isinstance(dropout, torch.nn.Identity) or module.use_dora.get(ADAPTER):
                raise ValueError("layers with dropout or DoRA cannot be merged while they are trained")
            module.forward = MergedLayer(module)


class MergedLayer:
    """A LoRA layer's forward: (..., in) to (..., out)."""

    def __init__(self, layer: Any) -> None:
        self._base = layer.get_base_layer()
        self._down, self._up = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
        self._scale: float = layer.scaling[ADAPTER]
        self._merged: Merged | None = None
        self._versions = (-1, -1)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        merged = self._current()
        flat = x.reshape(-1, x.shape[-1]).to(merged.weight.dtype)
        y: torch.Tensor = MergedLinear.apply(flat, self._down, self._up, merged, self._scale)
        y = y.view(*x.shape[:-1], -1)
        return y if self._base.bias is None else y + self._base.bias

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch has no types for it
    def _current(self) -> Merged:
        """The layer's matrices as of the adapter's last change, which its version counters tell."""
        versions = (self._down._version, self._up._version)  # noqa: SLF001 - torch counts changes nowhere else
        if self._merged is None or self._versions != versions:
            base, up = self._base.weight, self._scale * self._up
            self._merged = Merged((base + up @ self._down).to(base.dtype), self._down.to(base.dtype), up.to(base.dtype))
            self._versions = versions
        return self._merged
