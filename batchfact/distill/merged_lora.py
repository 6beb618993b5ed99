"""LoRA layers that multiply by one matrix, the base's with the adapter's product merged in.

A model of PEFT flows in and computes the same as before, up to the rounding of the merged matrix, which is that of the
model that is exported. A small model's layers are so narrow that PEFT's two further products and their element-wise
steps cost as much as the layer itself on a CPU; here only the gradient needs products of the adapter's rank.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora import Linear

ADAPTER = "default"
"""PEFT's name of the one adapter that is trained."""


class MergedLinear(torch.autograd.Function):  # type: ignore[misc]  # torch has no types for mypy here
    """y = x (W + B A)^T, with gradients for x, A and B alone."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Args: x (tokens, in), weight (out, in), down (rank, in) and up (out, rank), of one dtype."""
        merged = torch.addmm(weight, up, down)
        ctx.save_for_backward(x, merged, down, up)
        return x @ merged.T

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (x, merged, down, up), (grad,) = ctx.saved_tensors, grads
        of_x = grad @ merged if ctx.needs_input_grad[0] else None
        return of_x, None, (grad @ up).T @ x, grad.T @ (x @ down.T)


class MergedLayer:
    """A LoRA layer's forward: (..., in) to (..., out). It merges anew each time, whatever has changed the adapter."""

    def __init__(self, layer: Any) -> None:
        self._base = layer.get_base_layer()
        self._down, self._up = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
        self._scale: float = layer.scaling[ADAPTER]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self._base.weight, self._base.bias
        down, up = self._down.to(weight.dtype), (self._scale * self._up).to(weight.dtype)
        y: torch.Tensor = MergedLinear.apply(x.reshape(-1, x.shape[-1]).to(weight.dtype), weight, down, up)
        y = y.view(*x.shape[:-1], -1)
        return y if bias is None else y + bias


def merge_while_training(model: Any) -> None:
    """Have all LoRA layers of a model compute with merged matrices.

    Raises: ValueError for layers with a dropout, a transposed weight or another kind of LoRA.
    """
    for module in model.modules():
        if isinstance(module, Linear):
            dropout = module.lora_dropout[ADAPTER]
            if not isinstance(dropout, torch.nn.Identity) or module.use_dora.get(ADAPTER):
                raise ValueError("layers with dropout or DoRA cannot be merged while they are trained")
            if module.fan_in_fan_out or module.lora_B[ADAPTER].bias is not None:
                raise ValueError("layers with transposed weights or a bias of LoRA's own are not merged")
            module.forward = MergedLayer(module)
