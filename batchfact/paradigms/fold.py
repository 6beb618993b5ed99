"""Findings become a verdict.

A pair's raw findings and a FoldPolicy flow in; one Verdict, or Unscored with its typed reason, flows out. `run`,
`reduce`, early exit and the sink all ask this one module, so a finding means the same to each of them. It knows no
model, prompt or file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from msgspec import Struct

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


class Judged(Struct, frozen=True):
    """A finding as a policy reads it. `label` is None unless `status` is ok."""

    finding: Finding
    status: FindingStatus
    label: Label | None

    @property
    def applies(self) -> bool:
        """Whether there was something to judge: a window without claims counts for nothing."""
        return self.status != "no_claims"


def fold(findings: Sequence[Finding], policy: FoldPolicy) -> Verdict | Unscored:
    """A verdict from all findings of a pair, in three-valued logic.

    `any`: the score is the lowest ok score; the pair is inconsistent if an ok finding is, otherwise unscored if a
    finding is unknown, otherwise consistent. `mean`: the score is the mean of the ok scores. `share`: it is the share
    of the findings that are consistent, each by the threshold. With these two an unknown finding makes the pair
    unscored. A finding that does not apply (a window without claims) counts for nothing.

    Args:
        findings: one for each window, or for each claim, in summary order; or several, by chunks of the document, of
            which `over_chunks` makes one.
        policy: threshold and aggregation; a score at or above the threshold counts as consistent. Its calibration, if
            there is one, comes after folding: the findings' own scores stay raw.
    Returns: a Verdict, whose score is None where a label was parsed from text (but for `share`); or Unscored.
    Source: Xu 2024, eq. (2) and (4), and section 3.1 for the mean of ratings. Differs: an unknown finding never
        counts as consistent.
    """
    judged_count = num_judged(findings, policy)
    kept = over_chunks(findings, policy, judged_count)
    applicable = [judged for judged in (judge(finding, policy, judged_count) for finding in kept) if judged.applies]
    if not applicable:
        return Unscored(status="no_claims", message="There was no claim to check in the summary.", findings=kept)
    is_decided = policy.aggregation == "any" and any(judged.label == "inconsistent" for judged in applicable)
    if not is_decided and any(judged.status != "ok" for judged in applicable):
        return unscored(kept, applicable)
    return verdict(kept, applicable, policy, judged_count)


def fold_outcome(outcome: Outcome, policy: FoldPolicy) -> Verdict | Unscored:
    """A row's verdict; a row that no model was asked about keeps its own reason."""
    if outcome.status == "ok":
        return fold(outcome.findings, policy)
    return Unscored(status=outcome.status, message=outcome.message or "", findings=outcome.findings)


def verdict(
    findings: tuple[Finding, ...], applicable: Sequence[Judged], policy: FoldPolicy, judged_count: int
) -> Verdict:
    label: Label
    ok = [judged for judged in applicable if judged.status == "ok"]
    is_share = policy.aggregation == "share"
    raw = share_consistent(ok) if is_share else folded_score([judged.finding for judged in ok], policy)
    score = None if raw is None else calibrated(raw, policy, judged_count)
    if policy.aggregation == "any":
        label = "inconsistent" if any(judged.label == "inconsistent" for judged in ok) else "consistent"
    else:
        compared = share_consistent(ok) if score is None else score
        label = "consistent" if compared >= policy.threshold else "inconsistent"
    return Verdict(label=label, score=score, score_raw=raw, findings=findings, message=describe(applicable, label))


def unscored(findings: tuple[Finding, ...], applicable: Sequence[Judged]) -> Unscored:
    statuses = {judged.status for judged in applicable}
    unknown = [judged for judged in applicable if judged.status != "ok"]
    status: PairStatus = "incomplete"
    if len(statuses) == 1:
        status = COMMON_CAUSE.get(unknown[0].status, "incomplete")
    first = unknown[0]
    reason = REASONS.get(first.status, "it got no answer")
    detail = f" ({first.finding.message})" if first.finding.message else ""
    counted = count(len(unknown), len(applicable), unit(applicable))
    return Unscored(status=status, message=f"{counted} could not be judged: {reason}{detail}.", findings=findings)


def decides(findings_so_far: Sequence[Finding], policy: FoldPolicy) -> bool:
    """Whether no further finding can change the label: one inconsistent finding decides `any`, no other does.

    The score can still fall, so with early exit it is an upper bound. A calibration that raises the scores of pairs
    with more findings leaves every label open until all of them are there.
    """
    if policy.aggregation != "any" or (policy.calibration is not None and policy.calibration.count_weight > 0):
        return False
    judged_count = num_judged(findings_so_far, policy)
    return any(
        finding_label(finding, policy, judged_count) == "inconsistent"
        for finding in over_chunks(findings_so_far, policy, judged_count)
    )


def num_judged(findings: Sequence[Finding], policy: FoldPolicy) -> int:
    """Windows or claims with an ok finding, which is what a calibration counts; chunks of one window count once."""
    ok = [finding for finding in findings if finding_status(finding, policy) == "ok"]
    whole = sum(finding.chunk is None for finding in ok)
    return whole + len({unit_of(finding) for finding in ok if finding.chunk is not None})


def unit_of(finding: Finding) -> tuple[object, ...]:
    """What a finding is about: the same for all chunks of the document that one window or claim was judged by."""
    return finding.start, finding.end, finding.question, finding.entity


def over_chunks(findings: Sequence[Finding], policy: FoldPolicy, judged_count: int) -> tuple[Finding, ...]:
    """One finding for each window or claim: what was judged by several chunks of a document is settled here.

    It is consistent if any chunk supports it; otherwise unknown if a chunk is, which might have; otherwise it is the
    chunk that supports it most. `mean` takes no unknown chunk. The evidence is the chunk that was taken.
    """
    if all(finding.chunk is None for finding in findings):
        return tuple(findings)
    settled: list[Finding] = []
    for _, run in groupby(findings, key=unit_of):
        same = list(run)
        chunks = [finding for finding in same if finding.chunk is not None]
        settled.extend([best_supported(chunks, policy, judged_count)] if chunks else same)
    return tuple(settled)


def best_supported(chunks: Sequence[Finding], policy: FoldPolicy, judged_count: int) -> Finding:
    ok = [finding for finding in chunks if finding_state(finding, policy) == "ok"]
    unknown = [finding for finding in chunks if finding_state(finding, policy) == "unknown"]
    best = max(ok, key=support, default=None)
    is_supported = best is not None and finding_label(best, policy, judged_count) == "consistent"
    is_settled = is_supported and policy.aggregation != "mean"
    if unknown and not is_settled:
        return unknown[0]
    return chunks[0] if best is None else best


def support(finding: Finding) -> float:
    """P(consistent), or what a label alone says of it."""
    return float(finding.label == "consistent") if finding.score is None else finding.score


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
    asked = finding.asked_logprobs
    if not asked:
        return "unparsed"
    if any(math.isnan(logprob) for logprob in asked) or max(asked) == -math.inf:
        return "low_label_mass"
    mass = finding.label_mass
    return "ok" if mass is not None and mass >= policy.min_label_mass else "low_label_mass"


def finding_label(finding: Finding, policy: FoldPolicy, judged_count: int = 1) -> Label | None:
    """The finding's label by the policy's threshold; None unless its state is ok.

    Args:
        judged_count: the pair's `num_judged`; only a calibration asks for it.
    """
    return judge(finding, policy, judged_count).label


def judge(finding: Finding, policy: FoldPolicy, judged_count: int) -> Judged:
    """Read a finding once: everything that folding asks of it."""
    status = finding_status(finding, policy)
    if status != "ok":
        return Judged(finding, status, None)
    if finding.label is not None:
        return Judged(finding, status, finding.label)
    score = finding.score
    if score is None:
        return Judged(finding, status, None)
    is_consistent = calibrated(score, policy, judged_count) >= policy.threshold
    return Judged(finding, status, "consistent" if is_consistent else "inconsistent")


def calibrated(score: float, policy: FoldPolicy, judged_count: int) -> float:
    """The score that the threshold is compared with: calibration keeps the order of scores, so it may come last."""
    return score if policy.calibration is None else policy.calibration.calibrate(score, judged_count)


def folded_score(ok: Sequence[Finding], policy: FoldPolicy) -> float | None:
    """Lowest or mean P(consistent); None if a label was parsed from text and so has no probability."""
    scores = [finding.score for finding in ok]
    known = [score for score in scores if score is not None]
    if len(known) < len(scores):
        return None
    return min(known) if policy.aggregation == "any" else math.fsum(known) / len(known)


def share_consistent(ok: Sequence[Judged]) -> float:
    """The score of `share`, and what `mean` compares with the threshold where labels were parsed."""
    return sum(judged.label == "consistent" for judged in ok) / len(ok)


def describe(applicable: Sequence[Judged], label: Label) -> str:
    """One sentence for a person who reads the row."""
    labels = [judged.label for judged in applicable]
    bad, unjudged, total = labels.count("inconsistent"), labels.count(None), len(labels)
    noun = unit(applicable)
    shown = describe_shown([judged.finding for judged in applicable])
    if label == "consistent" and not bad:
        return f"{count(total, total, noun)} {be(total)} supported by the document.{shown}"
    rest = f"; {unjudged} could not be judged" if unjudged else ""
    if bad == total > 1:
        return f"None of {total} {noun}s is supported by the document.{shown}"
    if label == "consistent":
        rest = "; taken together they are"
    return f"{count(bad, total, noun)} {be(bad)} not supported by the document{rest}.{shown}"


def describe_shown(findings: Sequence[Finding]) -> str:
    """A further sentence where not all of the document was shown at once."""
    if any(finding.chunk is not None for finding in findings):
        return " The document was read in chunks."
    left_out = [finding.left_out for finding in findings if finding.evidence]
    if not any(left_out):
        return ""
    fewest, most = min(left_out), max(left_out)
    counted = str(most) if fewest == most else f"{fewest} to {most}"
    return f" {counted} document {'sentence' if most == 1 else 'sentences'} {be(most)} not shown to the model."


def unit(applicable: Sequence[Judged]) -> str:
    return "claim" if any(judged.finding.question is not None for judged in applicable) else "window"


def count(part: int, total: int, noun: str) -> str:
    if total == 1:
        return f"The only {noun}"
    return f"All {total} {noun}s" if part == total else f"{part} of {total} {noun}s"


def be(part: int) -> str:
    return "is" if part == 1 else "are"
