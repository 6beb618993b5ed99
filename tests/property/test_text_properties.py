"""Nothing of a summary escapes, whatever it holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchfact.text.sentences import sentences
from batchfact.text.windows import windows

# Pieces that meet in real summaries in ways nobody thought of, and any text at all.
MARKS = ". ! ? … 。 ？ \" ' “ ” ) ( ] [ 」 「 - • : ; , `` ''"
WORDS = "Dr. U.S. p.m. etc. J. He he It it Adam: 5 3.5 No. and Mary 你好 é 😀 \x00 \ufeff \u200b"
PIECES = st.sampled_from(
    [
        *MARKS.split(" "),
        *["...", "?!", ". . .", "\n", "\r\n", "\n\n", "\u2028", "\x0b", "\t", " ", "  ", "\u3000", "1.", "(2)", "a)"],
        *WORDS.split(" "),
    ]
)
TEXTS = st.one_of(
    st.text(max_size=300),
    st.lists(PIECES, max_size=60).map("".join),
    st.lists(PIECES, max_size=60).map(" ".join),
)


def covered(text: str, spans: list[tuple[int, int]]) -> None:
    """Spans are in order, disjoint, trimmed, not blank, and hold every character that is not white space."""
    end = 0
    for start, stop in spans:
        assert end <= start < stop <= len(text)
        assert text[end:start].strip() == ""
        assert text[start:stop] == text[start:stop].strip()
        end = stop
    assert text[end:].strip() == ""


@settings(deadline=None)
@given(TEXTS)
def test_every_character_is_in_exactly_one_sentence(text: str) -> None:
    covered(text, [(span.start, span.end) for span in sentences(text)])


@settings(deadline=None)
@given(TEXTS, st.integers(1, 5))
def test_every_character_is_in_exactly_one_window(text: str, size: int) -> None:
    covered(text, [(window.start, window.end) for window in windows(text, sentences_per_window=size)])


@settings(deadline=None)
@given(TEXTS)
def test_windows_of_one_sentence_are_the_sentences(text: str) -> None:
    assert [(window.start, window.end) for window in windows(text, sentences_per_window=1)] == [
        (span.start, span.end) for span in sentences(text)
    ]


@pytest.mark.parametrize(
    "unit", ["x", "word ", ".", ". ", '"', '." ', "\n", "a\n", "a.\n", "… ", "。", "1. ", "Ab: ", "( "]
)
@pytest.mark.parametrize("size", [1_999, 2_000, 2_001, 60_000])
def test_hostile_text_of_any_size_is_covered(unit: str, size: int) -> None:
    for text in (unit * (size // len(unit)), "A" + unit * (size // len(unit)) + "b"):
        covered(text, [(span.start, span.end) for span in sentences(text)])
