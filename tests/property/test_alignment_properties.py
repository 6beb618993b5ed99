"""The selection is that of the rouge-score package; chunks hold everything."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from batchfact.config import AlignObjective
from batchfact.text.chunks import OVERLAP, chunks
from batchfact.text.rouge import Aligner, words

OBJECTIVES: list[AlignObjective] = ["greedy", "independent"]
JOINER = " qzjoinerzq "
"""A word that no target has: bigrams across selected sentences then count for nothing."""

WORDS = st.sampled_from(
    [
        "The",
        "the",
        "mayor's",
        "red",
        "cat",
        "CAT",
        "sat,",
        "on",
        "2019",
        "mat.",
        "a",
        "b",
        "--",
        "U.S.",
        "re-use",
        "x_y",
    ]
)
SENTENCES = st.lists(WORDS, max_size=7).map(" ".join)
ASCII = st.one_of(SENTENCES, st.text(st.characters(max_codepoint=127), max_size=30))
WIDE = st.lists(st.sampled_from([*"北京是首都。のカ서울은مصر ", "मैं", "Straße", " "]), max_size=12).map("".join)


class OurWords:
    """Our words as a tokenizer of the package."""

    def tokenize(self, text: str) -> list[str]:
        return words(text)


PACKAGE = RougeScorer(["rouge1", "rouge2"])
PACKAGE_WITH_OUR_WORDS = RougeScorer(["rouge1", "rouge2"], tokenizer=OurWords())


def select_by_package(
    scorer: RougeScorer, sentences: list[str], target: str, objective: AlignObjective, count: int
) -> tuple[int, ...]:
    """The definition, sentence by sentence."""

    def recall(numbers: list[int]) -> float:
        scores = scorer.score(target, JOINER.join(sentences[each] for each in numbers))
        return float(scores["rouge1"].recall + scores["rouge2"].recall)

    if objective == "independent":
        alone = [recall([each]) for each in range(len(sentences))]
        return tuple(sorted(range(len(sentences)), key=lambda each: -alone[each])[:count])
    taken: list[int] = []
    while len(taken) < min(count, len(sentences)):
        rest = [each for each in range(len(sentences)) if each not in taken]
        taken.append(max(rest, key=lambda each: (recall([*taken, each]), -each)))
    return tuple(taken)


@pytest.mark.parametrize("objective", OBJECTIVES)
@settings(deadline=None, max_examples=150)
@given(sentences=st.lists(ASCII, max_size=8), target=ASCII, count=st.integers(1, 9))
def test_on_ascii_text_the_selection_is_the_packages(
    objective: AlignObjective, sentences: list[str], target: str, count: int
) -> None:
    found = Aligner(sentences).select(target, objective=objective, max_sentences=count)

    assert found == select_by_package(PACKAGE, sentences, target, objective, count)


@pytest.mark.parametrize("objective", OBJECTIVES)
@settings(deadline=None, max_examples=100)
@given(sentences=st.lists(WIDE, max_size=8), target=WIDE, count=st.integers(1, 9))
def test_on_any_text_the_selection_is_the_packages_with_our_words(
    objective: AlignObjective, sentences: list[str], target: str, count: int
) -> None:
    found = Aligner(sentences).select(target, objective=objective, max_sentences=count)

    assert found == select_by_package(PACKAGE_WITH_OUR_WORDS, sentences, target, objective, count)


@pytest.mark.parametrize("objective", OBJECTIVES)
@settings(deadline=None)
@given(data=st.data(), sentences=st.lists(st.one_of(ASCII, WIDE), max_size=10), target=ASCII)
def test_no_selection_costs_more_than_the_budget_or_takes_a_sentence_twice(
    objective: AlignObjective, data: st.DataObject, sentences: list[str], target: str
) -> None:
    size = len(sentences)
    costs = np.array(data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size)), dtype=np.int64)
    budget = data.draw(st.integers(0, 30))
    found = Aligner(sentences).select(target, objective=objective, costs=costs, budget=budget)

    assert sum(int(costs[each]) for each in found) <= budget
    assert len(set(found)) == len(found)
    left = budget - sum(int(costs[each]) for each in found)
    assert all(costs[each] > left for each in range(size) if each not in found), "another one would have fitted"


TEXTS = st.one_of(
    st.text(max_size=200),
    st.lists(
        st.sampled_from(["A word. ", "Then more of it, ", "\n\n", "北京。", "x" * 40, " ", "End!"]), max_size=40
    ).map("".join),
)


@settings(deadline=None)
@given(TEXTS, st.integers(1, 60))
def test_every_character_is_in_a_chunk_and_no_chunk_is_too_long(text: str, max_tokens: int) -> None:
    found = chunks(text, max_tokens=max_tokens, count_tokens=len)

    covered = 0
    for span in found:
        assert span.start <= covered < span.end, "no gap, and each reaches beyond the one before"
        assert span.end - span.start <= max_tokens
        covered = span.end
    assert covered == len(text)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["A word. ", "Then more of it. ", "北京。", "x" * 40]), min_size=1, max_size=40))
def test_neighbouring_chunks_share_up_to_an_eighth(pieces: list[str]) -> None:
    text = "".join(pieces)
    found = chunks(text, max_tokens=64, count_tokens=len)

    for left, right in pairwise(found):
        assert 0 < left.end - right.start <= 64 // OVERLAP


@settings(deadline=None)
@given(TEXTS)
def test_a_text_that_fits_is_one_chunk(text: str) -> None:
    found = chunks(text, max_tokens=100_000, count_tokens=len)

    assert [(span.start, span.end) for span in found] == ([(0, len(text))] if text else [])
