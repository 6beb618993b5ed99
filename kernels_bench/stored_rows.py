"""Made-up input, outcomes and parts for the kernels on files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from batchfact.journal import Journal
from batchfact.records import Finding, Outcome, Pair
from batchfact.source import Source, open_source
from bench.inputs import write_input

PART_ROWS = 4096
"""Outcomes that a run commits at once."""
DOCUMENT_BYTES = 2000


def make_source(folder: Path, rows: int) -> Source:
    path = folder / f"input-{rows}.parquet"
    write_input(path, rows, DOCUMENT_BYTES)
    return open_source([str(path)])


def make_outcomes(source: Source) -> list[Outcome]:
    """An outcome for each row, with the two findings of a summary of two windows."""
    return [
        Outcome(row=pair.row, text_hash=pair.text_hash, findings=_findings(pair))
        for pair in source.pairs()
        if isinstance(pair, Pair)
    ]


def _findings(pair: Pair) -> tuple[Finding, ...]:
    middle, end = len(pair.summary) // 2, len(pair.summary)
    surely, hardly = -0.01 - pair.row % 7 / 100, -3.5 - pair.row % 5 / 10
    return (
        Finding(start=0, end=middle, logprobs=(surely, hardly)),
        Finding(start=middle, end=end, logprobs=(hardly, surely)),
    )


def in_parts(outcomes: Sequence[Outcome], part_rows: int) -> list[Sequence[Outcome]]:
    return [outcomes[start : start + part_rows] for start in range(0, len(outcomes), part_rows)]


def open_new_journal(folder: Path) -> Journal:
    return Journal.open(folder, {}, {}, {})


def new_folders(folder: Path, name: str) -> Iterator[Path]:
    """A fresh name for each run of an arm."""
    return (folder / f"{name}-{number}" for number in count())
