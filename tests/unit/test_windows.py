from __future__ import annotations

import pytest

from batchfact.records import Window
from batchfact.text.windows import context_of, windows

SUMMARY = " One is first.  Two is next. Three ends it. "


@pytest.mark.parametrize(
    ("size", "texts"),
    [
        (1, ["One is first.", "Two is next.", "Three ends it."]),
        (2, ["One is first.  Two is next.", "Three ends it."]),
        (3, ["One is first.  Two is next. Three ends it."]),
        (9, ["One is first.  Two is next. Three ends it."]),
    ],
)
def test_windows_hold_every_sentence_once_in_runs_of_the_given_size(size: int, texts: list[str]) -> None:
    assert [window.text_of(SUMMARY) for window in windows(SUMMARY, sentences_per_window=size)] == texts


def test_offsets_count_code_points() -> None:
    summary = "𝔘𝔫𝔦 😀 won. 北京 lost."
    assert windows(summary, sentences_per_window=1) == (Window(0, 10), Window(11, 19))


def test_a_blank_summary_has_no_window() -> None:
    assert windows(" \n ", sentences_per_window=1) == ()


def test_no_context_unless_asked_for() -> None:
    first, second, _ = windows(SUMMARY, sentences_per_window=1)
    assert context_of(SUMMARY, first, "none") is None
    assert context_of(SUMMARY, second, "none") is None


def test_preceding_context_is_all_that_comes_before_the_window() -> None:
    first, second, third = windows(SUMMARY, sentences_per_window=1)
    assert context_of(SUMMARY, first, "preceding") is None
    assert context_of(SUMMARY, second, "preceding") == "One is first."
    assert context_of(SUMMARY, third, "preceding") == "One is first.  Two is next."


def test_summary_context_is_the_whole_summary_unless_the_window_is_all_of_it() -> None:
    first = windows(SUMMARY, sentences_per_window=1)[0]
    (whole,) = windows(SUMMARY, sentences_per_window=3)
    assert context_of(SUMMARY, first, "summary") == SUMMARY.strip()
    assert context_of(SUMMARY, whole, "summary") is None
