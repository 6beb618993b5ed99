"""A scored Parquet file as rows, with findings and texts: the report's only reader.

Paths and the names of columns flow in; `ScoredRow`s with their token counts flow out, a bounded batch at a time. It
knows nothing of what is made of them; the evaluation reads arrays instead (`evaluate/reading.py`). Everything that is
wrong with the file as a whole is found before a row is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from batchfact.errors import UsageError, nearest
from batchfact.evaluate.opening import check_one_method
from batchfact.evaluate.reading import SUMMARIZER_NAMES, listed_types
from batchfact.gold import gold_label
from batchfact.input_files import Shard, check_text_column, find_files
from batchfact.metadata import read_description
from batchfact.records import Label, Usage
from batchfact.report.rows import ScoredRow, ShownFinding
from batchfact.source import Source

_OWN = ("label", "score", "status", "message", "findings", "tokens")
"""The verdict's columns that are read, without their prefix."""

_FOUND_BY_NAME: Mapping[str, tuple[str, ...]] = {
    "id": ("id",),
    "label": ("label",),
    "rating": ("score",),
    "summarizer": SUMMARIZER_NAMES,
    "dataset": ("dataset",),
    "error-types": ("error_types",),
}
"""Columns of the user's that are taken where they are there, without being named."""

_SCORE_DIGITS = 4


class ColumnOptions(Struct, frozen=True, kw_only=True):
    """Columns as the user named them; None is found by the run's settings, or by the usual name."""

    column_prefix: str | None = None
    document: str | None = None
    summary: str | None = None
    label: str | None = None
    rating: str | None = None
    summarizer: str | None = None
    dataset: str | None = None
    error_types: str | None = None
    id: str | None = None


class _Columns(NamedTuple):
    prefix: str
    summary: str
    document: str | None
    id: str | None
    label: str | None
    rating: str | None
    summarizer: str | None
    dataset: str | None
    error_types: str | None


class ScoredFiles:
    """Checked files of one method, in reading order.

    `metadata` is what `metadata.describe_run` said of the first one, empty where it lost it; `descriptions` are those
    of all of them.
    """

    def __init__(
        self,
        given: Sequence[str],
        found: Sequence[tuple[Shard, pa.Schema]],
        columns: _Columns,
        warnings: tuple[str, ...] = (),
    ) -> None:
        self.given = tuple(given)
        self.shards = tuple(shard for shard, _ in found)
        self.num_rows = sum(shard.rows for shard in self.shards)
        self.descriptions = tuple(read_description(schema.metadata) for _, schema in found)
        self.metadata = self.descriptions[0]
        self.columns = columns
        self.warnings = warnings
        self._source = Source(
            self.shards,
            found[0][1],
            document_column=columns.document or columns.summary,
            summary_column=columns.summary,
            is_folder=len(found) > 1,
        )

    def rows(self) -> Iterator[tuple[ScoredRow, Usage]]:
        """Each row with what it cost, in the files' order.

        Raises:
            UsageError: a column does not hold what batchfact writes.
            RunFailedError: a file cannot be read after all.
        """
        first = 0
        for shard in self.shards:
            for batch in self._source.batches(shard):
                try:
                    yield from self._decode(batch, first)
                except msgspec.ValidationError as error:
                    raise UsageError(
                        f"{shard.path} does not hold what batchfact writes: {error} in the columns "
                        f"{self.columns.prefix}..."
                    ) from error
                first += batch.num_rows

    def _decode(self, batch: pa.RecordBatch, first: int) -> Iterator[tuple[ScoredRow, Usage]]:
        columns = self.columns
        own = {name: batch.column(columns.prefix + name).to_pylist() for name in _OWN}
        documents, summaries = self._source.texts(batch)
        names = {name: _names(batch, getattr(columns, name)) for name in ("id", "summarizer", "dataset")}
        gold = _values(batch, columns.label)
        error_types = _values(batch, columns.error_types)
        for index in range(batch.num_rows):
            message = own["message"][index]
            row = ScoredRow(
                row=first + index,
                summary=_text(summaries[index]) or "",
                document=_text(documents[index]) if columns.document else None,
                status=msgspec.convert(own["status"][index], str),
                label=msgspec.convert(own["label"][index], Label | None),
                score=_rounded(msgspec.convert(own["score"][index], float | None)),
                message=msgspec.convert(message, str | None),
                findings=tuple(map(_finding, own["findings"][index] or ())),
                id=names["id"][index],
                gold=gold_label(gold[index]),
                summarizer=names["summarizer"][index],
                dataset=names["dataset"][index],
                error_types=listed_types(error_types[index]),
            )
            yield row, msgspec.convert(own["tokens"][index] or {}, Usage)


def open_scored(given: Sequence[str], options: ColumnOptions) -> ScoredFiles:
    """Find and check scored files: those of one run, or of several by the same method.

    Raises: UsageError for a file that is missing, cut, not Parquet or without the verdict's columns, for files without
        rows or of different methods, for a shard that is there twice, and for a column that was named and is not there.
    """
    found = find_files(given)
    shard, schema = found[0]
    descriptions = [read_description(schema.metadata) for _, schema in found]
    described = list(zip([shard.path for shard, _ in found], descriptions, strict=True))
    check_one_method(described)
    _refuse_double_shards(described)
    if not any(shard.rows for shard, _ in found):
        raise UsageError(f"{_names_of(given)} has no rows")
    columns = _columns(shard.path, schema, descriptions[0], options)
    for other, its_schema in found[1:]:
        _require_same(other.path, its_schema, shard.path, columns)
    problem = next(filter(None, (_foreign_label(*each, columns.label) for each in found)), None)
    if problem is None:
        return ScoredFiles(given, found, columns)
    if options.label:
        raise UsageError(f"{problem} (--label-column)")
    warning = f"{problem}, so it is not taken as gold labels"
    return ScoredFiles(given, found, columns._replace(label=None), (warning,))


def _names_of(given: Sequence[str]) -> str:
    return given[0] if len(given) == 1 else f"{given[0]} and {len(given) - 1} more"


def _refuse_double_shards(described: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    seen: dict[str, str] = {}
    for path, facts in described:
        if "first_row" in facts:
            first = seen.setdefault(json.dumps(facts, sort_keys=True), path)
            if first != path:
                raise UsageError(f"{first} and {path} hold the same rows of one run; leave one of them out")


# Columns


def _columns(given: str, schema: pa.Schema, metadata: Mapping[str, Any], options: ColumnOptions) -> _Columns:
    prefix = _find_prefix(given, schema, metadata, options.column_prefix)
    identity = metadata.get("identity", {})
    summary = options.summary or identity.get("summary_column", "summary")
    document = options.document or identity.get("document_column", "document")
    check_text_column(given, schema, summary, "--summary-column")
    if options.document or document in schema.names:
        check_text_column(given, schema, document, "--document-column")
    found = {name: _find(given, schema, name, getattr(options, name.replace("-", "_"))) for name in _FOUND_BY_NAME}
    return _Columns(
        prefix=prefix,
        summary=summary,
        document=document if document in schema.names else None,
        id=found["id"],
        label=found["label"],
        rating=found["rating"],
        summarizer=found["summarizer"],
        dataset=found["dataset"],
        error_types=found["error-types"],
    )


def _require_same(path: str, schema: pa.Schema, first: str, columns: _Columns) -> None:
    """Raises: UsageError where a file lacks a column that the first one has, or has it twice."""
    own = [columns.prefix + name for name in _OWN]
    for name in [*own, *(each for each in columns[1:] if each is not None)]:
        if schema.names.count(name) != 1:
            raise UsageError(
                f"{path} has {'several columns' if name in schema.names else 'no column'} {name!r}, and {first} has "
                "one: they are no parts of one run"
            )


def _find_prefix(given: str, schema: pa.Schema, metadata: Mapping[str, Any], named: str | None) -> str:
    prefix: str = named if named is not None else metadata.get("columns", {}).get("column_prefix", "batchfact_")
    missing = [prefix + name for name in _OWN if prefix + name not in schema.names]
    if not missing:
        return prefix
    known = [name.removesuffix("findings") for name in schema.names if name.endswith("findings")]
    hint = (
        f"; its prefix may be {known[0]!r} (--column-prefix)"
        if known and known[0] != prefix
        else "; score it first with batchfact run, or name the columns' prefix with --column-prefix"
    )
    raise UsageError(f"{given} has no column {missing[0]!r}, so it is no output of batchfact as it stands{hint}")


def _find(given: str, schema: pa.Schema, name: str, named: str | None) -> str | None:
    if named is not None:
        _require(given, schema, named, f"--{name}-column")
        return named
    return next((usual for usual in _FOUND_BY_NAME[name] if schema.names.count(usual) == 1), None)


def _require(given: str, schema: pa.Schema, column: str, option: str) -> None:
    if column not in schema.names:
        raise UsageError(
            f"{given} has no column {column!r}; its columns are {', '.join(schema.names)}"
            f"{nearest(column, schema.names)} ({option})"
        )
    if schema.names.count(column) > 1:
        raise UsageError(f"{given} has several columns named {column!r}; rename all but one ({option})")


def _foreign_label(shard: Shard, schema: pa.Schema, column: str | None) -> str | None:
    """What is wrong with a column of labels, or nothing."""
    if column is None:
        return None
    if pa.types.is_nested(schema.field(column).type):
        return f"column {column!r} holds {schema.field(column).type}: a label is 1, 0, consistent or inconsistent"
    values = pq.read_table(shard.path, filesystem=shard.filesystem, columns=[column]).column(0).unique().to_pylist()
    for value in values:
        try:
            gold_label(value)
        except ValueError:
            return f"column {column!r} holds {value!r}; a label is 1, 0, consistent or inconsistent"
    return None


# Values


def _values(batch: pa.RecordBatch, column: str | None) -> list[Any]:
    if column is None:
        return [None] * batch.num_rows
    values: list[Any] = batch.column(column).to_pylist()
    return values


def _names(batch: pa.RecordBatch, column: str | None) -> list[str | None]:
    return [None if value is None else str(value) for value in _values(batch, column)]


def _text(content: bytes | None) -> str | None:
    """The text; bytes that are not UTF-8 become U+FFFD, so that such a row can be looked at too."""
    return None if content is None else content.decode(errors="replace")


def _finding(fields: Mapping[str, Any]) -> ShownFinding:
    found = msgspec.convert(fields, ShownFinding)
    return msgspec.structs.replace(found, score=_rounded(found.score), label_mass=_rounded(found.label_mass))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _SCORE_DIGITS)
