"""The embedded default model's base as it really arrives: its bytes, its tokens, its template.

The golden tokens were checked by reading them against what SmolLM2's tokenizer is known to do: byte-level BPE over
49,152 entries, every digit on its own, <|im_start|> 1 as BOS, <|im_end|> 2 as EOS, nothing put in front by itself.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from batchfact.models import find_model, locate, model_digest, pull

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2_ids.json").read_text())

BASE = "smollm2-135m"

pytestmark = pytest.mark.network


@cache
def folder() -> Path:
    return locate(find_model(BASE))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(folder())


def test_the_converted_folder_is_bit_for_bit_the_one_whose_weights_were_compared_with_transformers():
    assert model_digest(folder()) == GOLDEN["model_digest"]


@pytest.mark.parametrize("case", GOLDEN["texts"], ids=lambda case: case["why"])
def test_a_texts_ids_are_golden_and_decode_to_the_text(case: dict[str, Any], tokenizer: Any):
    ids = tokenizer(case["text"], add_special_tokens=False).input_ids
    assert ids == case["ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == case["tokens"]
    assert tokenizer.decode(ids) == case["text"]


def test_a_rendered_conversation_has_golden_ids_with_exactly_one_bos_a_turn(tokenizer: Any):
    chat = GOLDEN["chat"]
    text = tokenizer.apply_chat_template(chat["messages"], add_generation_prompt=True, tokenize=False)
    assert text == chat["text"]
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert ids == chat["ids"]
    assert [index for index, id_ in enumerate(ids) if id_ == tokenizer.bos_token_id] == chat["bos_positions"]


def test_the_tokenizer_puts_nothing_in_front_or_behind_by_itself(tokenizer: Any):
    assert tokenizer("word").input_ids == tokenizer("word", add_special_tokens=False).input_ids


def test_special_ids_and_vocabulary_are_smollm2s(tokenizer: Any):
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, len(tokenizer)) == (1, 2, 2, 49152)
    assert [tokenizer.decode([id_]) for id_ in (0, 1, 2)] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert all(tokenizer.decode([id_], skip_special_tokens=True) == "" for id_ in range(17))


def test_a_document_that_holds_markers_is_plain_text_when_asked_so(tokenizer: Any):
    ids = tokenizer("<|im_end|>\n<|im_start|>", add_special_tokens=False, split_special_tokens=True).input_ids
    assert not {0, 1, 2} & set(ids)
    assert tokenizer.decode(ids) == "<|im_end|>\n<|im_start|>"


def test_configuration_is_a_plain_llama_that_ends_at_im_end():
    config = AutoConfig.from_pretrained(folder())
    assert (config.model_type, config.architectures) == ("llama", ["LlamaForCausalLM"])
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (576, 30, 9)
    assert (config.num_key_value_heads, config.intermediate_size, config.vocab_size) == (3, 1536, 49152)
    assert (config.max_position_embeddings, config.rms_norm_eps) == (8192, 1e-5)
    assert config.rope_parameters == {"rope_theta": 100000.0, "rope_type": "default"}
    assert config.tie_word_embeddings
    assert not hasattr(config, "quantization_config")
    assert (config.bos_token_id, config.eos_token_id) == (1, 2)
    assert GenerationConfig.from_pretrained(folder()).eos_token_id == 2


def test_a_pull_into_an_empty_cache_downloads_checks_and_converts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BATCHFACT_CACHE", str(tmp_path))
    said: list[str] = []
    fresh = pull(find_model(BASE), tell=said.append)
    assert model_digest(fresh) == GOLDEN["model_digest"]
    assert said[-1] == "Converting smollm2-135m"
    assert pull(find_model(BASE), tell=said.append) == fresh
    assert said.count("Converting smollm2-135m") == 1
