"""Label words become the tokens that can follow the prompt, or the run is refused before it starts."""

from __future__ import annotations

import pytest

from batchfact.assembly import Assembler
from batchfact.errors import UsageError
from batchfact.records import Data, Prompt, Template, Tokens
from tests.small_tokenizers import byte_level, line_breaking, sentencepiece

CUES: dict[str, Prompt] = {
    "colon": (Data("Is it so?"), Template("\nAnswer:")),
    "new line": (Template("<|im_start|>assistant\n"),),
    "after written text": (Template("Answer:"), Tokens((300, 301))),
}


@pytest.mark.parametrize("cue", CUES)
@pytest.mark.parametrize("tokenizer", [byte_level, line_breaking, sentencepiece])
def test_each_label_gets_its_spellings_and_shares_none(tokenizer, cue):
    each = tokenizer()
    yes, no = Assembler(each).label_ids(CUES[cue], ("Yes", "No"))
    assert {each.decode([token]).strip().lower() for token in yes} == {"yes"}
    assert {each.decode([token]).strip().lower() for token in no} == {"no"}
    assert not set(yes) & set(no)


@pytest.mark.parametrize("tokenizer", [byte_level, line_breaking, sentencepiece])
def test_the_token_that_continues_the_prompt_is_among_them(tokenizer):
    """Behind `Answer:` the word comes with its space, in one token."""
    each = tokenizer()
    before = each.encode("\nAnswer:", special=False)
    natural = each.encode("\nAnswer: Yes", special=False)[len(before) :]
    yes, _ = Assembler(each).label_ids((Template("\nAnswer:"),), ("Yes", "No"))
    assert len(natural) == 1
    assert natural[0] in yes


def test_labels_have_equally_many_spellings():
    yes, no = Assembler(byte_level()).label_ids((Template("\nAnswer:"),), ("Yes", "No"))
    assert len(yes) == len(no)


def test_a_label_of_several_tokens_is_refused_with_its_tokens():
    with pytest.raises(UsageError, match=r"label 'Bridgehead' is no single token for this model but \["):
        Assembler(byte_level()).label_ids((Template("\nAnswer:"),), ("Yes", "Bridgehead"))


def test_two_labels_that_share_a_token_are_refused():
    with pytest.raises(UsageError, match="labels 'Yes' and 'yes' share the token"):
        Assembler(byte_level()).label_ids((Template("\nAnswer:"),), ("Yes", "yes"))


def test_a_special_token_is_no_label():
    with pytest.raises(UsageError, match="is no single token"):
        Assembler(byte_level()).label_ids((Template("\nAnswer:"),), ("Yes", "<|im_end|>"))
