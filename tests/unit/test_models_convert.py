from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from batchfact.models.convert import convert_gguf, pair_halves
from batchfact.models.folder import problem_with
from batchfact.models.tensor_files import to_bfloat16, write_safetensors
from tests.unit import tiny_gguf


def interleave_halves(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """The order that GGUF files of Llama models have: row 0 of the first half, row 0 of the second half, row 1, ..."""
    head = weight.shape[0] // num_heads
    order = [
        h * head + half * (head // 2) + row for h in range(num_heads) for row in range(head // 2) for half in (0, 1)
    ]
    return weight[order]


def test_rotary_rows_come_back_in_the_order_that_transformers_wants():
    weight = np.arange(24 * 5, dtype=np.float32).reshape(24, 5)
    assert np.array_equal(pair_halves(interleave_halves(weight, 3), 3), weight)
    assert not np.array_equal(interleave_halves(weight, 3), weight)


def test_bfloat16_bits_equal_torchs_for_every_kind_of_rounding():
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(1)
    ties = (np.arange(0x3F80, 0x4080, dtype=np.uint32) << 16 | 0x8000).view(np.float32)
    values = np.concatenate(
        [draw.standard_normal(10_000).astype(np.float32), ties, -ties, np.array([0, -0.0, 1e-40], np.float32)]
    )
    wanted = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
    assert np.array_equal(to_bfloat16(values), wanted)


def test_written_safetensors_are_read_back_by_the_library(tmp_path: Path):
    safetensors = pytest.importorskip("safetensors.torch")
    weights = {"b": np.array([[0x3F80, 0x4000, 0xBF80]], np.uint16), "a": np.array([0x3F00], np.uint16)}
    write_safetensors(tmp_path / "x.safetensors", weights)
    loaded = safetensors.load_file(tmp_path / "x.safetensors")
    assert {name: tensor.tolist() for name, tensor in loaded.items()} == {"a": [0.5], "b": [[1.0, 2.0, -1.0]]}
    assert {str(tensor.dtype) for tensor in loaded.values()} == {"torch.bfloat16"}


def test_a_converted_model_gives_the_logits_of_the_model_it_was_made_from(tmp_path: Path):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    original = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tiny_gguf.TOKENS),
            hidden_size=tiny_gguf.HIDDEN,
            intermediate_size=tiny_gguf.MLP,
            num_hidden_layers=tiny_gguf.LAYERS,
            num_attention_heads=tiny_gguf.HEADS,
            num_key_value_heads=tiny_gguf.KV_HEADS,
            max_position_embeddings=128,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
        )
    )
    for tensor in original.parameters():
        tensor.data = (torch.randn_like(tensor) / 2).to(torch.bfloat16).float()
    ours = {name.removesuffix(".weight"): tensor.numpy() for name, tensor in original.state_dict().items()}
    packed = {name: ours[transformers_name(name)] for name in tiny_gguf.shapes()}
    for part, heads in (("attn_q", tiny_gguf.HEADS), ("attn_k", tiny_gguf.KV_HEADS)):
        packed |= {name: interleave_halves(array, heads) for name, array in packed.items() if part in name}
    folder = tmp_path / "model"
    folder.mkdir()
    convert_gguf(tiny_gguf.write_gguf(tmp_path / "x.gguf", packed), folder)

    assert AutoModelForCausalLM.from_pretrained(folder).dtype == torch.bfloat16
    converted = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.arange(8)[None]
    with torch.no_grad():
        assert torch.equal(converted(ids).logits, original(ids).logits)


def transformers_name(gguf_name: str) -> str:
    names = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
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
    parts = gguf_name.split(".")
    return f"model.layers.{parts[1]}.{names[parts[2]]}" if parts[0] == "blk" else names[parts[0]]


def test_a_converted_folder_is_complete_and_says_what_the_file_said(tmp_path: Path):
    convert_gguf(tiny_gguf.write_gguf(tmp_path / "x.gguf", quantized=True), out := made(tmp_path / "model"))
    config = json.loads((out / "config.json").read_text())
    assert problem_with(out) is None
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_parameters"] == {"rope_theta": 10000.0, "rope_type": "default"}
    assert (config["bos_token_id"], config["eos_token_id"], config["tie_word_embeddings"]) == (1, 2, True)
    assert "quantization_config" not in config
    assert json.loads((out / "tokenizer_config.json").read_text())["chat_template"] == tiny_gguf.CHAT


def test_the_same_file_converts_to_the_same_bytes(tmp_path: Path):
    gguf = tiny_gguf.write_gguf(tmp_path / "x.gguf", quantized=True)
    for name in ("one", "two"):
        convert_gguf(gguf, made(tmp_path / name))
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes(), file.name


@pytest.mark.parametrize(("architecture", "pre"), [("qwen2", "smollm"), ("llama", "llama-bpe")])
def test_an_unknown_architecture_or_tokenizer_is_refused_and_not_guessed(tmp_path: Path, architecture: str, pre: str):
    gguf = tiny_gguf.write_gguf(tmp_path / "x.gguf", architecture=architecture, pre=pre)
    with pytest.raises(ValueError, match="qwen2" if architecture == "qwen2" else "llama-bpe"):
        convert_gguf(gguf, made(tmp_path / "model"))


def test_a_tensor_without_a_place_is_refused(tmp_path: Path):
    weights = tiny_gguf.tensors() | {"blk.0.attn_q.bias": np.zeros(4, np.float32)}
    with pytest.raises(ValueError, match=r"attn_q\.bias"):
        convert_gguf(tiny_gguf.write_gguf(tmp_path / "x.gguf", weights), made(tmp_path / "model"))


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder
