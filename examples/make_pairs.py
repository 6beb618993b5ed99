"""Make pairs.parquet from the texts in pairs.toml.

In: `pairs.toml` beside this file, documents with their summaries. Out: `pairs.parquet`, one row a summary, always in
the same order. It knows nothing of batchfact: these are the rows that a user would bring.

    python examples/make_pairs.py            write pairs.parquet, or leave it alone if it already says the same
    python examples/make_pairs.py --check    write nothing; exit 1 if it would have to be written
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent
TEXTS = HERE / "pairs.toml"
PAIRS = HERE / "pairs.parquet"

Domain = Literal["news", "dialogue", "meeting", "report", "story"]
ErrorType = Literal["entity", "circumstance", "predicate", "coreference", "logic", "out_of_document"]
ERROR_TYPES: tuple[str, ...] = get_args(ErrorType)

# Small, so that even this file has several row groups and document groups that reach over their ends.
ROWS_A_GROUP = 16

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("document", pa.string(), nullable=False),
        pa.field("summary", pa.string(), nullable=False),
        pa.field("label", pa.int8(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("error_type", pa.string()),
        pa.field("domain", pa.string(), nullable=False),
        pa.field("summarizer", pa.string(), nullable=False),
    ]
)


class Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one summariser wrote; `label` is 1 for consistent, 0 for inconsistent."""

    summarizer: str
    label: Literal[0, 1]
    text: str
    reason: str
    error_type: ErrorType | None = None


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A document and its summaries. Those of a `scattered` one, save the first, go to the end of the table."""

    id: str
    domain: Domain
    text: str
    summaries: tuple[Summary, ...]
    scattered: bool = False


class Texts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole of pairs.toml."""

    documents: tuple[Document, ...]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table; the fields are its columns."""

    id: str
    document: str
    summary: str
    label: int
    reason: str
    error_type: str | None
    domain: str
    summarizer: str


def read_texts(path: Path = TEXTS) -> tuple[Document, ...]:
    """The documents of a TOML file, checked.

    Raises: msgspec.ValidationError for a missing, unknown or ill-typed field; ValueError for what `check` refuses.
    """
    documents = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Texts).documents
    check(documents)
    return documents


def check(documents: Sequence[Document]) -> None:
    """Refuse texts that would make a wrong row.

    Raises: ValueError naming the row and the rule, for a repeated id or document, an empty text, an error type on a
        consistent summary or none on an inconsistent one, or a reason that does not quote the wrong words.
    """
    rows = [row for document in documents for row in rows_of(document)]
    if twice := repeated(row.id for row in rows):
        raise ValueError(f"ids must be unique, repeated: {', '.join(twice)}")
    if twice := repeated(document.text.strip() for document in documents):
        raise ValueError(f"documents must differ, repeated: {twice[0][:60]!r}")
    for row in rows:
        if problem := problem_of(row):
            raise ValueError(f"{row.id}: {problem}")


def repeated(words: Iterable[str]) -> list[str]:
    return sorted(word for word, times in Counter(words).items() if times > 1)


def problem_of(row: Row) -> str | None:
    """What is wrong with one row, or None."""
    if not (row.document and row.summary and row.reason):
        return "document, summary and reason must not be empty"
    if (row.label == 1) != (row.error_type is None):
        return f"label {row.label} does not go with error_type {row.error_type}"
    if row.label == 0 and wrong_words(row.reason) not in row.summary:
        return "the reason must begin with words quoted from the summary"
    return None


def wrong_words(reason: str) -> str:
    """The quotation that opens a reason; the reason itself, which no summary holds, where there is none."""
    opening, _, rest = reason.partition('"')
    words, closing, _ = rest.partition('"')
    return words if not opening and closing and words else reason


def rows_of(document: Document) -> Iterator[Row]:
    for summary in document.summaries:
        yield Row(
            id=f"{document.id}/{summary.summarizer}",
            document=document.text.strip(),
            summary=summary.text.strip(),
            label=summary.label,
            reason=summary.reason.strip(),
            error_type=summary.error_type,
            domain=document.domain,
            summarizer=summary.summarizer,
        )


def order(documents: Sequence[Document]) -> list[Row]:
    """All rows: document by document, then what scattered documents have left, one summary of each in turn."""
    near: list[Row] = []
    far: list[tuple[int, Row]] = []
    for document in documents:
        rows = list(rows_of(document))
        kept = 1 if document.scattered else len(rows)
        near += rows[:kept]
        far += enumerate(rows[kept:])
    return near + [row for _, row in sorted(far, key=lambda turn: turn[0])]


def make_table(documents: Sequence[Document]) -> pa.Table:
    """The table that pairs.parquet holds: a pure function of the texts."""
    return pa.Table.from_pylist([msgspec.structs.asdict(row) for row in order(documents)], schema=SCHEMA)


def is_current(path: Path, table: pa.Table) -> bool:
    """Whether the file holds just this table.

    Tables are compared, not bytes: another pyarrow version writes the same rows in other bytes.
    """
    if not path.exists():
        return False
    try:
        return bool(pq.read_table(path).equals(table))
    except pa.ArrowInvalid:  # not Parquet, or cut short: write it anew
        return False


def write(path: Path, table: pa.Table) -> None:
    """Write the table under a temporary name and rename it, so that no half of a file is ever seen."""
    partial = path.with_name(path.name + ".partial")
    pq.write_table(table, partial, row_group_size=ROWS_A_GROUP, compression="zstd", compression_level=9)
    partial.replace(path)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make pairs.parquet from pairs.toml.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file is out of date")
    parser.add_argument("--output", type=Path, default=PAIRS, help="the file to make (default: %(default)s)")
    options = parser.parse_args(arguments)
    table = make_table(read_texts())
    current = is_current(options.output, table)
    if options.check:
        print(f"{options.output.name}: {'up to date' if current else 'out of date; run examples/make_pairs.py'}")
        return 0 if current else 1
    if not current:
        write(options.output, table)
    documents = len(set(table["document"].to_pylist()))
    print(f"{options.output.name}: {table.num_rows} pairs of {documents} documents, {'kept' if current else 'written'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
