"""What the report shows of one scored row: plain values, offsets in characters (code points) as in the output.

Columns of a scored file flow in, decoded by `reporting`; the list and the tally read these.
"""

from __future__ import annotations

from msgspec import Struct

from batchfact.records import Label, Span


class ShownFinding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One window or claim: `start` and `end` are characters of the summary, `evidence` of the document."""

    start: int
    end: int
    status: str
    label: Label | None = None
    score: float | None = None
    label_mass: float | None = None
    question: str | None = None
    entity: str | None = None
    reasoning: str | None = None
    evidence: tuple[Span, ...] = ()


class ScoredRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One row of a scored file. `row` counts from 0 in the file; `gold` is the label to measure against, if any."""

    row: int
    summary: str
    status: str
    document: str | None = None
    label: Label | None = None
    score: float | None = None
    message: str | None = None
    findings: tuple[ShownFinding, ...] = ()
    id: str | None = None
    gold: Label | None = None
    summarizer: str | None = None
    dataset: str | None = None
    error_types: tuple[str, ...] = ()
