from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score

from batchfact.evaluate.metrics import Absent
from batchfact.evaluate.thresholds import best_threshold, cross_validated, predict


def arrays(gold: list[int], scores: list[float]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(gold, np.int8), np.array(scores)


def test_it_parts_the_classes_midway() -> None:
    assert best_threshold([arrays([0, 0, 1, 1], [0.1, 0.2, 0.3, 0.9])]) == pytest.approx(0.25)


def test_of_equally_good_ones_it_is_the_nearest_to_one_half() -> None:
    # 0.15 and 0.8 both give 3/4; 0.5 in between gives 1/2.
    gold, scores = arrays([0, 1, 0, 1], [0.1, 0.2, 0.75, 0.85])

    assert best_threshold([(gold, scores)]) == pytest.approx(0.8)


def test_every_data_set_weighs_the_same() -> None:
    small = arrays([0, 1], [0.6, 0.8])
    large = arrays([0] * 50 + [1] * 50, [0.1] * 50 + [0.4] * 25 + [0.9] * 25)
    # Below 0.4 the large set is perfect and the small one at chance (3/4 on average); from 0.6 on it is 7/8.
    assert best_threshold([small, large]) == pytest.approx(0.7)


def test_data_sets_of_one_class_are_left_out() -> None:
    assert best_threshold([arrays([1, 1], [0.2, 0.3]), arrays([0, 1], [0.5, 0.6])]) == pytest.approx(0.55)


def test_where_nothing_can_be_fitted_the_reason_is_said() -> None:
    assert best_threshold([arrays([1, 1], [0.2, 0.3])]) == Absent("no data set has scored rows of both labels")
    assert best_threshold([arrays([0, 1], [0.2, 0.2])]) == Absent("all scores are the same")
    assert best_threshold([arrays([0, 1], [0.2, np.nan])]) == Absent("no data set has scored rows of both labels")


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 8)), min_size=4, max_size=40))
def test_no_other_threshold_is_better(rows: list[tuple[int, int]]) -> None:
    gold, scores = np.array([g for g, _ in rows], np.int8), np.array([s / 8 for _, s in rows])
    found = best_threshold([(gold, scores)])
    if isinstance(found, Absent):
        assert len(set(gold.tolist())) == 1 or len(set(scores.tolist())) == 1
        return
    reached = balanced_accuracy_score(gold, predict(scores, found))
    between = (np.unique(scores)[:-1] + np.unique(scores)[1:]) / 2
    assert reached == pytest.approx(max(balanced_accuracy_score(gold, predict(scores, each)) for each in between))


def test_an_unscored_row_gets_no_label() -> None:
    assert predict(np.array([0.4, np.nan, 0.6]), 0.5).tolist() == [0, -1, 1]


def test_cross_validation_predicts_each_row_by_thresholds_of_others() -> None:
    rng = np.random.default_rng(0)
    gold = np.repeat([0, 1], 50).astype(np.int8)
    scores = 0.1 * gold + rng.normal(0.2, 0.02, 100)
    scores[0] = np.nan
    found = cross_validated(gold, scores, seed=0)

    assert not isinstance(found, Absent)
    predicted, thresholds = found
    assert len(thresholds) == 5
    assert all(0.2 < each < 0.3 for each in thresholds)
    assert predicted[0] == -1
    assert np.mean(predicted[1:] == gold[1:]) > 0.95
    again = cross_validated(gold, scores, seed=0)
    assert not isinstance(again, Absent)
    assert again[1] == thresholds


def test_cross_validation_needs_five_rows_of_each_label() -> None:
    found = cross_validated(np.array([1] * 9 + [0] * 4, np.int8), np.linspace(0, 1, 13), seed=0)

    assert found == Absent("5-fold cross-validation needs five scored rows of each label, got 9 and 4")
