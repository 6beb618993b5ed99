"""Real pairs, laid out in the ways that matter for speed: from a pool of documents with several summaries each.

Rows of any files with a document and a summary column flow in; one small Parquet file a layout flows out. The same
files, sizes and seed give the same rows.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from batchfact.errors import UsageError

DUPLICATE_SHARE = 0.3
MIN_WORDS, LONG_WORDS, MAX_WORDS = 500, 1500, 3500
"""Words of a document: a usual one, a long one, and the longest that an 8k context surely holds."""

Row = tuple[int, str, str]
"""Number of the pair, document, summary. Files of one layout and its subsets share numbers, so findings can be met."""
Pool = Mapping[str, Sequence[str]]
"""For each document its distinct summaries, in the order of the files."""


class Layout(Struct, frozen=True, kw_only=True):
    """How many summaries a document has, and in which order the rows stand."""

    summaries: int
    shuffled: bool = False
    duplicates: float = 0.0
    min_words: int = MIN_WORDS
    max_words: int = LONG_WORDS
    share_of_pairs: float = 1.0
    """Of the number of pairs that is asked for: dearer layouts have fewer."""
    what: str


LAYOUTS: Mapping[str, Layout] = {
    "adjacent": Layout(summaries=8, what="8 summaries a document, side by side"),
    "shuffled": Layout(summaries=8, shuffled=True, what="the same rows, shuffled"),
    "sixteen": Layout(summaries=16, shuffled=True, what="16 summaries a document, shuffled"),
    "duplicates": Layout(
        summaries=8, shuffled=True, duplicates=DUPLICATE_SHARE, what="8 a document, 30 % of the rows copies, shuffled"
    ),
    "long": Layout(
        summaries=4,
        min_words=LONG_WORDS,
        max_words=MAX_WORDS,
        share_of_pairs=0.25,
        what=f"4 summaries a document of {LONG_WORDS:,} to {MAX_WORDS:,} words, side by side",
    ),
}


def read_pool(files: Iterable[Path]) -> dict[str, list[str]]:
    """Documents with their distinct summaries.

    Raises: UsageError for a file without the columns document and summary.
    """
    pool: dict[str, dict[str, None]] = {}
    for file in files:
        names = pq.read_schema(file).names
        if not {"document", "summary"} <= set(names):
            raise UsageError(f"--input {file} has no columns document and summary")
        for row in pq.read_table(file, columns=["document", "summary"]).to_pylist():
            if row["document"] and row["summary"] and row["summary"].strip():
                pool.setdefault(row["document"].strip(), {})[row["summary"].strip()] = None
    return {document: list(summaries) for document, summaries in pool.items()}


def lay_out(pool: Pool, layout: Layout, num_pairs: int, seed: int) -> list[Row]:
    """About `num_pairs` rows; whole documents, drawn by the seed.

    Where too few documents have enough summaries of their own, those that have the most are taken.
    Raises: UsageError if no document is long enough.
    """
    draw = random.Random(seed)
    fitting = [document for document in pool if layout.min_words <= len(document.split()) <= layout.max_words]
    if not fitting:
        raise UsageError(
            f"no document of the input has {layout.min_words} to {layout.max_words} words, which this layout needs"
        )
    draw.shuffle(fitting)
    fitting.sort(key=lambda document: -min(len(pool[document]), layout.summaries))  # stable: the draw decides ties
    wanted = max(1, round(num_pairs * layout.share_of_pairs * (1 - layout.duplicates)))
    pairs: list[tuple[str, str]] = []
    for document in fitting:
        if len(pairs) >= wanted:
            break
        pairs += [(document, summary) for summary in pool[document][: layout.summaries]]
    copies = round(len(pairs) * layout.duplicates / (1 - layout.duplicates))
    pairs += [draw.choice(pairs) for _ in range(copies)]
    rows = [(number, document, summary) for number, (document, summary) in enumerate(pairs)]
    if layout.shuffled:
        draw.shuffle(rows)
    return rows


def whole_documents(rows: Sequence[Row], num_pairs: int) -> list[Row]:
    """About `num_pairs` of the rows, in their order: evenly spaced documents with all their rows."""
    documents = list(dict.fromkeys(document for _, document, _ in rows))
    count = max(1, min(len(documents), round(len(documents) * num_pairs / len(rows))))
    kept = {documents[place * len(documents) // count] for place in range(count)}
    return [row for row in rows if row[1] in kept]


def by_document(rows: Sequence[Row]) -> list[Row]:
    """Rows of one document side by side, documents in the order of their first row."""
    places = {document: place for place, document in enumerate(dict.fromkeys(row[1] for row in rows))}
    return sorted(rows, key=lambda row: places[row[1]])


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    numbers, documents, summaries = zip(*rows, strict=True)
    table = pa.table({"number": pa.array(numbers, pa.int64()), "document": documents, "summary": summaries})
    pq.write_table(table, path, compression="zstd")


def read_rows(path: Path) -> list[Row]:
    return [(row["number"], row["document"], row["summary"]) for row in pq.read_table(path).to_pylist()]
