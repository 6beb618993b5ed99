"""A calibration: its arithmetic, its file, and what it changes in a fold and in the settings."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batchfact.calibration import Calibration, Fitted, logit, read_calibration, sigmoid, write_calibration
from batchfact.config import FoldPolicy
from batchfact.errors import UsageError
from batchfact.models import ModelEntry, registry
from batchfact.models.registry import Folder
from batchfact.paradigms.fold import decides, finding_label, fold, num_judged
from batchfact.records import Finding
from batchfact.settings import make_config
from batchfact.sink import verdict_columns
from tests.unit.test_fold import failed, scored

FITTED = Fitted(
    model="small",
    model_digest="abc",
    paradigm="sent-nli",
    reasoning=False,
    rating=False,
    aggregation="any",
    prompts={"sent_nli": "d1"},
    rows=120,
    datasets={'a "set"': 70, "b": 50},
    batchfact_version="0.1.0",
)
CALIBRATION = Calibration(temperature=2.0, count_weight=-1.0, bias=0.5, threshold=0.4, fitted=FITTED)
POLICY = FoldPolicy(threshold=0.4, calibration=CALIBRATION)


def test_the_logit_is_divided_and_count_and_bias_are_added() -> None:
    # logit(0.8) = ln 4, halved ln 2; less ln 2 for two findings; so the bias alone is left.
    assert CALIBRATION.calibrate(0.8, 2) == pytest.approx(1 / (1 + math.exp(-0.5)))


@pytest.mark.parametrize("score", [0.0, 1.0])
def test_sure_scores_stay_finite(score: float) -> None:
    assert 0 < CALIBRATION.calibrate(score, 1) < 1


def test_the_identity_leaves_scores_as_they_are() -> None:
    identity = Calibration(temperature=1, count_weight=0, bias=0, threshold=0.5)

    assert identity.calibrate(0.3, 4) == pytest.approx(0.3)
    assert sigmoid(logit(0.07)) == pytest.approx(0.07)


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": 0.0}, {"temperature": -1.0}, {"bias": math.inf}, {"count_weight": math.nan}, {"threshold": 1.0}],
)
def test_numbers_that_could_turn_scores_around_are_refused(wrong: dict[str, Any]) -> None:
    good: dict[str, Any] = {"temperature": 1.0, "count_weight": 0.0, "bias": 0.0, "threshold": 0.5}

    with pytest.raises(ValueError, match="must"):
        Calibration(**{**good, **wrong})


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    write_calibration(tmp_path / "c.toml", CALIBRATION)

    assert read_calibration(tmp_path / "c.toml") == CALIBRATION


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("temperature = 1", "no calibration"),
        ("= 1", "no calibration"),
        ("temperature = -1\ncount_weight = 0\nbias = 0\nthreshold = 0.5", "temperature must be above 0"),
        ("temperature = 1\ncount_weight = 0\nbias = 0\nthreshold = 0.5\nslope = 1", "slope"),
    ],
)
def test_a_file_that_holds_none_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)

    with pytest.raises(UsageError, match=message):
        read_calibration(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_calibration(tmp_path / "none.toml")


def test_the_verdict_has_the_raw_score_beside_the_calibrated_one() -> None:
    verdict = fold([scored(0.9), scored(0.8)], POLICY)

    assert verdict.score_raw == pytest.approx(0.8)
    assert verdict.score == pytest.approx(CALIBRATION.calibrate(0.8, 2))
    assert verdict.label == "consistent"


def test_findings_have_labels_by_the_verdicts_threshold_and_raw_scores() -> None:
    # Over two findings a raw score of 0.4 gives sigmoid(0.5 ln(2/3) - ln 2 + 0.5) = 0.40 and 0.3 gives 0.35.
    findings = (scored(0.9), scored(0.3))
    column = verdict_columns([_outcome(findings)], POLICY)[0][5].to_pylist()[0]

    assert [each["label"] for each in column] == ["consistent", "inconsistent"]
    assert [each["score"] for each in column] == pytest.approx([0.9, 0.3])
    assert finding_label(scored(0.3), POLICY, 1) == "consistent"  # alone it would do


def _outcome(findings: tuple[Finding, ...]) -> Any:
    from batchfact.records import Outcome

    return Outcome(row=0, text_hash=0, findings=findings)


def test_chunks_of_a_window_and_unknown_findings_count_as_one_and_none() -> None:
    chunks = [msgspec.structs.replace(scored(0.6), chunk=number) for number in range(3)]

    assert num_judged([scored(0.5), *chunks, failed("unparsed")], FoldPolicy()) == 2


def test_early_exit_waits_where_more_findings_could_raise_the_score() -> None:
    rising = msgspec.structs.replace(CALIBRATION, count_weight=0.1)

    assert decides([scored(0.01)], POLICY)
    assert not decides([scored(0.01)], FoldPolicy(threshold=0.4, calibration=rising))


def test_the_share_of_labels_is_not_calibrated() -> None:
    with pytest.raises(UsageError, match="--aggregation share counts labels"):
        FoldPolicy(aggregation="share", calibration=CALIBRATION)


# Settings


@pytest.fixture
def file(tmp_path: Path) -> str:
    write_calibration(tmp_path / "c.toml", CALIBRATION)
    return str(tmp_path / "c.toml")


def test_the_calibrations_threshold_is_the_default(file: str) -> None:
    assert make_config((), "", {"calibration": file}).fold == POLICY
    assert make_config((), "", {"calibration": file, "threshold": 0.9}).fold.threshold == 0.9


def test_a_calibration_may_be_given_as_it_is() -> None:
    assert make_config((), "", {"calibration": CALIBRATION}).fold == POLICY
    assert make_config((), "", {"calibration": msgspec.to_builtins(CALIBRATION)}).fold == POLICY


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"paradigm": "summ-nli"}, "fitted with paradigm sent-nli, this run has summ-nli"),
        ({"reasoning": True}, "fitted with reasoning False"),
        ({"rating": True}, "fitted with rating False"),
        ({"aggregation": "mean"}, "fitted with aggregation any"),
        ({"label-mode": "parse"}, "--label-mode parse has none"),
    ],
)
def test_a_calibration_for_another_method_is_refused(file: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_config((), "", {"calibration": file, **options})


@pytest.fixture
def calibrated_model(file: str, monkeypatch: pytest.MonkeyPatch) -> str:
    entry = ModelEntry(name="tuned", source=Folder(path=Path("/nowhere")), calibration=file)
    monkeypatch.setattr(registry, "shipped_models", lambda: {"tuned": entry})
    return "tuned"


def test_a_models_own_calibration_is_used_unless_it_is_turned_off(calibrated_model: str) -> None:
    assert make_config((), "", {"model": calibrated_model}).fold == POLICY
    assert make_config((), "", {"model": calibrated_model, "threshold": 0.3}).fold.threshold == 0.3
    assert make_config((), "", {"model": calibrated_model, "calibration": "none"}).fold == FoldPolicy()
    assert make_config((), "", {"model": "another"}).fold == FoldPolicy()


def test_a_models_own_calibration_is_only_for_its_method(calibrated_model: str) -> None:
    assert make_config((), "", {"model": calibrated_model, "paradigm": "qg-qa"}).fold == FoldPolicy()


def test_a_calibration_brings_the_aggregation_that_it_was_fitted_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_means = msgspec.structs.replace(CALIBRATION, fitted=msgspec.structs.replace(FITTED, aggregation="mean"))
    write_calibration(tmp_path / "mean.toml", of_means)
    file = str(tmp_path / "mean.toml")
    entry = ModelEntry(name="tuned", source=Folder(path=Path("/nowhere")), calibration=file)
    monkeypatch.setattr(registry, "shipped_models", lambda: {"tuned": entry})

    assert make_config((), "", {"model": "other", "calibration": file}).fold.aggregation == "mean"
    own = make_config((), "", {"model": "tuned"}).fold
    assert (own.aggregation, own.calibration) == ("mean", of_means)
    assert make_config((), "", {"model": "tuned", "aggregation": "any"}).fold == FoldPolicy()
    assert make_config((), "", {"model": "tuned", "calibration": "none"}).fold == FoldPolicy()
    assert make_config((), "", {"model": "tuned", "paradigm": "summ-nli"}).fold == FoldPolicy()


@pytest.mark.parametrize("path", [".", ""])
def test_a_calibration_needs_the_name_of_a_file(path: str) -> None:
    with pytest.raises(UsageError, match="is no name of a file"):
        write_calibration(Path(path), CALIBRATION)
