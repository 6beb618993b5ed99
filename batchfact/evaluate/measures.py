"""All metrics of one run on one data set.

Rows flow in, one `Measures` flows out; what unscored rows and upper bounds mean for each metric is decided here.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from msgspec import Struct

from batchfact.evaluate import metrics
from batchfact.evaluate.metrics import NONE, Absent, Confusion, Metric, ReliabilityBin
from batchfact.evaluate.runs import Rows


class Measures(Struct, frozen=True, kw_only=True):
    """All metrics of one run on one data set, in [0, 1] (correlations in [-1, 1]).

    Metrics of labels count an unscored row as wrong, but for `balanced_accuracy_scored` and the counts. Metrics of
    scores are over the rows that have one. F1, precision and recall are of the inconsistent class.
    """

    rows: int
    scored: int
    statuses: dict[str, int]
    labelled: int
    consistent: int
    balanced_accuracy: Metric
    balanced_accuracy_scored: Metric
    accuracy: Metric
    f1: Metric
    precision: Metric
    recall: Metric
    confusion: Confusion
    roc_auc: Metric
    pearson: Metric
    spearman: Metric
    calibration_error: Metric
    reliability: tuple[ReliabilityBin, ...]


def measure(rows: Rows, *, problem: Absent | None = None, has_upper_bounds: bool = False, seed: int = 0) -> Measures:
    """All metrics of some rows.

    Args:
        problem: why there are no predictions, where there are none.
        has_upper_bounds: scores were made with early exit, so nothing is said of them.
        seed: of the bootstrap.
    """
    has_label = rows.gold != NONE
    gold, own = rows.gold[has_label], rows.predicted[has_label]
    scores = rows.scores[has_label]
    predicted, scored = metrics.wrong_where_unscored(gold, own), own != NONE
    bounds = Absent("scores are upper bounds (--early-exit)") if has_upper_bounds else None
    unscored = None if scored.any() or not gold.size else Absent(metrics.NOT_SCORED)
    bins = () if bounds else metrics.reliability(gold, scores)
    return Measures(
        rows=len(rows),
        scored=int(np.sum(rows.statuses == "ok")),
        statuses=dict(Counter(rows.statuses.tolist())),
        labelled=int(gold.size),
        consistent=int(np.sum(gold == metrics.CONSISTENT)),
        balanced_accuracy=problem or unscored or metrics.balanced_accuracy_interval(gold, predicted, seed=seed),
        balanced_accuracy_scored=problem or unscored or metrics.balanced_accuracy(gold[scored], own[scored]),
        accuracy=problem or unscored or metrics.accuracy(gold, predicted),
        f1=problem or unscored or metrics.inconsistent_f1(gold, predicted),
        precision=problem or unscored or metrics.inconsistent_precision(gold, predicted),
        recall=problem or unscored or metrics.recall_of(metrics.INCONSISTENT, gold, predicted),
        confusion=metrics.confusion(gold, own),
        roc_auc=bounds or metrics.roc_auc(gold, scores),
        pearson=bounds or metrics.pearson(rows.ratings, rows.scores),
        spearman=bounds or metrics.spearman(rows.ratings, rows.scores),
        calibration_error=bounds or metrics.expected_calibration_error(bins),
        reliability=bins,
    )
