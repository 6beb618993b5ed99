"""A fitted calibration: what it finds in rows that were drawn from one, and what it refuses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from batchfact.calibration import sigmoid
from batchfact.errors import UsageError
from batchfact.evaluate.calibrating import calibrated, fit
from batchfact.evaluate.metrics import Measured
from batchfact.evaluate.reading import Columns, read_run
from batchfact.evaluate.runs import Run
from tests.unit.scored_files import facts, write_scored


def run(path: Path, gold: list[Any], scores: list[float | None], **options: Any) -> Run:
    return read_run(write_scored(path, gold, scores, **options), Columns())


def drawn(path: Path, *, temperature: float, count_weight: float, bias: float, rows: int = 4000) -> Run:
    """Rows whose labels follow from their scores by such a calibration."""
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 6, rows)
    logits = rng.normal(0, 3, rows)
    odds = logits / temperature + count_weight * np.log(counts) + bias
    gold = rng.random(rows) < np.array([sigmoid(each) for each in odds.tolist()])
    scores: list[float | None] = [sigmoid(each) for each in logits.tolist()]
    return run(path, gold.tolist(), scores, num_findings=counts.tolist())


def test_it_finds_the_calibration_that_labels_were_drawn_by(tmp_path: Path) -> None:
    found, effect = fit([drawn(tmp_path / "a.parquet", temperature=2.0, count_weight=-1.0, bias=0.7)])

    assert found.temperature == pytest.approx(2.0, rel=0.1)
    assert found.count_weight == pytest.approx(-1.0, abs=0.15)
    assert found.bias == pytest.approx(0.7, abs=0.15)
    assert found.threshold == pytest.approx(0.5, abs=0.1)
    assert isinstance(effect.calibration_error_before, Measured)
    assert isinstance(effect.calibration_error_after, Measured)
    assert effect.calibration_error_after.value < 0.03 < effect.calibration_error_before.value


def test_the_same_number_of_findings_everywhere_has_no_weight(tmp_path: Path) -> None:
    found, _ = fit([run(tmp_path / "a.parquet", [1, 1, 0, 0] * 5, [0.9, 0.6, 0.5, 0.1] * 5)])

    assert found.count_weight == 0
    assert math.isfinite(found.temperature)


def test_of_means_the_number_of_findings_has_no_weight(tmp_path: Path) -> None:
    scored = drawn(tmp_path / "a.parquet", temperature=2.0, count_weight=-1.0, bias=0.7)
    found, _ = fit([msgspec.structs.replace(scored, facts=facts(aggregation="mean"))])

    assert found.count_weight == 0
    assert found.fitted is not None and found.fitted.aggregation == "mean"


def test_it_says_what_it_was_fitted_on(tmp_path: Path) -> None:
    scored = run(
        tmp_path / "a.parquet", [1, 1, 0, 0, None, 1], [0.9, 0.8, 0.2, 0.1, 0.5, None], dataset=["b", *["a"] * 5]
    )
    found, effect = fit([scored])

    assert found.fitted is not None
    assert (found.fitted.model, found.fitted.model_digest, found.fitted.paradigm) == ("small", "abc", "sent-nli")
    assert (found.fitted.prompts, found.fitted.aggregation) == ({"sent_nli": "d1"}, "any")
    assert (found.fitted.rows, found.fitted.datasets) == (4, {"a": 3, "b": 1})
    assert effect.rows == 4


def test_calibrated_scores_keep_the_order_of_raw_ones(tmp_path: Path) -> None:
    scored = drawn(tmp_path / "a.parquet", temperature=0.5, count_weight=0, bias=-1, rows=300)
    found, _ = fit([scored])
    alone = scored.rows.select(scored.rows.num_judged == 1)

    order = np.argsort(alone.raw_scores)
    assert np.all(np.diff(calibrated(alone, found)[order]) >= 0)


@pytest.mark.parametrize(
    ("gold", "scores", "message"),
    [
        ([1, 1, 1], [0.9, 0.8, 0.7], "needs scored rows of both labels"),
        ([1, 0], [None, None], "needs scored rows of both labels, got 0 consistent and 0 inconsistent"),
        ([1, 1, 0, 0], [0.1, 0.2, 0.8, 0.9], "scores do not rise with consistency"),
    ],
)
def test_rows_that_no_calibration_fits_are_refused(
    tmp_path: Path, gold: list[int], scores: list[float | None], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        fit([run(tmp_path / "a.parquet", gold, scores)])


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (facts(early_exit=True), "scored with --early-exit"),
        (facts(label_mode="parse"), "no scores to calibrate"),
        (facts(aggregation="share"), "--aggregation share, which counts labels"),
    ],
)
def test_scores_that_mean_something_else_are_refused(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit([run(tmp_path / "a.parquet", [1, 0], [0.9, 0.1], metadata=metadata)])


def test_runs_by_different_methods_are_refused(tmp_path: Path) -> None:
    first = run(tmp_path / "a.parquet", [1, 0], [0.9, 0.1])
    second = run(tmp_path / "b.parquet", [1, 0], [0.9, 0.1], metadata=facts(paradigm="summ-nli"))

    with pytest.raises(UsageError, match="with another paradigm: a calibration is for one method"):
        fit([first, second])
