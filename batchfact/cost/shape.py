"""A model's shape from its config.json, and what one token costs in it.

All decoders of Llama's architecture are counted exactly: every matrix product of a layer, attention by the number of
positions that it looks at, and the label head. Norms, rotary embedding and activations are left out; they are bound by
bandwidth and are well below one hundredth of the FLOPs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec import Struct

from batchfact.errors import UsageError

LLAMA_LIKE = frozenset({"llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma", "granite", "olmo2"})
"""`model_type`s whose layers are attention with grouped heads and an MLP of three matrices."""


class Shape(Struct, frozen=True, kw_only=True):
    """The numbers that decide a decoder's cost; `is_tied` means that the label head is the embedding."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    is_tied: bool = False

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer's matrix products: queries and output, keys and values, the MLP's three."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def linear_parameters(self) -> int:
        """Weights that every token passes: all layers, without embedding and label head."""
        return self.layers * self.layer_parameters

    @property
    def parameters(self) -> int:
        """All weights, but for norms and biases."""
        return self.linear_parameters + (1 if self.is_tied else 2) * self.vocabulary * self.hidden

    @property
    def kv_values(self) -> int:
        """Numbers that the KV cache holds for one token of context."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def linear_flops(self, tokens: float) -> float:
        return 2.0 * self.linear_parameters * tokens

    def attention_flops(self, attended: float) -> float:
        """Of scores and weighted values, where `attended` is the sum of positions that the tokens look at."""
        return 4.0 * self.layers * self.heads * self.head_dim * attended

    def head_flops(self, positions: float) -> float:
        """Of the label head at `positions`: an engine computes the whole vocabulary at a prompt's last token."""
        return 2.0 * self.hidden * self.vocabulary * positions


def read_shape(folder: Path) -> Shape:
    """The shape that a folder's config.json describes.

    Raises: UsageError where there is none, or for an architecture whose cost is not known here.
    """
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder} holds no model: its config.json cannot be read ({error})") from error
    kind = str(config.get("model_type"))
    if kind not in LLAMA_LIKE:
        raise UsageError(
            f"the cost of a model of type {kind!r} is not known, only of {', '.join(sorted(LLAMA_LIKE))}; "
            "leave out --device to count tokens alone"
        )
    needed = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
    missing = [name for name in needed if not isinstance(config.get(name), int)]
    if missing:
        raise UsageError(f"{folder / 'config.json'} does not say {', '.join(missing)}, which --device needs")
    layers, hidden, heads, intermediate, vocabulary = (int(config[name]) for name in needed)
    return Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        intermediate=intermediate,
        vocabulary=vocabulary,
        is_tied=bool(config.get("tie_word_embeddings", kind == "gemma")),
    )
