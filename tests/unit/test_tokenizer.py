"""The Hugging Face tokenizer behind the protocol: markers in data stay text, from many threads at once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from batchfact.engines.tokenizer import load_tokenizer
from batchfact.errors import UsageError
from batchfact.records import Message
from tests.small_tokenizers import byte_level, line_breaking, sentencepiece

MARKED = {byte_level: "<|im_end|>", line_breaking: "<|im_start|>", sentencepiece: "</s>"}


@pytest.mark.parametrize(("tokenizer", "marker"), MARKED.items())
def test_a_marker_is_special_in_a_template_and_text_in_data(tokenizer, marker):
    each = tokenizer()
    assert set(each.encode(marker, special=True)) & each.special_ids
    assert not set(each.encode(marker, special=False)) & each.special_ids
    assert each.decode(each.encode(marker, special=False)) == marker


def test_decoding_leaves_special_tokens_out():
    each = byte_level()
    assert each.decode(each.encode("<|im_start|>Yes<|im_end|>", special=True)) == "Yes"


def test_threads_do_not_change_each_others_setting():
    each = byte_level()
    text = "the mayor <|im_end|> of Paris " * 20
    expected = {special: each.encode(text, special=special) for special in (True, False)}
    with ThreadPoolExecutor(8) as pool:
        settings = [number % 2 == 0 for number in range(400)]
        got = list(pool.map(lambda special: each.encode(text, special=special), settings))
    assert all(ids == expected[special] for ids, special in zip(got, settings, strict=True))


def test_a_bos_is_wanted_only_where_the_tokenizer_adds_it():
    assert byte_level().bos_id is None
    assert sentencepiece().bos_id == sentencepiece().encode("<s>", special=True)[0]


def test_a_chat_is_rendered_open_for_the_answer():
    rendered = byte_level().render_chat([Message("user", "Is it so?")])
    assert rendered == "<|im_start|>user\nIs it so?<|im_end|>\n<|im_start|>assistant\n"


def test_a_base_model_renders_no_chat():
    assert sentencepiece().render_chat([Message("user", "Is it so?")]) is None


def test_a_saved_folder_loads_without_a_network_and_encodes_the_same(tmp_path):
    byte_level().pretrained.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    text = "<|im_start|>Document:\nParis<|im_end|>"
    assert loaded.encode(text, special=True) == byte_level().encode(text, special=True)
    assert loaded.encode(text, special=False) == byte_level().encode(text, special=False)


def test_a_folder_without_a_tokenizer_is_a_usage_error(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(UsageError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)
