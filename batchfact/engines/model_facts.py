"""What a model folder's config.json says to an engine: data type, context, size of the KV cache, architecture.

A folder flows in; facts flow out, without the weights and without a model library.
"""

from __future__ import annotations

import json
from pathlib import Path

from msgspec import Struct

from batchfact.engines.base import EngineSpec
from batchfact.errors import UsageError

DEFAULT_MAX_MODEL_LEN = 8192
"""Tokens; a longer context is asked for, because every token of it needs room in the KV cache."""


class ModelFacts(Struct, frozen=True, kw_only=True):
    """What config.json says: `dtype` of the weights, `max_tokens` of the context, `kv_values` per token of context.

    `max_tokens` is None where nothing bounds the context, as with relative positions.
    """

    dtype: str | None
    quantization: str | None
    max_tokens: int | None
    kv_values: int | None
    is_encoder_decoder: bool = False


def read_model(folder: Path) -> ModelFacts:
    """Facts of a model folder, from its config.json alone.

    Raises: UsageError where there is no readable config.json.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder} holds no model: its config.json cannot be read ({error})") from error
    text = config.get("text_config") or config
    heads = text.get("num_attention_heads")
    head_dim = text.get("head_dim") or (text["hidden_size"] // heads if heads and "hidden_size" in text else None)
    has_bound = "relative_attention_num_buckets" not in text  # T5's n_positions is only what it was trained at
    layers, kv_heads = text.get("num_hidden_layers"), text.get("num_key_value_heads") or heads
    return ModelFacts(
        dtype=text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype"),
        quantization=(config.get("quantization_config") or {}).get("quant_method"),
        max_tokens=(text.get("max_position_embeddings") or text.get("n_positions") or text.get("max_seq_len"))
        if has_bound
        else None,
        kv_values=2 * layers * kv_heads * head_dim if layers and kv_heads and head_dim else None,
        is_encoder_decoder=bool(config.get("is_encoder_decoder")),
    )


def resolve_dtype(spec: EngineSpec, facts: ModelFacts, *, is_cpu: bool) -> str:
    """The dtype that the engine computes in, decided before it starts so that a run's identity can hold it.

    On a CPU, bfloat16 pays only with instructions for it: without, it was measured several times slower than float32.
    """
    if spec.dtype not in (None, "auto"):
        return str(spec.dtype)
    if is_cpu and not (spec.quantization or facts.quantization):
        return "bfloat16" if cpu_has_bfloat16() else "float32"
    return facts.dtype if facts.dtype in ("bfloat16", "float16") else "bfloat16"


def no_encoder_decoder(name: str) -> str:
    return f"{name} is an encoder-decoder model, which vLLM does not run; use --engine transformers, or auto"


def cpu_has_bfloat16() -> bool:
    try:
        words = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return False
    return not words.isdisjoint({"amx_bf16", "avx512_bf16", "bf16"})
