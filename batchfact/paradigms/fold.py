"""Findings become a verdict.

A pair's raw findings and a FoldPolicy flow in; one Verdict, or Unscored with its typed reason, flows out. `run`,
`reduce`, early exit and the sink all ask this one module, so a finding means the same to each of them. It knows no
model, prompt or file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from batchfact.config import FoldPolicy
from batchfact.records import Finding, FindingStatus, Label, Outcome, PairStatus, Unscored, Verdict

State = Literal["ok", "unknown", "not_applicable"]

COMMON_CAUSE: dict[FindingStatus, PairStatus] = {
    "too_long": "too_long",
    "unparsed": "unparsed",
    "engine_error": "engine_error",
    "low_label_mass": "refused",
    "refused": "refused",
}
"""The pair's status where every finding that applies failed in the same way; any other mixture is `incomplete`."""

REASONS: dict[FindingStatus, str] = {
    "low_label_mass": "the model answered with neither label",
    "unparsed": "the answer could not be read",
    "truncated_reasoning": "the reasoning was cut off",
    "repetition": "the model repeated itself",
    "refused": "the model refused to answer",
    "cancelled": "it was cancelled",
    "too_long": "the prompt does not fit the model",
    "engine_error": "the engine failed",
}


def fold(findings: Sequence[Finding], policy: FoldPolicy) -> Verdict | Unscored:
    """A verdict from all findings of a pair, in three-valued logic.

    `any`: the score is the lowest ok score; the pair is inconsistent if an ok finding is, otherwise unscored if a
    finding is unknown, otherwise consistent. `mean`: the score is the mean of the ok scores; an unknown finding makes
    the pair unscored. A finding that does not apply (a window without claims) counts for nothing.

    Args:
        findings: one for each window, or for each claim, in summary order.
        policy: threshold and aggregation; a score at or above the threshold counts as consistent.
    Returns: a Verdict, whose score is None where a label was parsed from text; or Unscored.
    Source: Xu 2024, eq. (2) and (4). Differs: an unknown finding never counts as consistent.
    """
    kept = tuple(findings)
    ok = [finding for finding in kept if finding_state(finding, policy) == "ok"]
    unknown = [finding for finding in kept if finding_state(finding, policy) == "unknown"]
    if not ok and not unknown:
        return Unscored(status="no_claims", message="There was no claim to check in the summary.", findings=kept)
    if unknown and (policy.aggregation == "mean" or not decides(ok, policy)):
        return unscored(kept, unknown, policy)
    return verdict(kept, ok, policy)


def fold_outcome(outcome: Outcome, policy: FoldPolicy) -> Verdict | Unscored:
    """A row's verdict; a row that no model was asked about keeps its own reason."""
    if outcome.status == "ok":
        return fold(outcome.findings, policy)
    return Unscored(status=outcome.status, message=outcome.message or "", findings=outcome.findings)


def verdict(findings: tuple[Finding, ...], ok: Sequence[Finding], policy: FoldPolicy) -> Verdict:
    label: Label
    score = folded_score(ok, policy)
    if policy.aggregation == "any":
        label = "inconsistent" if decides(ok, policy) else "consistent"
    else:
        label = label_of(score if score is not None else share_consistent(ok), policy)
    return Verdict(
        label=label, score=score, score_raw=score, findings=findings, message=describe(findings, label, policy)
    )


def unscored(findings: tuple[Finding, ...], unknown: Sequence[Finding], policy: FoldPolicy) -> Unscored:
    applicable = [finding for finding in findings if finding_state(finding, policy) != "not_applicable"]
    statuses = {finding_status(finding, policy) for finding in applicable}
    status: PairStatus = "incomplete"
    if len(statuses) == 1:
        status = COMMON_CAUSE.get(next(iter(statuses)), "incomplete")
    first = unknown[0]
    reason = REASONS.get(finding_status(first, policy), "it got no answer")
    detail = f" ({first.message})" if first.message else ""
    counted = count(len(unknown), len(applicable), unit(applicable))
    return Unscored(status=status, message=f"{counted} could not be judged: {reason}{detail}.", findings=findings)


def decides(findings_so_far: Sequence[Finding], policy: FoldPolicy) -> bool:
    """Whether no further finding can change the label: one inconsistent finding decides `any`, nothing decides `mean`.

    The score can still fall, so with early exit it is an upper bound.
    """
    return policy.aggregation == "any" and any(
        finding_label(finding, policy) == "inconsistent" for finding in findings_so_far
    )


def finding_state(finding: Finding, policy: FoldPolicy) -> State:
    """Whether a finding counts, is unknown, or does not apply (a window that holds no claim)."""
    status = finding_status(finding, policy)
    if status == "ok":
        return "ok"
    return "not_applicable" if status == "no_claims" else "unknown"


def finding_status(finding: Finding, policy: FoldPolicy) -> FindingStatus:
    """The finding's own status, or what its numbers say under the policy: `low_label_mass`, or `unparsed` for none."""
    if finding.status != "ok" or finding.label is not None:
        return finding.status
    if finding.logprobs is None:
        return "unparsed"
    if any(math.isnan(logprob) for logprob in finding.logprobs) or max(finding.logprobs) == -math.inf:
        return "low_label_mass"
    mass = finding.label_mass
    return "ok" if mass is not None and mass >= policy.min_label_mass else "low_label_mass"


def finding_label(finding: Finding, policy: FoldPolicy) -> Label | None:
    """The finding's label by the policy's threshold; None unless its state is ok."""
    if finding_state(finding, policy) != "ok":
        return None
    if finding.label is not None:
        return finding.label
    return label_of(finding.score, policy) if finding.score is not None else None


def label_of(score: float, policy: FoldPolicy) -> Label:
    return "consistent" if score >= policy.threshold else "inconsistent"


def folded_score(ok: Sequence[Finding], policy: FoldPolicy) -> float | None:
    """Lowest or mean P(consistent); None if a label was parsed from text and so has no probability."""
    scores = [finding.score for finding in ok]
    known = [score for score in scores if score is not None]
    if len(known) < len(scores):
        return None
    return min(known) if policy.aggregation == "any" else math.fsum(known) / len(known)


def share_consistent(ok: Sequence[Finding]) -> float:
    """What `mean` compares with the threshold where labels were parsed: the share of consistent findings."""
    return sum(finding.label == "consistent" for finding in ok) / len(ok)


def describe(findings: Sequence[Finding], label: Label, policy: FoldPolicy) -> str:
    """One sentence for a person who reads the row."""
    labels = [finding_label(finding, policy) for finding in findings if finding.status != "no_claims"]
    bad, unjudged, total = labels.count("inconsistent"), labels.count(None), len(labels)
    noun = unit([finding for finding in findings if finding.status != "no_claims"])
    if label == "consistent" and not bad:
        return f"{count(total, total, noun)} {be(total)} supported by the document."
    rest = f"; {unjudged} could not be judged" if unjudged else ""
    return f"{count(bad, total, noun)} {be(bad)} not supported by the document{rest}."


def unit(findings: Sequence[Finding]) -> str:
    return "claim" if any(finding.question is not None for finding in findings) else "window"


def count(part: int, total: int, noun: str) -> str:
    if total == 1:
        return f"The only {noun}"
    return f"All {total} {noun}s" if part == total else f"{part} of {total} {noun}s"


def be(part: int) -> str:
    return "is" if part == 1 else "are"
