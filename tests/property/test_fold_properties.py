"""What must hold of any verdict, whatever the findings."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from batchfact.calibration import Calibration
from batchfact.config import FoldPolicy
from batchfact.paradigms.fold import decides, finding_state, fold
from batchfact.records import Finding, FindingStatus, Unscored, Verdict

LOGPROBS = st.floats(min_value=-60, max_value=0) | st.just(-math.inf)
UNKNOWN: list[FindingStatus] = [
    "low_label_mass",
    "unparsed",
    "truncated_reasoning",
    "repetition",
    "cancelled",
    "too_long",
    "engine_error",
]
SCORED = st.builds(lambda pair: Finding(start=0, end=1, logprobs=pair), st.tuples(LOGPROBS, LOGPROBS))
FAILED = st.builds(lambda status: Finding(start=0, end=1, status=status), st.sampled_from(UNKNOWN))
NO_CLAIMS = st.just(Finding(start=0, end=1, status="no_claims"))
FINDINGS = st.lists(SCORED | FAILED | NO_CLAIMS, max_size=8)
CALIBRATIONS = st.none() | st.builds(
    Calibration,
    temperature=st.floats(min_value=0.05, max_value=20),
    count_weight=st.floats(min_value=-3, max_value=3),
    bias=st.floats(min_value=-5, max_value=5),
    threshold=st.just(0.5),
)
POLICIES = st.builds(
    FoldPolicy,
    threshold=st.sampled_from([0.1, 0.5, 0.9]),
    aggregation=st.sampled_from(["any", "mean"]),
    min_label_mass=st.sampled_from([0.0, 0.01, 0.5]),
    calibration=CALIBRATIONS,
)


def shape(folded: Verdict | Unscored) -> tuple[object, ...]:
    """All that a user sees but the order of the findings."""
    if isinstance(folded, Verdict):
        return folded.label, folded.score, folded.score_raw, folded.message
    return (folded.status,)


@settings(deadline=None)
@given(FINDINGS, POLICIES, st.randoms(use_true_random=False))
def test_the_order_of_findings_does_not_matter(findings: list[Finding], policy: FoldPolicy, random: object) -> None:
    shuffled = list(findings)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert shape(fold(findings, policy)) == shape(fold(shuffled, policy))


@settings(deadline=None)
@given(FINDINGS.filter(bool), POLICIES, st.data())
def test_more_support_never_lowers_a_score(findings: list[Finding], policy: FoldPolicy, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(findings) - 1))
    finding = findings[place]
    if finding.logprobs is None or finding_state(finding, policy) != "ok":
        return
    consistent, inconsistent = finding.logprobs
    raised = data.draw(st.floats(min_value=max(consistent, -60), max_value=0))
    better = Finding(start=0, end=1, logprobs=(raised, inconsistent))
    before, after = fold(findings, policy), fold([*findings[:place], better, *findings[place + 1 :]], policy)
    if isinstance(before, Verdict) and isinstance(after, Verdict):
        assert before.score is not None
        assert after.score is not None
        assert after.score >= before.score
        assert (before.label, after.label) != ("consistent", "inconsistent")


@settings(deadline=None)
@given(FINDINGS, POLICIES)
def test_unknown_never_becomes_consistent(findings: list[Finding], policy: FoldPolicy) -> None:
    folded = fold(findings, policy)
    if isinstance(folded, Verdict) and folded.label == "consistent":
        assert all(finding_state(finding, policy) != "unknown" for finding in findings)
        assert any(finding_state(finding, policy) == "ok" for finding in findings)


@settings(deadline=None)
@given(FINDINGS, FAILED, POLICIES)
def test_an_unknown_finding_never_turns_the_label_around(
    findings: list[Finding], unknown: Finding, policy: FoldPolicy
) -> None:
    before, after = fold(findings, policy), fold([*findings, unknown], policy)
    if isinstance(before, Verdict) and isinstance(after, Verdict):
        assert (before.label, before.score) == (after.label, after.score)


@settings(deadline=None)
@given(FINDINGS, FINDINGS, POLICIES)
def test_what_is_decided_stays_decided(first: list[Finding], later: list[Finding], policy: FoldPolicy) -> None:
    """So that early exit may cancel what is left."""
    if decides(first, policy):
        folded = fold([*first, *later], policy)
        assert isinstance(folded, Verdict)
        assert folded.label == "inconsistent"


@settings(deadline=None)
@given(FINDINGS, POLICIES)
def test_a_score_is_a_probability(findings: list[Finding], policy: FoldPolicy) -> None:
    folded = fold(findings, policy)
    if isinstance(folded, Verdict):
        assert folded.score is not None
        assert 0 <= folded.score <= 1
        assert (folded.label == "consistent") == (folded.score >= policy.threshold)
