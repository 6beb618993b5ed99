"""The papers' metrics, from arrays: scikit-learn's and scipy's, with a reason where one does not exist.

Labels are int8: 1 consistent, 0 inconsistent, -1 none (an unscored row, or one without gold label). Scores are float64,
NaN for none. Nothing here knows of files, models or data sets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy.stats import pearsonr, spearmanr
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    balanced_accuracy_score,
    cohen_kappa_score,
    confusion_matrix,
    f1_score,
    precision_score,
    recall_score,
    roc_auc_score,
)

Labels = NDArray[np.int8]
Scores = NDArray[np.float64]

CONSISTENT, INCONSISTENT, NONE = 1, 0, -1
RESAMPLES = 2000
CONFIDENCE = 0.95
RELIABILITY_BINS = 10

ONE_CLASS = "all gold labels are {}"
NO_ROWS = "no rows with a gold label"
NOT_SCORED = "no row is scored"


class Measured(Struct, frozen=True, tag="measured"):
    """A metric's value, and the bounds of its 95 % confidence interval where one was made."""

    value: float
    low: float | None = None
    high: float | None = None


class Absent(Struct, frozen=True, tag="absent"):
    """A metric that does not exist for these rows, and why."""

    reason: str


Metric = Measured | Absent


class Confusion(Struct, frozen=True, kw_only=True):
    """Counts of rows; an inconsistent summary is what is looked for, so it is the positive class."""

    true_positives: int
    false_positives: int
    true_negatives: int
    false_negatives: int
    unscored_positives: int
    unscored_negatives: int


class ReliabilityBin(Struct, frozen=True, kw_only=True):
    """Rows whose scores lie in [low, high): their mean score, and the share of them that are consistent."""

    low: float
    high: float
    rows: int
    mean_score: float
    consistent: float


def wrong_where_unscored(gold: Labels, predicted: Labels) -> Labels:
    """The predictions with the wrong label for every unscored row: what the headline figures are made from."""
    return np.where(predicted == NONE, 1 - gold, predicted).astype(np.int8)


def balanced_accuracy(gold: Labels, predicted: Labels) -> Metric:
    """The mean of both classes' recall, in [0, 1].

    Source: Chen 2023, eq. (1).
    """
    return _missing_class(gold) or Measured(float(balanced_accuracy_score(gold, predicted)))


def balanced_accuracy_interval(gold: Labels, predicted: Labels, *, seed: int) -> Metric:
    """Balanced accuracy with its bootstrap interval, made from `balanced_accuracy_draws`."""
    missing = _missing_class(gold)
    if missing:
        return missing
    draws = balanced_accuracy_draws(gold, predicted, seed=seed)
    return with_interval(float(balanced_accuracy_score(gold, predicted)), draws)


def balanced_accuracy_draws(gold: Labels, predicted: Labels, *, seed: int) -> Scores:
    """Balanced accuracies of bootstrap resamples; both classes must be there.

    Rows are drawn with replacement within each class, so that every resample has both. The number of correct rows in
    such a resample of a class is binomial: it is drawn as that, which is the same and takes no time.
    """
    rng = np.random.default_rng(seed)
    recalls = []
    for label in (CONSISTENT, INCONSISTENT):
        correct = predicted[gold == label] == label
        recalls.append(rng.binomial(correct.size, correct.mean(), RESAMPLES) / correct.size)
    return np.asarray(np.mean(recalls, axis=0))


def with_interval(value: float, draws: Scores) -> Measured:
    """A value with the percentile interval of its bootstrap draws."""
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Measured(value, float(low), float(high))


def accuracy(gold: Labels, predicted: Labels) -> Metric:
    return Measured(float(np.mean(gold == predicted))) if gold.size else Absent(NO_ROWS)


def inconsistent_f1(gold: Labels, predicted: Labels) -> Metric:
    if not np.any((gold == INCONSISTENT) | (predicted == INCONSISTENT)):
        return Absent("no row is inconsistent, or called so") if gold.size else Absent(NO_ROWS)
    return Measured(float(f1_score(gold, predicted, pos_label=INCONSISTENT)))


def inconsistent_precision(gold: Labels, predicted: Labels) -> Metric:
    """The share of the rows called inconsistent that are."""
    if not np.any(predicted == INCONSISTENT):
        return Absent("no row is called inconsistent") if gold.size else Absent(NO_ROWS)
    return Measured(float(precision_score(gold, predicted, pos_label=INCONSISTENT)))


def recall_of(label: int, gold: Labels, predicted: Labels) -> Metric:
    """The share of a class's rows that are called so."""
    if not np.any(gold == label):
        return Absent(f"no row is {_NAMES[label]}") if gold.size else Absent(NO_ROWS)
    return Measured(float(recall_score(gold, predicted, pos_label=label)))


def confusion(gold: Labels, predicted: Labels) -> Confusion:
    """Counts over rows with a gold label; unscored rows are counted apart."""
    called = [INCONSISTENT, CONSISTENT, NONE]
    counts = confusion_matrix(gold, predicted, labels=called) if gold.size else np.zeros((3, 3), int)
    true_positives, false_negatives, unscored_positives = counts[0].tolist()
    false_positives, true_negatives, unscored_negatives = counts[1].tolist()
    return Confusion(
        true_positives=true_positives,
        false_positives=false_positives,
        true_negatives=true_negatives,
        false_negatives=false_negatives,
        unscored_positives=unscored_positives,
        unscored_negatives=unscored_negatives,
    )


def roc_auc(gold: Labels, scores: Scores) -> Metric:
    """Area under the ROC curve over the rows that have a score."""
    gold, scores = _with_score(gold, scores)
    return _unusable(scores) or _missing_class(gold) or Measured(float(roc_auc_score(gold, scores)))


def pearson(ratings: Scores, scores: Scores) -> Metric:
    """Correlation of scores with human ratings, in [-1, 1], over the rows that have both."""
    return _correlation(ratings, scores, pearsonr)


def spearman(ratings: Scores, scores: Scores) -> Metric:
    """Rank correlation of scores with human ratings, in [-1, 1], over the rows that have both."""
    return _correlation(ratings, scores, spearmanr)


def reliability(gold: Labels, scores: Scores) -> tuple[ReliabilityBin, ...]:
    """Ten bins of equal width over [0, 1], without the empty ones; none where scores are no probabilities."""
    gold, scores = _with_score(gold, scores)
    if not scores.size or scores.min() < 0 or scores.max() > 1:
        return ()
    edges = np.linspace(0, 1, RELIABILITY_BINS + 1)
    consistent, mean_score = calibration_curve(gold, scores, n_bins=RELIABILITY_BINS, pos_label=CONSISTENT)
    # calibration_curve leaves empty bins out and counts none; this is its own rule for a score's bin.
    counts = np.bincount(np.searchsorted(edges[1:-1], scores), minlength=RELIABILITY_BINS)
    (filled,) = np.nonzero(counts)
    return tuple(
        ReliabilityBin(
            low=float(edges[place]),
            high=float(edges[place + 1]),
            rows=int(counts[place]),
            mean_score=float(mean),
            consistent=float(share),
        )
        for place, mean, share in zip(filled, mean_score, consistent, strict=True)
    )


def expected_calibration_error(bins: tuple[ReliabilityBin, ...]) -> Metric:
    """The mean distance between a bin's mean score and its share of consistent rows, weighted by rows; in [0, 1]."""
    total = sum(each.rows for each in bins)
    if not total:
        return Absent("no row has a score between 0 and 1")
    return Measured(sum(each.rows * abs(each.mean_score - each.consistent) for each in bins) / total)


def kappa(first: Labels, second: Labels) -> Metric:
    """Cohen's kappa of two runs' labels on the same rows, over those that both scored; at most 1."""
    both = (first != NONE) & (second != NONE)
    if not both.any():
        return Absent("no row is scored by both")
    if len({*first[both].tolist(), *second[both].tolist()}) == 1:
        return Absent("both give one label to all rows, so chance agreement is total")
    return Measured(float(cohen_kappa_score(first[both], second[both])))


class Spread(Struct, frozen=True, kw_only=True):
    """A metric over repeated runs: its mean and sample standard deviation (n - 1); None for a single run."""

    mean: float
    deviation: float | None
    runs: int


def spread(metrics: tuple[Metric, ...]) -> Spread | Absent:
    """Absent where the metric is absent in any of the runs."""
    values = []
    for metric in metrics:
        if isinstance(metric, Absent):
            return metric
        values.append(metric.value)
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(mean=float(np.mean(values)), deviation=deviation, runs=len(values))


_NAMES = {CONSISTENT: "consistent", INCONSISTENT: "inconsistent"}
Array = TypeVar("Array", Labels, Scores)


def _with_score(values: Array, scores: Scores) -> tuple[Array, Scores]:
    known = ~np.isnan(scores)
    return values[known], scores[known]


def _missing_class(gold: Labels) -> Absent | None:
    if not gold.size:
        return Absent(NO_ROWS)
    found = np.unique(gold).tolist()
    return Absent(ONE_CLASS.format(_NAMES[found[0]])) if len(found) == 1 else None


def _unusable(scores: Scores) -> Absent | None:
    if not scores.size:
        return Absent(NOT_SCORED)
    return Absent("all scores are the same") if scores.min() == scores.max() else None


def _correlation(ratings: Scores, scores: Scores, correlate: Callable[[Scores, Scores], Any]) -> Metric:
    if np.isnan(ratings).all():
        return Absent("there are no human ratings")
    both = ~np.isnan(ratings) & ~np.isnan(scores)
    ratings, scores = ratings[both], scores[both]
    if unusable := _unusable(scores):
        return unusable
    if ratings.min() == ratings.max():
        return Absent("all human ratings are the same")
    if ratings.size < 3:  # two points always lie on a line
        return Absent("fewer than three rows have a rating and a score")
    return Measured(float(correlate(ratings, scores).statistic))
