"""Ratings from 1 to 5: asked for, turned into a score, and folded."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchfact.config import FoldPolicy, Identity
from batchfact.paradigms.fold import finding_status, fold
from batchfact.records import Finding, Outcome, Verdict, expected_rating
from batchfact.settings import make_config
from tests.unit.paradigm_fakes import Script, chosen, pair, run, wrote

NEVER = -math.inf
EVEN = (math.log(0.2),) * 5


def rated(*logprobs: float) -> Finding:
    return Finding(start=0, end=1, rating_logprobs=logprobs)


def sure_of(rating: int) -> Finding:
    return rated(*(0.0 if number == rating else NEVER for number in range(1, 6)))


@pytest.mark.parametrize(
    ("finding", "score", "mass"),
    [
        (sure_of(1), 0.0, 1.0),
        (sure_of(2), 0.25, 1.0),
        (sure_of(5), 1.0, 1.0),
        (rated(*EVEN), 0.5, 1.0),
        (rated(NEVER, NEVER, NEVER, math.log(0.1), math.log(0.3)), (3 * 0.25 + 4 * 0.75) / 4, 0.4),
    ],
)
def test_the_score_is_the_expected_rating_scaled(finding: Finding, score: float, mass: float) -> None:
    assert finding.score == pytest.approx(score)
    assert finding.label_mass == pytest.approx(mass)


@given(st.lists(st.floats(-50, 0), min_size=5, max_size=5), st.floats(-20, 0))
def test_the_expected_rating_lies_in_the_scale_and_ignores_the_mass(logprobs: list[float], shift: float) -> None:
    score = expected_rating(tuple(logprobs))
    assert 0 <= score <= 1
    assert expected_rating(tuple(each + shift for each in logprobs)) == pytest.approx(score)
    assert expected_rating(tuple(reversed(logprobs))) == pytest.approx(1 - score)


@pytest.mark.parametrize(
    ("finding", "status"),
    [
        (sure_of(3), "ok"),
        (rated(*(-20.0,) * 5), "low_label_mass"),
        (rated(*(NEVER,) * 5), "low_label_mass"),
        (rated(math.nan, -1, -1, -1, -1), "low_label_mass"),
    ],
)
def test_a_rating_without_probability_is_unknown(finding: Finding, status: str) -> None:
    assert finding_status(finding, FoldPolicy()) == status


def test_a_rating_survives_the_journal() -> None:
    outcome = Outcome(row=0, text_hash=1, findings=(sure_of(2),))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(outcome), type=Outcome) == outcome


def test_the_mean_of_windows_is_the_summary_s() -> None:
    folded = fold([sure_of(5), sure_of(2)], FoldPolicy(aggregation="mean"))
    assert isinstance(folded, Verdict)
    assert folded.label == "consistent"
    assert folded.score == pytest.approx(0.625)
    assert folded.message == "1 of 2 windows is not supported by the document; taken together they are."


@pytest.mark.parametrize(
    ("good", "bad", "score", "label"),
    [(3, 1, 0.75, "consistent"), (1, 2, 1 / 3, "inconsistent"), (2, 0, 1, "consistent")],
)
@pytest.mark.parametrize("is_parsed", [False, True])
def test_the_share_of_consistent_claims_is_a_score_even_where_labels_were_parsed(
    good: int, bad: int, score: float, label: str, is_parsed: bool
) -> None:
    def claim(is_good: bool) -> Finding:
        about = Finding(start=0, end=1, question="Who?", entity="Ann")
        if is_parsed:
            return msgspec.structs.replace(about, label="consistent" if is_good else "inconsistent")
        return msgspec.structs.replace(about, logprobs=(-0.1, -2.4) if is_good else (-2.4, -0.1))

    folded = fold([claim(True)] * good + [claim(False)] * bad, FoldPolicy(aggregation="share"))
    assert isinstance(folded, Verdict)
    assert folded.label == label
    assert folded.score == pytest.approx(score)


@pytest.mark.parametrize(
    ("paradigm", "context"),
    [("summ-nli", "none"), ("sent-nli", "none"), ("sent-nli", "preceding"), ("sent-nli", "summary")],
)
@pytest.mark.parametrize("reasoning", [False, True])
def test_ratings_are_chosen_among_the_five(paradigm: str, context: str, reasoning: bool) -> None:
    identity = Identity(paradigm=paradigm, window_context=context, rating=True)  # type: ignore[arg-type]
    replies = {f"w{n}": chosen(f"w{n}", EVEN) for n in range(2)}
    replies |= {f"w{n}.reason": wrote(f"w{n}.reason", "It fits.") for n in range(2)}  # type: ignore[misc]
    script = Script(replies)
    findings = run(identity, pair("It rained. It snowed."), script, reasoning=reasoning)

    assert script.asked["w0"].labels == ("1", "2", "3", "4", "5")
    assert [finding.rating_logprobs for finding in findings] == [EVEN] * len(findings)
    assert all(finding.logprobs is None and finding.score == pytest.approx(0.5) for finding in findings)


def test_a_reply_with_too_few_ratings_is_a_failure() -> None:
    script = Script({"w0": chosen("w0", (-1.0, -1.0))})
    (finding,) = run(Identity(paradigm="summ-nli", rating=True), pair("It rained."), script)

    assert finding.status == "engine_error"


@pytest.mark.parametrize(
    ("options", "aggregation"),
    [
        ({"rating": True}, "mean"),
        ({"rating": True, "paradigm": "summ-nli"}, "mean"),
        ({"rating": True, "paradigm": "qg-qa"}, "share"),
        ({"rating": True, "aggregation": "any"}, "any"),
        ({"calibration": "none"}, "any"),
        ({"model": "smollm2-135m"}, "any"),
    ],
)
def test_a_rating_implies_how_findings_are_put_together(options: dict[str, object], aggregation: str) -> None:
    assert make_config(("in",), "out", options).fold.aggregation == aggregation
