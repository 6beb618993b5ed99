"""Fits a calibration on labelled rows that batchfact scored.

Runs flow in; a `Calibration` with its provenance, and what it changes on the rows it was fitted on, flow out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from sklearn.linear_model import LogisticRegression

from batchfact import __version__
from batchfact.calibration import MARGIN, Calibration, Fitted
from batchfact.errors import UsageError
from batchfact.evaluate.evaluation import refuse_upper_bounds
from batchfact.evaluate.metrics import (
    CONSISTENT,
    NONE,
    Absent,
    Metric,
    Scores,
    balanced_accuracy,
    expected_calibration_error,
    reliability,
)
from batchfact.evaluate.runs import Rows, Run, join_rows
from batchfact.evaluate.thresholds import best_threshold, predict

PENALTY = 1.0
"""scikit-learn's C: its mild penalty keeps the numbers finite where scores part the classes without a mistake."""


class Effect(Struct, frozen=True, kw_only=True):
    """Metrics of the rows that a calibration was fitted on; on other rows they will be somewhat worse."""

    rows: int
    balanced_accuracy_before: Metric
    balanced_accuracy_after: Metric
    calibration_error_before: Metric
    calibration_error_after: Metric


def fit(runs: Sequence[Run]) -> tuple[Calibration, Effect]:
    """The logistic model of gold labels on the logit of the folded score and the logarithm of the number of findings.

    The number of findings is left out (its weight is 0) where all rows have the same, since the bias then says the
    same. The threshold has the best balanced accuracy on the calibrated scores, averaged over data sets.

    Args:
        runs: labelled rows scored by one method; rows without label or score are left out.
    Raises: UsageError for scores that are upper bounds, runs by different methods, one class only, and scores that do
        not rise with consistency.
    """
    refuse_upper_bounds(runs)
    facts = _common_facts(runs)
    joined = join_rows([run.rows for run in runs])
    rows = joined.select((joined.gold != NONE) & ~np.isnan(joined.raw_scores) & (joined.num_judged > 0))
    if len(set(rows.gold.tolist())) < 2:
        consistent = int(np.sum(rows.gold == CONSISTENT))
        raise UsageError(
            f"a calibration needs scored rows of both labels, got {consistent:,} consistent and "
            f"{len(rows) - consistent:,} inconsistent ones"
        )
    temperature, count_weight, bias = _logistic(rows, counts=facts["aggregation"] == "any")
    draft = Calibration(temperature=temperature, count_weight=count_weight, bias=bias, threshold=0.5)
    scores = calibrated(rows, draft)
    threshold = best_threshold([(rows.gold[each], scores[each]) for each in rows.by_dataset().values()])
    if isinstance(threshold, Absent):
        raise UsageError(f"no threshold can be fitted: {threshold.reason}")
    made = msgspec.structs.replace(draft, threshold=threshold, fitted=_fitted(facts, rows))
    return made, _effect(rows, scores, threshold)


def calibrated(rows: Rows, calibration: Calibration) -> Scores:
    """The rows' raw scores after calibration."""
    pairs = zip(rows.raw_scores.tolist(), rows.num_judged.tolist(), strict=True)
    return np.array([calibration.calibrate(score, num_judged) for score, num_judged in pairs])


def _logistic(rows: Rows, *, counts: bool) -> tuple[float, float, float]:
    """Temperature, count weight and bias.

    Args:
        counts: whether the number of findings may weigh: the lowest of many is lower than that of few, a mean is not.
    Raises: UsageError where scores do not rise with consistency.
    """
    numbers = np.log(rows.num_judged)
    has_counts = counts and numbers.min() < numbers.max()
    logits = _logits(rows.raw_scores)
    features = np.column_stack([logits, numbers]) if has_counts else logits[:, None]
    model = LogisticRegression(C=PENALTY, max_iter=1000).fit(features, rows.gold == CONSISTENT)
    slope = float(model.coef_[0, 0])
    if slope <= 0:
        raise UsageError(
            "scores do not rise with consistency on these rows, so no calibration keeps their order: the model or the "
            "paradigm does not suit them"
        )
    return 1 / slope, float(model.coef_[0, 1]) if has_counts else 0.0, float(model.intercept_[0])


def _logits(scores: Scores) -> Scores:
    clipped = np.clip(scores, MARGIN, 1 - MARGIN)
    return np.log(clipped / (1 - clipped))


def _common_facts(runs: Sequence[Run]) -> dict[str, Any]:
    """What all runs were made by.

    Raises: UsageError where they differ, were not made by batchfact, or have no scores to calibrate.
    """
    all_facts = [_method_facts(run) for run in runs]
    for run, facts in zip(runs, all_facts, strict=True):
        for name, value in facts.items():
            if value != all_facts[0][name]:
                raise UsageError(
                    f"{runs[0].file} and {run.file} were scored with another {name.replace('_', ' ')}: a calibration "
                    "is for one method"
                )
    return all_facts[0]


def _method_facts(run: Run) -> dict[str, Any]:
    if not run.facts:
        raise UsageError(f"{run.file} holds another system's scores; calibrate fits scores of batchfact")
    identity, fold = run.facts["identity"], run.facts["fold"]
    if identity["label_mode"] == "parse":
        raise UsageError(f"{run.file} has labels that were parsed from text, and no scores to calibrate")
    if fold["aggregation"] == "share":
        raise UsageError(
            f"{run.file} was folded with --aggregation share, which counts labels: there is no calibration"
        )
    names = ("model", "model_digest", "paradigm", "reasoning", "rating", "prompts")
    return {name: identity[name] for name in names} | {"aggregation": fold["aggregation"]}


def _fitted(facts: dict[str, Any], rows: Rows) -> Fitted:
    datasets = dict(sorted(Counter(rows.datasets.tolist()).items()))
    return Fitted(**facts, rows=len(rows), datasets=datasets, batchfact_version=__version__)


def _effect(rows: Rows, scores: Scores, threshold: float) -> Effect:
    def error(values: Scores) -> Metric:
        return expected_calibration_error(reliability(rows.gold, values))

    return Effect(
        rows=len(rows),
        balanced_accuracy_before=balanced_accuracy(rows.gold, predict(rows.raw_scores, 0.5)),
        balanced_accuracy_after=balanced_accuracy(rows.gold, predict(scores, threshold)),
        calibration_error_before=error(rows.raw_scores),
        calibration_error_after=error(scores),
    )
