"""How well scores tell consistent summaries from others, during training.

Scores and labels by data set flow in, a few numbers flow out. `batchfact eval` measures a finished model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from batchfact.errors import UsageError
from batchfact.records import Label

Scored = tuple[float, Label]
"""A summary's margin, log P(consistent) - log P(inconsistent) of its worst window, and its label."""

LEAST_OF_EACH = 5
"""Data sets with fewer summaries of a label are not measured apart."""


def measure(scored: Mapping[str, Sequence[Scored]]) -> dict[str, float]:
    """Macro averages over data sets: ROC-AUC, and balanced accuracy at 0.5 and at the one best threshold for all.

    Where no data set has enough of both labels, all are taken together.
    """
    from sklearn.metrics import roc_auc_score

    sets = [rows for rows in scored.values() if min(_num_of_each(rows)) >= LEAST_OF_EACH]
    sets = sets or [[row for rows in scored.values() for row in rows]]
    thresholds = sorted({round(margin, 1) for rows in sets for margin, _ in rows})
    best = max(thresholds, key=lambda threshold: _balanced_accuracy(sets, threshold))
    aucs = [
        roc_auc_score([label == "consistent" for _, label in rows], [margin for margin, _ in rows]) for rows in sets
    ]
    return {
        "roc_auc": float(sum(aucs) / len(aucs)),
        "balanced_accuracy": _balanced_accuracy(sets, 0.0),
        "best_balanced_accuracy": _balanced_accuracy(sets, best),
        "best_threshold": 1 / (1 + math.exp(-best)),
    }


def best_evaluation(history: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """The evaluation of the checkpoint that becomes the model, in a training's log; empty without evaluations."""
    measured = [entry for entry in history if "eval_roc_auc" in entry]
    return max(measured, key=lambda entry: entry["eval_roc_auc"], default={})


def check_measurable(labels: Sequence[Label]) -> None:
    """Raises: UsageError unless there are test summaries of both labels."""
    if len(set(labels)) < 2:
        raise UsageError(
            f"all test summaries are {labels[0]}, so nothing can be measured: add test data of the other label, raise "
            "train.eval_documents, or build with test_share = 0"
        )


def _balanced_accuracy(sets: Sequence[Sequence[Scored]], threshold: float) -> float:
    return sum(_recalls(rows, threshold) for rows in sets) / len(sets)


def _recalls(rows: Sequence[Scored], threshold: float) -> float:
    """The mean of both labels' recalls."""
    consistent, inconsistent = _num_of_each(rows)
    kept = sum(margin >= threshold for margin, label in rows if label == "consistent")
    caught = sum(margin < threshold for margin, label in rows if label == "inconsistent")
    return (kept / consistent + caught / inconsistent) / 2


def _num_of_each(rows: Sequence[Scored]) -> tuple[int, int]:
    consistent = sum(label == "consistent" for _, label in rows)
    return consistent, len(rows) - consistent
