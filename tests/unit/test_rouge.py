"""Sentences are selected by their recall of a target's ROUGE-1 and ROUGE-2."""

from __future__ import annotations

import numpy as np
import pytest

from batchfact.config import AlignObjective
from batchfact.text.rouge import Aligner, words

OBJECTIVES: list[AlignObjective] = ["greedy", "independent"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Mayor's U.S. trip, 2019!", ["the", "mayor", "s", "u", "s", "trip", "2019"]),
        ("snake_case re-use", ["snake", "case", "re", "use"]),
        ("Straße CAFÉ ﬁn", ["strasse", "café", "fin"]),
        ("北京是首都。2019年", ["北", "京", "是", "首", "都", "2019", "年"]),
        ("東京タワーへ", ["東", "京", "タ", "ワ", "ー", "へ"]),
        ("서울은 수도다.", ["서울은", "수도다"]),
        ("مَدِينَة كبيرة، نعم؟", ["مَدِينَة", "كبيرة", "نعم"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("ไทย", ["ไ", "ท", "ย"]),
        ("می\u200cخواهم co\u00adop a\u200bb", ["میخواهم", "coop", "a", "b"]),
        ("Ｆｕｌｌ １２", ["full", "12"]),
        ("🙂 — … \x00", []),
        ("", []),
    ],
)
def test_words_of_any_script(text: str, expected: list[str]) -> None:
    assert words(text) == [word for each in expected for word in words(each)]
    assert len(words(text)) == len(expected)


def test_greedy_takes_what_adds_most_and_independent_what_has_most() -> None:
    sentences = ["the red cat sat", "the red cat", "on a mat"]
    target = "the red cat sat on a mat"

    assert Aligner(sentences).select(target, objective="greedy", max_sentences=2) == (0, 2)
    assert Aligner(sentences).select(target, objective="independent", max_sentences=2) == (0, 1)


def test_an_n_gram_counts_as_often_as_the_target_has_it() -> None:
    sentences = ["yes yes yes yes", "yes no", "no no no"]

    assert Aligner(sentences).select("yes no", objective="independent") == (1, 0, 2)


def test_two_sentences_make_no_bigram_between_them() -> None:
    """Else the first two would hold all of the target, and the second would be taken before the third."""
    sentences = ["a red", "cat", "red cat", "x"]

    assert Aligner(sentences).select("a red cat", objective="greedy", max_sentences=2) == (0, 2)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_ties_go_by_document_order_and_so_does_what_adds_nothing(objective: AlignObjective) -> None:
    sentences = ["other words", "b a", "nothing here", "b a"]

    assert (
        Aligner(sentences).select("b a", objective=objective)
        == {
            "greedy": (1, 0, 2, 3),
            "independent": (1, 3, 0, 2),
        }[objective]
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_sentence_that_costs_too_much_is_passed_over(objective: AlignObjective) -> None:
    sentences = ["a b c d", "a b", "c"]
    costs = np.array([9, 4, 2])

    assert Aligner(sentences).select("a b c d", objective=objective, costs=costs, budget=7) == (1, 2)
    assert Aligner(sentences).select("a b c d", objective=objective, costs=costs, budget=9) == (0,)
    assert Aligner(sentences).select("a b c d", objective=objective, costs=costs, budget=1) == ()


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(("sentences", "expected"), [([], ()), (["", "..."], (0, 1))])
def test_a_document_without_words_is_no_error(
    objective: AlignObjective, sentences: list[str], expected: tuple[int, ...]
) -> None:
    assert Aligner(sentences).select("a b", objective=objective) == expected
    assert Aligner(sentences).select("", objective=objective) == expected


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(
    "sentences",
    [
        ["北京是中国的首都。", "上海是最大的城市。", "长城很长。", "他们昨天去了南京。"],
        ["القاهرة عاصمة مصر.", "الإسكندرية على البحر.", "النيل نهر طويل.", "زاروا المتحف أمس."],
        ["서울은 한국의 수도다.", "부산은 바다에 있다.", "어제 비가 왔다.", "그들은 갔다."],
        ["東京は首都です。", "大阪は商業の町です。", "昨日は雨でした。", "富士山は高い。"],
    ],
    ids=["Chinese", "Arabic", "Korean", "Japanese"],
)
def test_other_scripts_align_with_themselves(objective: AlignObjective, sentences: list[str]) -> None:
    aligner = Aligner(sentences)
    found = [aligner.select(sentence, objective=objective, max_sentences=1) for sentence in sentences]

    assert found == [(0,), (1,), (2,), (3,)]
