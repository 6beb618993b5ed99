"""Findings become a verdict: worked by hand."""

from __future__ import annotations

import math

import pytest

from batchfact.config import FoldPolicy
from batchfact.paradigms.fold import decides, finding_label, finding_state, finding_status, fold, fold_outcome
from batchfact.records import Finding, FindingStatus, Label, Outcome, PairStatus, Unscored, Verdict

ANY = FoldPolicy()
MEAN = FoldPolicy(aggregation="mean")


def scored(score: float, mass: float = 1.0, **fields: str) -> Finding:
    """A finding whose score is `score` and whose labels hold `mass`."""
    return Finding(start=0, end=1, logprobs=(math.log(score * mass), math.log((1 - score) * mass)), **fields)  # type: ignore[arg-type]


def failed(status: FindingStatus, message: str | None = None) -> Finding:
    return Finding(start=0, end=1, status=status, message=message)


def parsed(label: Label) -> Finding:
    return Finding(start=0, end=1, label=label)


def claim(score: float) -> Finding:
    return scored(score, question="Who won?", entity="May")


NO_CLAIMS = failed("no_claims")


@pytest.mark.parametrize(
    ("findings", "label", "score", "message"),
    [
        ([scored(0.9)], "consistent", 0.9, "The only window is supported by the document."),
        ([scored(0.2)], "inconsistent", 0.2, "The only window is not supported by the document."),
        ([scored(0.9), scored(0.7), scored(0.8)], "consistent", 0.7, "All 3 windows are supported by the document."),
        ([scored(0.9), scored(0.4)], "inconsistent", 0.4, "1 of 2 windows is not supported by the document."),
        ([scored(0.1), scored(0.4)], "inconsistent", 0.1, "None of 2 windows is supported by the document."),
        ([claim(0.9), claim(0.4), claim(0.3)], "inconsistent", 0.3, "2 of 3 claims are not supported by the document."),
        ([claim(0.9), NO_CLAIMS], "consistent", 0.9, "The only claim is supported by the document."),
        # a failure beside an error changes nothing: the error stands
        (
            [scored(0.4), failed("engine_error"), scored(0.9)],
            "inconsistent",
            0.4,
            "1 of 3 windows is not supported by the document; 1 could not be judged.",
        ),
        (
            [scored(0.3), scored(0.001, mass=0.001)],
            "inconsistent",
            0.3,
            "1 of 2 windows is not supported by the document; 1 could not be judged.",
        ),
    ],
)
def test_any_is_the_lowest_score_of_the_findings_that_are_ok(
    findings: list[Finding], label: Label, score: float, message: str
) -> None:
    folded = fold(findings, ANY)
    assert isinstance(folded, Verdict)
    assert folded.label == label
    assert folded.score == folded.score_raw == pytest.approx(score)
    assert folded.message == message
    assert folded.findings == tuple(findings)


@pytest.mark.parametrize(
    ("findings", "status", "message"),
    [
        ([], "no_claims", "There was no claim to check in the summary."),
        ([NO_CLAIMS, NO_CLAIMS], "no_claims", "There was no claim to check in the summary."),
        # an unknown finding never counts as support
        (
            [scored(0.9), failed("engine_error", "aborted")],
            "incomplete",
            "1 of 2 windows could not be judged: the engine failed (aborted).",
        ),
        ([scored(0.9), scored(0.9, mass=0.001)], "incomplete", "1 of 2 windows could not be judged: "),
        # one cause for all
        ([failed("too_long")], "too_long", "The only window could not be judged: the prompt does not fit the model."),
        ([failed("too_long"), NO_CLAIMS], "too_long", "The only window could not be judged: "),
        ([failed("unparsed"), failed("unparsed")], "unparsed", "All 2 windows could not be judged: "),
        ([failed("engine_error")] * 3, "engine_error", "All 3 windows could not be judged: "),
        ([scored(0.9, mass=0.001)], "refused", "The only window could not be judged: the model answered with neither"),
        # several causes, or one that names no status of a pair
        ([failed("too_long"), failed("unparsed")], "incomplete", "All 2 windows could not be judged: "),
        ([failed("truncated_reasoning")], "incomplete", "The only window could not be judged: the reasoning was cut"),
        ([failed("repetition")], "incomplete", "The only window could not be judged: the model repeated itself"),
        ([failed("cancelled")], "incomplete", "The only window could not be judged: it was cancelled."),
    ],
)
def test_without_an_error_an_unknown_finding_leaves_the_pair_unscored(
    findings: list[Finding], status: PairStatus, message: str
) -> None:
    folded = fold(findings, ANY)
    assert isinstance(folded, Unscored)
    assert folded.status == status
    assert folded.message.startswith(message)
    assert folded.findings == tuple(findings)


@pytest.mark.parametrize(
    ("findings", "label", "score"),
    [
        ([scored(0.9), scored(0.3)], "consistent", 0.6),
        ([scored(0.9), scored(0.05)], "inconsistent", 0.475),
        ([scored(0.2), NO_CLAIMS], "inconsistent", 0.2),
        ([parsed("consistent"), parsed("consistent"), parsed("inconsistent")], "consistent", None),
        ([parsed("consistent"), parsed("inconsistent"), parsed("inconsistent")], "inconsistent", None),
    ],
)
def test_mean_is_the_mean_of_the_findings_that_are_ok(
    findings: list[Finding], label: Label, score: float | None
) -> None:
    folded = fold(findings, MEAN)
    assert isinstance(folded, Verdict)
    assert folded.label == label
    assert folded.score == (None if score is None else pytest.approx(score))


def test_mean_needs_every_finding() -> None:
    folded = fold([scored(0.1), failed("repetition")], MEAN)
    assert isinstance(folded, Unscored)
    assert folded.status == "incomplete"


def test_a_score_at_the_threshold_is_consistent() -> None:
    at = scored(0.5)
    for policy in (ANY, MEAN):
        folded = fold([at], policy)
        assert isinstance(folded, Verdict)
        assert folded.label == "consistent"
    assert finding_label(scored(0.74), FoldPolicy(threshold=0.75)) == "inconsistent"


def test_parsed_labels_give_a_verdict_without_a_score() -> None:
    folded = fold([parsed("consistent"), parsed("inconsistent")], ANY)
    assert isinstance(folded, Verdict)
    assert (folded.label, folded.score, folded.score_raw) == ("inconsistent", None, None)


def test_one_parsed_label_takes_the_score_from_the_whole_pair() -> None:
    folded = fold([scored(0.9), parsed("consistent")], ANY)
    assert isinstance(folded, Verdict)
    assert (folded.label, folded.score) == ("consistent", None)


@pytest.mark.parametrize(
    ("finding", "status", "state", "label"),
    [
        (scored(0.9), "ok", "ok", "consistent"),
        (scored(0.1), "ok", "ok", "inconsistent"),
        (parsed("inconsistent"), "ok", "ok", "inconsistent"),
        (scored(0.9, mass=0.02), "ok", "ok", "consistent"),
        (scored(0.9, mass=0.009), "low_label_mass", "unknown", None),
        (Finding(start=0, end=1, logprobs=(0.0, -math.inf)), "ok", "ok", "consistent"),
        (Finding(start=0, end=1, logprobs=(-math.inf, 0.0)), "ok", "ok", "inconsistent"),
        (Finding(start=0, end=1, logprobs=(-math.inf, -math.inf)), "low_label_mass", "unknown", None),
        (Finding(start=0, end=1, logprobs=(math.nan, -0.1)), "low_label_mass", "unknown", None),
        (Finding(start=0, end=1), "unparsed", "unknown", None),
        (NO_CLAIMS, "no_claims", "not_applicable", None),
        (failed("cancelled"), "cancelled", "unknown", None),
    ],
)
def test_a_finding_is_ok_unknown_or_does_not_apply(
    finding: Finding, status: FindingStatus, state: str, label: Label | None
) -> None:
    assert finding_status(finding, ANY) == status
    assert finding_state(finding, ANY) == state
    assert finding_label(finding, ANY) == label


def test_the_floor_of_label_mass_is_the_policys() -> None:
    shy = scored(0.9, mass=0.009)
    assert finding_state(shy, FoldPolicy(min_label_mass=0)) == "ok"
    nothing = Finding(start=0, end=1, logprobs=(-math.inf, -math.inf))
    assert finding_state(nothing, FoldPolicy(min_label_mass=0)) == "unknown"


def test_one_inconsistent_finding_decides_any_and_nothing_decides_mean() -> None:
    assert not decides([], ANY)
    assert not decides([scored(0.9), failed("unparsed"), NO_CLAIMS], ANY)
    assert decides([scored(0.9), scored(0.1)], ANY)
    assert not decides([scored(0.1)], MEAN)


def test_a_row_that_no_model_was_asked_about_keeps_its_reason() -> None:
    outcome = Outcome(row=3, text_hash=1, status="empty_summary", message="The summary is empty.")
    assert fold_outcome(outcome, ANY) == Unscored(status="empty_summary", message="The summary is empty.")
    assert fold_outcome(Outcome(row=3, text_hash=1, findings=(scored(0.9),)), ANY) == fold([scored(0.9)], ANY)
