"""Counts over all rows of a file, taken while they stream by, and what the page says of them.

Rows flow in one at a time; counts, histograms and the ranking of summarisers flow out. Nothing here grows with the
number of rows.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from batchfact.records import Usage
from batchfact.report.rows import ScoredRow

SCORE_BINS = 20
"""Equal bins over [0, 1] of the histogram of scores."""

CONFIDENCE = 0.95


class Share(Struct, frozen=True):
    """A share of some rows, with the ends of its Wilson interval."""

    value: float
    low: float
    high: float


class Ranked(Struct, frozen=True, kw_only=True):
    """One summariser: the share of its scored summaries that are consistent, None where none is scored.

    `gold_share` is the share with the gold label consistent, of the rows with any.
    """

    name: str
    rows: int
    scored: int
    share: Share | None
    gold_share: float | None = None


class Counts:
    """Rows, scored rows, and how many of them are consistent, by the model and by gold labels."""

    def __init__(self) -> None:
        self.rows = self.scored = self.consistent = self.gold = self.gold_consistent = 0

    def add(self, row: ScoredRow) -> None:
        self.rows += 1
        self.scored += row.label is not None
        self.consistent += row.label == "consistent"
        self.gold += row.gold is not None
        self.gold_consistent += row.gold == "consistent"


class Tally:
    """Counters over all rows added so far."""

    def __init__(self) -> None:
        self.rows = 0
        self.labels: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.gold: Counter[str] = Counter()
        self.findings: Counter[str] = Counter()
        """Findings by their label, or by their status where they have none."""
        self.scores: dict[str, list[int]] = {}
        """A histogram for each gold label, and one for the rows without."""
        self.summarizers: dict[str, Counts] = {}
        self.usage = Usage()

    def add(self, row: ScoredRow, usage: Usage) -> None:
        self.rows += 1
        self.statuses[row.status] += 1
        self.labels.update([row.label] if row.label else [])
        self.gold.update([row.gold] if row.gold else [])
        self.findings.update(finding.label or finding.status for finding in row.findings)
        if row.score is not None:
            bins = self.scores.setdefault(row.gold or "no gold label", [0] * SCORE_BINS)
            bins[min(int(row.score * SCORE_BINS), SCORE_BINS - 1)] += 1
        if row.summarizer is not None:
            self.summarizers.setdefault(row.summarizer, Counts()).add(row)
        self.usage += usage

    @property
    def scored(self) -> int:
        return self.labels.total()

    def ranking(self) -> list[Ranked]:
        """Summarisers from the largest share of consistent summaries to the smallest; those without any score last.

        Of equal ones the better known comes first: the one with more scored summaries.
        """
        ranked = [
            Ranked(
                name=name,
                rows=counts.rows,
                scored=counts.scored,
                share=share_of(counts.consistent, counts.scored) if counts.scored else None,
                gold_share=counts.gold_consistent / counts.gold if counts.gold else None,
            )
            for name, counts in self.summarizers.items()
        ]
        return sorted(
            ranked,
            key=lambda each: (each.share is None, -each.share.value if each.share else 0, -each.scored, each.name),
        )


def share_of(part: int, whole: int) -> Share:
    """`part` of `whole` rows, at least one, with Wilson's interval at CONFIDENCE."""
    from scipy.stats import binomtest

    interval = binomtest(part, whole).proportion_ci(CONFIDENCE, method="wilson")
    return Share(part / whole, float(interval.low), float(interval.high))
