"""A GGUF file of a Llama model becomes a folder that vLLM and transformers load: safetensors, config, tokenizer.

Written directly, without building the model: it needs neither torch nor accelerate, takes seconds and gives the same
bytes everywhere, so that the model's digest is the same on every machine. It knows the one family and the one tokenizer
of the embedded default model, and refuses others rather than guess.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from batchfact.models.tensor_files import to_bfloat16, write_safetensors

# Raised whenever the folder's content changes, so that a cache made by an older conversion is not taken for this one's.
CONVERSION = 1

NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL_TOKEN = 3


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write `gguf` as bf16 safetensors with config.json, generation_config.json and tokenizer files into `folder`.

    Raises: ValueError for an architecture, tokenizer or tensor that this conversion does not know.
    """
    from gguf import GGUFReader

    reader = GGUFReader(gguf)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    if facts["general.architecture"] != "llama":
        raise ValueError(f"the GGUF file's architecture {facts['general.architecture']!r} is not 'llama'")
    weights = dict(_weights(reader, facts))
    config = _config(facts, tied="lm_head.weight" not in weights)
    write_safetensors(folder / "model.safetensors", weights)
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", {key: config[key] for key in ("bos_token_id", "eos_token_id")})
    _write(folder / "tokenizer.json", _tokenizer(facts))
    _write(folder / "tokenizer_config.json", _tokenizer_config(facts))


def _weights(reader: Any, facts: dict[str, Any]) -> Iterator[tuple[str, npt.NDArray[np.uint16]]]:
    from gguf import dequantize

    heads = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    for tensor in reader.tensors:
        array = dequantize(tensor.data, tensor.tensor_type)
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor.name)
        if layer and layer[2] in heads:
            array = pair_halves(array, heads[layer[2]])
        if layer and layer[2] in LAYER_NAMES:
            yield f"model.layers.{layer[1]}.{LAYER_NAMES[layer[2]]}.weight", to_bfloat16(array)
        elif tensor.name in NAMES:
            yield NAMES[tensor.name], to_bfloat16(array)
        else:
            raise ValueError(f"the GGUF file holds a tensor that a Llama model has no place for: {tensor.name}")


def pair_halves(weight: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Undo GGUF's order of the rotary dimensions: there the two halves of a head interleave, row by row.

    `weight` is (num_heads * head_dim, hidden); transformers wants each head's first halves before its second ones.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _config(facts: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    heads = facts["llama.attention.head_count"]
    theta = facts["llama.rope.freq_base"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "dtype": "bfloat16",
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "head_dim": facts["llama.embedding_length"] // heads,
        "hidden_act": "silu",
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "max_position_embeddings": facts["llama.context_length"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": facts["llama.block_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
        # GGUF keeps a float32: its shortest decimal form is the number that the model's authors wrote.
        "rms_norm_eps": float(str(np.float32(facts["llama.attention.layer_norm_rms_epsilon"]))),
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "rope_theta": theta,
        "tie_word_embeddings": tied,
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
    }


def _tokenizer(facts: dict[str, Any]) -> dict[str, Any]:
    """tokenizer.json of a byte-level BPE.

    GGUF only names the pre-tokenizer. transformers' own GGUF conversion ignores the name and so loses SmolLM's split of
    numbers into single digits, which gives other ids for every number in a document; hence it is spelt out here.
    """
    kind = (facts["tokenizer.ggml.model"], facts["tokenizer.ggml.pre"])
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"the GGUF file's tokenizer {kind} is not ('gpt2', 'smollm')")
    tokens = facts["tokenizer.ggml.tokens"]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": id_, "content": tokens[id_], "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for id_ in _control_ids(facts)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            ],
        },
        # Nothing is put in front: the chat template writes <|im_start|>, which is the BOS, itself.
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: id_ for id_, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in facts["tokenizer.ggml.merges"]],
        },
    }


def _tokenizer_config(facts: dict[str, Any]) -> dict[str, Any]:
    tokens = facts["tokenizer.ggml.tokens"]
    return {
        "add_bos_token": facts["tokenizer.ggml.add_bos_token"],
        "add_prefix_space": facts["tokenizer.ggml.add_space_prefix"],
        "bos_token": tokens[facts["tokenizer.ggml.bos_token_id"]],
        "chat_template": facts["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[facts["tokenizer.ggml.eos_token_id"]],
        "model_max_length": facts["llama.context_length"],
        "pad_token": tokens[facts["tokenizer.ggml.padding_token_id"]],
        # The class that takes tokenizer.json as it is; a model's own class may rebuild it and lose the digits again.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": tokens[facts["tokenizer.ggml.unknown_token_id"]],
    }


def _control_ids(facts: dict[str, Any]) -> list[int]:
    return [id_ for id_, kind in enumerate(facts["tokenizer.ggml.token_type"]) if kind == CONTROL_TOKEN]


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2, sort_keys=False) + "\n", encoding="utf-8")
