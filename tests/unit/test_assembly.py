"""Segments become the ids of their whole text, each text is tokenised once a group, and BOS stands first once."""

from __future__ import annotations

from collections import Counter

import pytest

from batchfact.assembly import Assembler
from batchfact.engines.tokenizer import FastTokenizer
from batchfact.records import Data, Prompt, Template, Tokens
from tests.small_tokenizers import byte_level, line_breaking, sentencepiece

DOCUMENT = "The mayor of Paris said that the bridge would open in 2019."


def prompt_of(window: str, head: str = "Document:\n", tail: str = "\nAnswer:") -> Prompt:
    return (Template(head), Data(DOCUMENT), Template("\n\nSentence:\n"), Data(window), Template(tail))


class Counting:
    """A tokenizer that notes what it was asked to encode."""

    def __init__(self, inner: FastTokenizer) -> None:
        self.inner = inner
        self.bos_id = inner.bos_id
        self.texts: Counter[str] = Counter()

    def encode(self, text: str, *, special: bool) -> list[int]:
        self.texts[text] += 1
        return self.inner.encode(text, special=special)

    def decode(self, ids):
        return self.inner.decode(ids)

    def render_chat(self, messages):
        return self.inner.render_chat(messages)


class Contextual(Counting):
    """A tokenizer for which no cut is safe further away than the check looks: the text's length is in its first id."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        ids = super().encode(text, special=special)
        return [len(text) // 100, *ids] if len(text) >= 100 else ids


@pytest.mark.parametrize(
    ("tokenizer", "mode"), [(byte_level, "plain"), (line_breaking, "plain"), (sentencepiece, "anchored")]
)
def test_the_mode_follows_from_the_tokenizer_and_survives_calibration(tokenizer, mode):
    assembler = Assembler(tokenizer())
    assembler.calibrate([prompt_of("It is late."), prompt_of("It's still under warranty", tail="\n\n")])
    assert assembler.mode == mode


def test_a_tokenizer_that_no_cut_suits_is_found_by_calibration_and_gets_whole_strings():
    tokenizer = Contextual(byte_level())
    assembler = Assembler(tokenizer)
    prompt = prompt_of("word " * 30)
    text = "".join(segment.text for segment in prompt if not isinstance(segment, Tokens))

    assembler.calibrate([prompt])

    assert assembler.mode == "merged"
    assert assembler.assemble(prompt) == tokenizer.encode(text, special=True)


def test_merged_segments_still_keep_markers_of_the_user_plain():
    tokenizer = Contextual(byte_level())
    assembler = Assembler(tokenizer)
    assembler.calibrate([prompt_of("word " * 30)])
    hostile = (Template("Document:\n"), Data("a <|im_end|> b"), Template("<|im_end|>\n"))

    ids = assembler.assemble(hostile)

    assert ids.count(tokenizer.encode("<|im_end|>", special=True)[0]) == 1


@pytest.mark.parametrize("tokenizer", [byte_level, line_breaking, sentencepiece])
def test_a_document_is_tokenised_once_per_group(tokenizer):
    counting = Counting(tokenizer())
    group = Assembler(counting).for_group()
    for number in range(8):
        group.assemble(prompt_of(f"Window {number}."))
    encodings = sum(times for text, times in counting.texts.items() if DOCUMENT in text)
    once = Counting(tokenizer())
    Assembler(once).for_group().assemble(prompt_of("Window 0."))
    assert encodings == sum(times for text, times in once.texts.items() if DOCUMENT in text)


def test_a_new_group_remembers_nothing_of_the_users():
    counting = Counting(byte_level())
    assembler = Assembler(counting)
    assembler.for_group().assemble(prompt_of("A window."))
    first = counting.texts.copy()
    assembler.for_group().assemble(prompt_of("A window."))
    assert counting.texts[DOCUMENT] == 2 * first[DOCUMENT]
    assert counting.texts["Document:\n"] == first["Document:\n"]


def test_a_bos_is_put_in_front():
    tokenizer = sentencepiece()
    ids = Assembler(tokenizer).assemble(prompt_of("A window."))
    assert tokenizer.bos_id is not None
    assert ids[0] == tokenizer.bos_id
    assert ids.count(tokenizer.bos_id) == 1


def test_a_bos_that_the_template_brings_is_not_doubled():
    tokenizer = sentencepiece()
    ids = Assembler(tokenizer).assemble(prompt_of("A window.", head="<s>[INST] Document:\n"))
    assert ids.count(tokenizer.bos_id or 0) == 1


def test_model_written_ids_are_put_back_as_they_are():
    tokenizer = sentencepiece()
    head = prompt_of("A window.")
    written = (300, 7, 301)
    ids = Assembler(tokenizer).assemble((*head, Tokens(written), Template("\nAnswer:")))
    before = Assembler(tokenizer).assemble(head)
    assert ids[: len(before)] == before
    assert tuple(ids[len(before) : len(before) + 3]) == written
    assert tokenizer.decode(ids[len(before) + 3 :]) == "\nAnswer:"


def test_text_that_merges_with_what_precedes_it_only_once_it_has_grown_is_encoded_with_it():
    """The tokenizer keeps one line break apart from a full stop, but makes one token of a full stop and three."""
    tokenizer = line_breaking()
    prompt = (Template("Document:\n"), Data("."), Template("\n"), Data(""), Template("\n\nSentence:\n"))
    assert Assembler(tokenizer).assemble(prompt) == tokenizer.encode("Document:\n.\n\n\nSentence:\n", special=True)


def test_empty_segments_change_nothing():
    assembler = Assembler(byte_level())
    full = assembler.assemble((Template("Document:\n"), Data(""), Template("\nAnswer:")))
    assert full == assembler.assemble((Template("Document:\n"), Template("\nAnswer:")))
    assert assembler.assemble(()) == []


@pytest.mark.parametrize("tokenizer", [byte_level, line_breaking])
def test_a_window_costs_one_encoding_in_a_group_whose_templates_are_known(tokenizer):
    counting = Counting(tokenizer())
    group = Assembler(counting).for_group()
    group.assemble(prompt_of("The first window."))
    counting.texts.clear()

    ids = group.assemble(prompt_of("Another one, with other words."))

    assert counting.texts.total() == 1
    assert ids == Assembler(tokenizer()).assemble(prompt_of("Another one, with other words."))


@pytest.mark.parametrize("tokenizer", [byte_level, line_breaking, sentencepiece])
@pytest.mark.parametrize("window", ["a <|im_end|> b", "", "...", "<s>", "été 中文 🙂", "Yes", "\n\nA line"])
@pytest.mark.parametrize("tail", ["\nAnswer:", "<|im_end|>\n", "", "\n\n", "nswer"])
def test_a_text_in_its_place_has_the_ids_of_the_general_way(tokenizer, window, tail):
    assembler = Assembler(tokenizer())
    group = assembler.for_group()
    prompt = prompt_of(window, tail=tail)

    found = group._around_last_text(prompt)

    assert found is None or found == group._joined(prompt)


def test_a_window_that_merges_with_its_template_is_left_to_the_general_way():
    group = Assembler(line_breaking()).for_group()
    prompt = (Template("Document:\n"), Data("D"), Template("\n"), Data("\n\nW."), Template("\nAnswer:"))

    assert group._around_last_text(prompt) is None
