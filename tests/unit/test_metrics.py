"""Metrics against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import bootstrap

from batchfact.evaluate import metrics
from batchfact.evaluate.metrics import Absent, Measured, Spread

GOLD = np.array([1, 1, 1, 1, 0, 0, 0, 0], np.int8)
# Of four consistent rows three are called so; of four inconsistent rows two are.
CALLED = np.array([1, 1, 1, 0, 0, 0, 1, 1], np.int8)


def value(metric: metrics.Metric) -> float:
    assert isinstance(metric, Measured)
    return metric.value


def reason(metric: metrics.Metric) -> str:
    assert isinstance(metric, Absent)
    return metric.reason


def test_balanced_accuracy_is_the_mean_of_both_recalls() -> None:
    assert value(metrics.balanced_accuracy(GOLD, CALLED)) == (3 / 4 + 2 / 4) / 2


def test_figures_of_the_inconsistent_class_by_hand() -> None:
    assert value(metrics.inconsistent_precision(GOLD, CALLED)) == pytest.approx(2 / 3)
    assert value(metrics.recall_of(0, GOLD, CALLED)) == 2 / 4
    assert value(metrics.inconsistent_f1(GOLD, CALLED)) == pytest.approx(2 * (2 / 3) * (1 / 2) / (2 / 3 + 1 / 2))
    assert value(metrics.accuracy(GOLD, CALLED)) == 5 / 8


def test_confusion_counts_take_the_inconsistent_as_positive_and_unscored_apart() -> None:
    called = CALLED.copy()
    called[[0, 4]] = metrics.NONE
    counts = metrics.confusion(GOLD, called)

    assert (counts.true_positives, counts.false_negatives) == (1, 2)
    assert (counts.true_negatives, counts.false_positives) == (2, 1)
    assert (counts.unscored_positives, counts.unscored_negatives) == (1, 1)


def test_an_unscored_row_counts_as_wrong() -> None:
    called = np.array([1, 1, 1, -1, 0, 0, -1, -1], np.int8)

    assert metrics.wrong_where_unscored(GOLD, called).tolist() == CALLED.tolist()


def test_roc_auc_is_the_share_of_pairs_in_order() -> None:
    # Pairs of a consistent and an inconsistent score: 0.9 beats both, 0.4 beats 0.3 and ties with 0.4.
    scores = np.array([0.9, 0.4, 0.4, 0.3])

    assert value(metrics.roc_auc(np.array([1, 1, 0, 0], np.int8), scores)) == pytest.approx(3.5 / 4)


def test_roc_auc_leaves_rows_without_a_score_out() -> None:
    scores = np.array([0.9, np.nan, 0.1])

    assert value(metrics.roc_auc(np.array([1, 0, 0], np.int8), scores)) == 1


def test_correlations_by_hand() -> None:
    ratings, scores = np.array([1.0, 2.0, 3.0, np.nan]), np.array([0.1, 0.3, 0.2, 0.9])
    # Deviations -1 0 1 and -0.1 0.1 0: covariance sum 0.1 over sqrt(2 * 0.02).
    assert value(metrics.pearson(ratings, scores)) == pytest.approx(0.1 / math.sqrt(2 * 0.02))
    # Ranks 1 2 3 and 1 3 2: 1 - 6 * 2 / (3 * 8).
    assert value(metrics.spearman(ratings, scores)) == pytest.approx(0.5)


def test_calibration_error_by_hand() -> None:
    gold = np.array([1, 0, 1, 1], np.int8)
    scores = np.array([0.85, 0.85, 0.35, 0.30])
    bins = metrics.reliability(gold, scores)

    assert [each.low for each in bins] == pytest.approx([0.2, 0.3, 0.8])
    assert [(each.rows, each.consistent) for each in bins] == [(1, 1.0), (1, 1.0), (2, 0.5)]
    expected = (0.70 + 0.65 + 2 * 0.35) / 4
    assert value(metrics.expected_calibration_error(bins)) == pytest.approx(expected)


def test_each_score_is_in_one_bin() -> None:
    scores = np.linspace(0, 1, 101)
    bins = metrics.reliability(np.tile([0, 1], 51)[:101].astype(np.int8), scores)

    assert sum(each.rows for each in bins) == 101
    assert all(each.low - 1e-9 <= each.mean_score <= each.high + 1e-9 for each in bins)


def test_scores_that_are_no_probabilities_have_no_calibration_error() -> None:
    bins = metrics.reliability(np.array([0, 1], np.int8), np.array([-3.0, 4.0]))

    assert reason(metrics.expected_calibration_error(bins)) == "no row has a score between 0 and 1"


def test_kappa_by_hand() -> None:
    first, second = np.array([1, 1, 0, 0, -1], np.int8), np.array([1, 0, 0, 0, 1], np.int8)
    # They agree on 3 of 4; by chance on 1/2 * 1/4 + 1/2 * 3/4 = 1/2.
    assert value(metrics.kappa(first, second)) == pytest.approx((3 / 4 - 1 / 2) / (1 - 1 / 2))


def test_the_spread_of_repeated_runs_is_that_of_a_sample() -> None:
    found = metrics.spread((Measured(0.5), Measured(0.7), Measured(0.6)))

    assert isinstance(found, Spread)
    assert (found.mean, found.deviation) == pytest.approx((0.6, 0.1))
    assert found.runs == 3
    assert metrics.spread((Measured(0.5),)).deviation is None
    assert metrics.spread((Measured(0.5), Absent("why"))) == Absent("why")


# Metrics that do not exist

ALL_ONE = np.ones(4, np.int8)
NOTHING = np.empty(0, np.int8)
EIGHT = np.arange(8, dtype=np.float64)


def test_one_class_has_no_balanced_accuracy() -> None:
    assert reason(metrics.balanced_accuracy(ALL_ONE, ALL_ONE)) == "all gold labels are consistent"
    assert reason(metrics.balanced_accuracy_interval(ALL_ONE, ALL_ONE, seed=0)) == "all gold labels are consistent"
    assert reason(metrics.roc_auc(ALL_ONE, np.array([0.1, 0.2, 0.3, 0.4]))) == "all gold labels are consistent"
    assert reason(metrics.recall_of(0, ALL_ONE, ALL_ONE)) == "no row is inconsistent"
    assert reason(metrics.inconsistent_f1(ALL_ONE, ALL_ONE)) == "no row is inconsistent, or called so"
    assert reason(metrics.inconsistent_precision(ALL_ONE, ALL_ONE)) == "no row is called inconsistent"


def test_constant_scores_have_no_auc_and_no_correlation() -> None:
    constant = np.full(8, 0.5)

    assert reason(metrics.roc_auc(GOLD, constant)) == "all scores are the same"
    assert reason(metrics.pearson(EIGHT, constant)) == "all scores are the same"
    assert reason(metrics.spearman(constant, EIGHT)) == "all human ratings are the same"


def test_nothing_scored_and_nothing_rated() -> None:
    unscored = np.full(8, np.nan)

    assert reason(metrics.roc_auc(GOLD, unscored)) == "no row is scored"
    assert reason(metrics.pearson(unscored, EIGHT)) == "there are no human ratings"
    assert reason(metrics.pearson(EIGHT[:2], EIGHT[:2])).startswith("fewer than three")
    assert reason(metrics.accuracy(NOTHING, NOTHING)) == "no rows with a gold label"
    assert reason(metrics.balanced_accuracy(NOTHING, NOTHING)) == "no rows with a gold label"
    assert reason(metrics.kappa(ALL_ONE, np.full(4, -1, np.int8))) == "no row is scored by both"
    assert reason(metrics.kappa(ALL_ONE, ALL_ONE)).startswith("both give one label")


# Intervals


def test_the_same_seed_gives_the_same_interval() -> None:
    first = metrics.balanced_accuracy_interval(GOLD, CALLED, seed=3)

    assert first == metrics.balanced_accuracy_interval(GOLD, CALLED, seed=3)
    assert isinstance(first, Measured) and first.low is not None and first.high is not None
    assert first.low < first.value < first.high
    draws = [metrics.balanced_accuracy_draws(GOLD, CALLED, seed=seed).tolist() for seed in (3, 4)]
    assert draws[0] != draws[1]


def test_the_interval_is_that_of_resampling_the_rows_of_each_class() -> None:
    rng = np.random.default_rng(0)
    gold = np.repeat([1, 0], [120, 60]).astype(np.int8)
    called = np.where(rng.random(180) < 0.7, gold, 1 - gold).astype(np.int8)
    found = metrics.balanced_accuracy_interval(gold, called, seed=0)
    correct = [(called[gold == label] == label).astype(float) for label in (1, 0)]
    drawn = bootstrap(
        correct, lambda a, b, axis: (a.mean(axis) + b.mean(axis)) / 2, n_resamples=4000, method="percentile", rng=1
    ).confidence_interval

    assert found.low == pytest.approx(drawn.low, abs=0.012)
    assert found.high == pytest.approx(drawn.high, abs=0.012)


def test_a_perfect_system_has_an_interval_of_no_width() -> None:
    assert metrics.balanced_accuracy_interval(GOLD, GOLD, seed=0) == Measured(1.0, 1.0, 1.0)
