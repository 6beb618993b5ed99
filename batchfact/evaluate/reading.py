"""Scored Parquet, and labels, to arrays: the evaluation's only reader.

A path flows in; a `Run`, which holds one system's rows and what made them, flows out. Texts are counted in words while
they stream by, and never kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from msgspec import Struct

from batchfact.config import OutputOptions
from batchfact.errors import UsageError, nearest
from batchfact.evaluate.metrics import CONSISTENT, INCONSISTENT, NONE, Labels, Scores
from batchfact.evaluate.opening import Opened, open_files
from batchfact.evaluate.runs import UNKNOWN_LENGTH, Counts, Rows, Run, Texts, repeat_name, system_name
from batchfact.evaluate.thresholds import predict
from batchfact.evaluate.where import parse_where
from batchfact.gold import gold_label
from batchfact.metadata import METADATA_KEY

NUMBERS = {"consistent": CONSISTENT, "inconsistent": INCONSISTENT, None: NONE}
DEFAULT_THRESHOLD = 0.5
"""Of scores that were made elsewhere."""
SUMMARIZER_NAMES = ("summarizer", "summariser", "system")
"""Columns that name the summariser, the first that is there."""
JUDGED = "judged findings"
_OWN = ("label", "score", "score_raw", "status", "findings")
"""The verdict's columns that are read, without their prefix."""
_BATCH_ROWS = 8192


class NothingLabelledError(UsageError):
    """A file can be read, and there is nothing to measure it by."""


class Columns(Struct, frozen=True, kw_only=True):
    """Where a file has what; `score` names another system's column, None means batchfact's own verdicts."""

    label: str = "label"
    rating: str = "score"
    id: str = "id"
    dataset: str = "dataset"
    split: str = "split"
    summarizer: str = "summarizer"
    error_types: str = "error_types"
    score: str | None = None

    @classmethod
    def named(cls, **given: str | None) -> Columns:
        """The usual names but for those that are given; None is not given."""
        return cls(**{role: name for role, name in given.items() if name is not None})


def read_runs(
    file: str,
    columns: Columns,
    *,
    score_columns: Sequence[str] = (),
    labels: str | None = None,
    where: str | None = None,
) -> tuple[Run, ...]:
    """The file's own verdicts, if it has any, then each of the score columns, as runs on the same rows.

    Raises: as `read_run`.
    """
    has_own = not score_columns or bool(open_files(file).facts)
    names = (*([None] if has_own else []), *score_columns)
    return tuple(
        read_run(file, msgspec.structs.replace(columns, score=name), labels=labels, where=where) for name in names
    )


def read_run(file: str, columns: Columns, *, labels: str | None = None, where: str | None = None) -> Run:
    """Read a scored file, or a folder of shards.

    Args:
        labels: a file that the gold labels, ratings and error types are taken from, joined by id.
        where: only the rows that it is true for.
    Returns: the rows that have a label or a rating. Their predictions are the file's own labels, or for another
        system's scores those by a threshold of 0.5.
    Raises: UsageError for a file or column that is not there, labels that are none, and ids that do not match.
    """
    opened = open_files(file)
    dataset, names, facts = opened.dataset, opened.names, opened.facts
    notes: list[str] = []
    opened.refuse_doubled(name for name in msgspec.structs.astuple(columns) if name is not None)
    _require_named(opened, columns, ("id", "dataset", "summarizer", *(() if labels else ("rating", "error_types"))))
    columns = _found(columns, dataset.schema, file, notes)
    prefix = facts["columns"]["column_prefix"] if facts else None
    if columns.score is None:
        _require_verdicts(file, names, prefix)
    else:
        opened.require(columns.score, "--score-column")
    is_named = columns.label != Columns().label
    if labels is None and columns.label not in names and (is_named or columns.rating not in names):
        raise UsageError(
            f"{file} has no label column {columns.label!r}{nearest(columns.label, names)}; name it with "
            "--label-column, or give a file with id and label with --labels"
        )
    condition = parse_where(where, names) if where else None
    table = _read(dataset, columns, prefix, condition, facts)
    numbers = np.arange(table.num_rows) if condition is None else _numbers_of_rows(dataset, condition)
    rows = _rows(table, opened, columns, prefix, numbers)
    if labels is not None:
        opened.require(columns.id, "--id-column")
        rows = _join(rows, file, labels, columns, notes)
    if not len(rows):
        raise UsageError(f"{file}: {'no row is left by --where' if where else 'there are no rows'}")
    rows = _labelled(rows, file, columns, notes)
    identity = {} if columns.score else facts.get("identity", {})
    return Run(
        file=file,
        system=columns.score or system_name(facts),
        base_system=columns.score or system_name(facts, with_shots=False),
        repeat=PurePath(file).name if columns.score else repeat_name(identity, file),
        shots=int(identity.get("shots", 0)),
        has_upper_bounds=columns.score is None and bool(facts.get("early_exit")),
        rows=rows,
        score_column=columns.score,
        facts={} if columns.score else facts,
        origin=opened.origin,
        notes=tuple(notes),
    )


class Gold(NamedTuple):
    """What rows are measured by; `ids` is None where there is no such column."""

    labels: Labels
    ratings: Scores
    ids: Texts | None


def read_gold(dataset: pads.Dataset, name: str, columns: Columns, *, num_rows: int) -> Gold:
    """Labels, human scores and ids of the first rows of files that are not scored yet.

    Raises: UsageError where there is neither a column of labels nor one of human scores, or a value is none.
    """
    names = dataset.schema.names
    columns = _found(columns, dataset.schema, name, [])
    if columns.label not in names and (columns.label != Columns().label or columns.rating not in names):
        raise UsageError(
            f"{name} has no label column {columns.label!r}{nearest(columns.label, names)}, so it cannot be measured; "
            "name it with label-column"
        )
    wanted = [each for each in (columns.label, columns.rating, columns.id) if each in names]
    try:
        table = dataset.head(num_rows, columns=wanted)
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"{name} cannot be read: {error}") from error
    return Gold(
        labels=_labels(table.column(columns.label), name, columns.label)
        if columns.label in names
        else np.full(table.num_rows, NONE, np.int8),
        ratings=_numbers(table, columns.rating, name),
        ids=_texts(table, columns.id, None) if columns.id in names else None,
    )


# Reading


def _require_verdicts(file: str, names: Sequence[str], prefix: str | None) -> None:
    """Raises: UsageError where the file has no verdicts of batchfact, or has lost their metadata or a column."""
    if prefix is None and OutputOptions().column_prefix + _OWN[0] in names:
        raise UsageError(
            f"{file} has columns of batchfact, but no metadata of its run (key {METADATA_KEY!r} of the footer), which "
            "whatever wrote it again left out; evaluate the run's own output, or name a column with --score-column"
        )
    if prefix is None:
        raise UsageError(
            f"{file} has no verdicts of batchfact: score it first with batchfact run, or name the column of another "
            "system's scores with --score-column"
        )
    lost = [prefix + name for name in _OWN if prefix + name not in names]
    if lost:
        raise UsageError(
            f"{file} has lost the column {lost[0]!r} of its verdicts; make it again with batchfact reduce, or name a "
            "column with scores with --score-column"
        )


def _require_named(opened: Opened, columns: Columns, roles: Sequence[str]) -> None:
    """Raises: UsageError where a column that was named is not there; the usual ones need not be."""
    for role in roles:
        if getattr(columns, role) != getattr(Columns(), role):
            opened.require(getattr(columns, role), f"--{role.replace('_', '-')}-column")


def _found(columns: Columns, schema: pa.Schema, file: str, notes: list[str]) -> Columns:
    """The columns with the summariser's that is there, and without a column that only has the name of human scores."""
    if columns.summarizer == Columns().summarizer:
        there = (name for name in SUMMARIZER_NAMES if name in schema.names)
        columns = msgspec.structs.replace(columns, summarizer=next(there, columns.summarizer))
    rating = columns.rating
    if rating != Columns().rating or rating not in schema.names or _is_number(schema.field(rating).type):
        return columns
    notes.append(f"{file}: column {rating!r} holds {schema.field(rating).type}, so it is not taken as human scores")
    return msgspec.structs.replace(columns, rating="")


def _read(
    dataset: pads.Dataset, columns: Columns, prefix: str | None, where: pc.Expression | None, facts: Mapping[str, Any]
) -> pa.Table:
    """The columns that are asked for, those that there are; texts as their number of words, findings as theirs."""
    own = () if prefix is None else tuple(prefix + name for name in _OWN if name != "findings")
    wanted = [columns.label, columns.rating, columns.id, columns.dataset, columns.split, columns.summarizer]
    wanted += [columns.error_types, *own, *([columns.score] if columns.score else [])]
    names = set(dataset.schema.names)
    projected = {name: pc.field(name) for name in wanted if name in names}
    identity = facts.get("identity", {})
    for kind in ("summary", "document"):
        name = identity.get(f"{kind}_column", kind)
        if name in names:
            kept = dataset.schema.field(name).type
            text = pc.field(name).cast(kept.value_type) if pa.types.is_dictionary(kept) else pc.field(name)
            projected[f"{kind} words"] = pc.count_substring_regex(text, pattern=r"\S+")
    if prefix is not None and f"{prefix}findings" in names:
        projected[JUDGED] = pc.field(f"{prefix}findings")
    try:
        scanner = dataset.scanner(columns=projected, filter=where, batch_size=_BATCH_ROWS)
        empty = pa.RecordBatch.from_pylist([], schema=scanner.projected_schema)
        return pa.Table.from_batches(map(_with_counts, itertools.chain([empty], scanner.to_batches())))
    except pa.ArrowNotImplementedError as error:
        raise UsageError(
            f"--where compares values of different types ({error}); texts stand in quotes, numbers without"
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"the rows cannot be read: {error}") from error


def _numbers_of_rows(dataset: pads.Dataset, where: pc.Expression) -> Counts:
    """The places of the rows that are left: a row that has no id is known by its place among all."""
    is_left = dataset.scanner(columns={"is left": where}, batch_size=_BATCH_ROWS).to_table().column(0)
    return np.flatnonzero(is_left.fill_null(False).to_numpy())


def _with_counts(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with the number of judged findings in the place of the findings."""
    place = batch.schema.get_field_index(JUDGED)
    return batch if place < 0 else batch.set_column(place, JUDGED, pa.array(_num_judged(batch.column(place))))


def _num_judged(findings: pa.ListArray) -> Counts:
    """For each row its findings whose status is ok."""
    is_ok = np.asarray(pc.equal(pc.struct_field(findings.flatten(), "status"), "ok"), dtype=np.int64)
    parents = np.asarray(pc.list_parent_indices(findings))
    return np.bincount(parents, weights=is_ok, minlength=len(findings)).astype(np.int64)


# Arrays


def _rows(table: pa.Table, opened: Opened, columns: Columns, prefix: str | None, numbers: Counts) -> Rows:
    file, size = opened.given, table.num_rows
    first_row = opened.origin.first_row if opened.origin else 0
    scores = _numbers(table, columns.score or f"{prefix}score", file)
    if columns.score is None:
        predicted = _labels(table.column(f"{prefix}label"), file, f"{prefix}label")
        statuses = _texts(table, f"{prefix}status", None)
        raw_scores = _numbers(table, f"{prefix}score_raw", file)
    else:
        predicted = predict(scores, DEFAULT_THRESHOLD)
        statuses = np.where(np.isnan(scores), "no score", "ok").astype(object)
        raw_scores = scores
    ids = _texts(table, columns.id, None)
    has_ids = columns.id in table.column_names
    return Rows(
        ids=ids if has_ids else np.array([f"row {first_row + number}" for number in numbers], object),
        gold=_labels(table.column(columns.label), file, columns.label)
        if columns.label in table.column_names
        else np.full(size, NONE, np.int8),
        # A column that is evaluated is nobody's rating, whatever its name.
        ratings=np.full(size, np.nan) if columns.rating == columns.score else _numbers(table, columns.rating, file),
        predicted=predicted,
        scores=scores,
        raw_scores=raw_scores,
        num_judged=np.asarray(table.column(JUDGED)) if JUDGED in table.column_names else np.zeros(size, np.int64),
        statuses=statuses,
        datasets=_texts(table, columns.dataset, _default_name(opened)),
        splits=_texts(table, columns.split, None),
        summarizers=_texts(table, columns.summarizer, None),
        error_types=_error_types(table, columns.error_types),
        summary_words=_lengths(table, "summary words"),
        document_words=_lengths(table, "document words"),
    )


def _labels(column: pa.ChunkedArray, file: str, name: str) -> Labels:
    """Raises: UsageError for a value that is no label."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_nested(column.type):
        raise UsageError(f"{file}, column {name!r}: a label is 1, 0, consistent or inconsistent, not {column.type}")
    found = column.unique().to_pylist()
    known = {value: _label(value, file, name) for value in found}
    return np.array([known.get(value, NONE) for value in column.to_pylist()], np.int8)  # a NaN is no key of its own


def _label(value: Any, file: str, name: str) -> int:
    try:
        return NUMBERS[gold_label(value)]
    except ValueError as error:
        raise UsageError(f"{file}, column {name!r}: {error}") from None


def _numbers(table: pa.Table, name: str, file: str) -> Scores:
    if name not in table.column_names:
        return np.full(table.num_rows, np.nan)
    column = table.column(name)
    if pa.types.is_null(column.type):
        return np.full(table.num_rows, np.nan)
    if not _is_number(column.type):
        raise UsageError(f"{file}: column {name!r} holds {column.type}, not numbers")
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    numbers = column.cast(pa.float64(), safe=False).to_numpy()
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _is_number(kind: pa.DataType) -> bool:
    tests = (pa.types.is_floating, pa.types.is_integer, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null)
    return any(test(kind) for test in tests)


def _texts(table: pa.Table, name: str, default: str | None) -> Texts:
    if name not in table.column_names:
        return np.full(table.num_rows, default, object)
    values = table.column(name).to_pylist()
    return np.array([default if value is None else str(value) for value in values] or [], object)


def _error_types(table: pa.Table, name: str) -> Texts:
    types = np.empty(table.num_rows, object)
    listed = table.column(name).to_pylist() if name in table.column_names else [None] * table.num_rows
    for row, value in enumerate(listed):
        types[row] = listed_types(value)
    return types


def listed_types(value: Any) -> tuple[str, ...]:
    """Error types are a list of names, or one name."""
    return tuple(str(each) for each in (value if isinstance(value, list) else [value]) if each is not None)


def _lengths(table: pa.Table, name: str) -> Counts:
    if name not in table.column_names:
        return np.full(table.num_rows, UNKNOWN_LENGTH, np.int64)
    return np.asarray(table.column(name).fill_null(UNKNOWN_LENGTH)).astype(np.int64)


def _default_name(opened: Opened) -> str:
    """The data set's name where no column has it: the scored input's, so that repeated runs agree; else the file's."""
    inputs = opened.facts.get("inputs") if opened.has_one_input else None
    return PurePath((inputs or [opened.given])[0]).stem


# Labels


def _join(rows: Rows, file: str, labels: str, columns: Columns, notes: list[str]) -> Rows:
    """The rows with the gold labels, ratings and error types of another file.

    Raises: UsageError where an id is there twice, or a scored row's id is not among the labels.
    """
    opened = open_files(labels)
    dataset, names = opened.dataset, opened.names
    opened.refuse_doubled((columns.id, columns.label, columns.rating, columns.error_types))
    columns = _found(columns, dataset.schema, labels, notes)
    for name in (columns.id, columns.label):
        if name not in names and not (name == columns.label and columns.rating in names):
            option = "--id-column" if name == columns.id else "--label-column"
            raise UsageError(f"--labels {labels} has no column {name!r}{nearest(name, names)} ({option})")
    wanted = [columns.id, columns.label, columns.rating, columns.error_types]
    table = dataset.to_table(columns=[name for name in wanted if name in names])
    ids = _texts(table, columns.id, None).tolist()
    places = {each: place for place, each in enumerate(ids)}
    if len(places) < len(ids):
        twice = next(each for place, each in enumerate(ids) if places[each] != place)
        raise UsageError(f"--labels {labels} has id {twice!r} more than once")
    missing = [each for each in rows.ids.tolist() if each not in places]
    if missing:
        shown = ", ".join(map(repr, missing[:3]))
        raise UsageError(
            f"{len(missing):,} of {len(rows):,} rows of {file} have an id that --labels {labels} lacks ({shown}); "
            "name the column with --id-column, or leave these rows out with --where"
        )
    order = np.array([places[each] for each in rows.ids.tolist()], np.int64)
    gold = _labels(table.column(columns.label), labels, columns.label)[order] if columns.label in names else rows.gold
    ratings = _numbers(table, columns.rating, labels)[order] if columns.rating in names else rows.ratings
    types = _error_types(table, columns.error_types)[order] if columns.error_types in names else rows.error_types
    return msgspec.structs.replace(rows, gold=gold, ratings=ratings, error_types=types)


def _labelled(rows: Rows, file: str, columns: Columns, notes: list[str]) -> Rows:
    """The rows that have a gold label or a rating.

    Raises: NothingLabelledError if there are none.
    """
    usable = (rows.gold != NONE) | ~np.isnan(rows.ratings)
    if not usable.any():
        raise NothingLabelledError(
            f"{file}: no row has a label (column {columns.label!r}) or a human score (column {columns.rating!r}); name "
            "others with --label-column or --rating-column, or give a file with id and label with --labels"
        )
    if not usable.all():
        notes.append(f"{file}: {np.sum(~usable):,} rows without a label are left out")
    return rows.select(usable)
