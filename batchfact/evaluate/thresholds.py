"""Thresholds fitted on labelled scores: by cross-validation on the same rows, or on other rows.

Arrays as in `metrics` flow in; thresholds and predictions flow out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.model_selection import StratifiedKFold

from batchfact.evaluate.metrics import CONSISTENT, INCONSISTENT, NONE, Absent, Labels, Scores

FOLDS = 5


def predict(scores: Scores, threshold: float) -> Labels:
    """Consistent at or above the threshold; none where there is no score."""
    return np.where(np.isnan(scores), NONE, scores >= threshold).astype(np.int8)


def best_threshold(sets: Sequence[tuple[Labels, Scores]]) -> float | Absent:
    """The threshold with the highest balanced accuracy, averaged over the data sets that have both classes.

    Candidates lie midway between neighbouring scores; of equally good ones it is the one nearest to 0.5.

    Args:
        sets: gold labels and scores of each data set; rows without either are left out.
    """
    known = [_scored(gold, scores) for gold, scores in sets]
    usable = [(gold, scores) for gold, scores in known if {CONSISTENT, INCONSISTENT} <= set(gold.tolist())]
    if not usable:
        return Absent("no data set has scored rows of both labels")
    distinct = np.unique(np.concatenate([scores for _, scores in usable]))
    if distinct.size < 2:
        return Absent("all scores are the same")
    candidates = (distinct[:-1] + distinct[1:]) / 2
    reached = np.mean([_balanced_accuracies(gold, scores, candidates) for gold, scores in usable], axis=0)
    best = candidates[np.isclose(reached, reached.max(), rtol=0, atol=1e-12)]
    return float(best[np.argmin(np.abs(best - 0.5))])


def cross_validated(gold: Labels, scores: Scores, *, seed: int) -> tuple[Labels, tuple[float, ...]] | Absent:
    """Predictions by thresholds that were fitted on other rows: each fifth by the threshold of the other four.

    Returns: predictions for all rows, none for those without a score; and the five thresholds.
    Source: Xu 2024, appendix B.
    """
    usable = (gold != NONE) & ~np.isnan(scores)
    counts = [int(np.sum(gold[usable] == label)) for label in (CONSISTENT, INCONSISTENT)]
    if min(counts) < FOLDS:
        return Absent(f"5-fold cross-validation needs five scored rows of each label, got {counts[0]} and {counts[1]}")
    (places,) = np.nonzero(usable)
    predicted = np.full(gold.shape, NONE, np.int8)
    thresholds = []
    for fit, held_out in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(places, gold[places]):
        threshold = best_threshold([(gold[places[fit]], scores[places[fit]])])
        if isinstance(threshold, Absent):
            return threshold
        thresholds.append(threshold)
        predicted[places[held_out]] = predict(scores[places[held_out]], threshold)
    return predicted, tuple(thresholds)


def _scored(gold: Labels, scores: Scores) -> tuple[Labels, Scores]:
    usable = (gold != NONE) & ~np.isnan(scores)
    return gold[usable], scores[usable]


def _balanced_accuracies(gold: Labels, scores: Scores, thresholds: Scores) -> Scores:
    """At many thresholds at once: what `metrics.balanced_accuracy` gives for each."""
    consistent, inconsistent = np.sort(scores[gold == CONSISTENT]), np.sort(scores[gold == INCONSISTENT])
    kept = 1 - np.searchsorted(consistent, thresholds) / consistent.size
    flagged = np.searchsorted(inconsistent, thresholds) / inconsistent.size
    return np.asarray((kept + flagged) / 2)
