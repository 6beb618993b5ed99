"""Labelled Parquet files: pairs with a gold label, and what else a row says of them.

A data set's entry in the recipe flows in; `Labelled` pairs flow out. A row without text or label is left out and
counted; a file or column that is not there is a UsageError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from batchfact.distill.recipe import Set
from batchfact.errors import UsageError, nearest
from batchfact.gold import gold_label
from batchfact.records import Label

NEEDED = ("document", "summary", "label")
Row = Mapping[str, Any]


class Labelled(Struct, frozen=True, kw_only=True):
    """One row: texts without outer white space, its label, and what people said of its sentences and why.

    `id` is the row's own, or its number in the file. `sentence_labels` are as the file has them; whether they fit the
    summary's sentences is for whoever cuts it.
    """

    data_set: str
    id: str
    document: str
    summary: str
    label: Label
    sentence_labels: tuple[Label, ...] | None = None
    reason: str | None = None


def read_labelled(entry: Set, folder: Path) -> tuple[list[Labelled], int]:
    """The usable rows that meet the entry's rules, and how many met them but lack a text or a label.

    Raises: UsageError for a file or a column that is not there, a rule or a label that is none, or an id of two rows.
    """
    path = folder / entry.path
    names = _columns(path, entry)
    rules = [parse_rule(rule, names, f"the data set {entry.name}") for rule in entry.where]
    found: dict[str, Labelled] = {}
    left_out = 0
    for number, row in enumerate(_rows(path)):
        if not all(rule(row) for rule in rules):
            continue
        place = f"the data set {entry.name}, row {number}"
        label = _label(row["label"], place)
        if label is None or not all(isinstance(row[name], str) and row[name].strip() for name in NEEDED[:2]):
            left_out += 1
            continue
        pair = _labelled(entry, row, number, label, place)
        if pair.id in found:
            raise UsageError(f"{place} has the id {pair.id!r} of an earlier one: each summary needs an id of its own")
        found[pair.id] = pair
    if not found:
        raise UsageError(f"the data set {entry.name} ({path}) has no usable row that meets its rules")
    return list(found.values()), left_out


def parse_rule(rule: str, names: list[str], place: str) -> Callable[[Row], bool]:
    """A rule on one column: `domain = news`, `domain != samsum`, `domain ~ REGEX`, `domain !~ REGEX`.

    Whole numbers have no decimal point, whatever their column's type: integers with gaps are often stored as floats.

    Raises: UsageError for anything else, an unknown column, or a regular expression that is none.
    """
    match = re.fullmatch(r"\s*(?P<column>[\w.-]+)\s*(?P<sign>!=|=|!~|~)\s*(?P<value>.*?)\s*", rule)
    if match is None:
        raise UsageError(
            f"{place}: a rule is `column = value`, or with !=, or with ~ and !~ (regular expressions), got {rule!r}"
        )
    column, sign, value = match["column"], match["sign"], match["value"]
    if column not in names:
        raise UsageError(f"{place}: no column {column!r} for {rule!r}{nearest(column, names)}")
    try:
        pattern = re.compile(value if "~" in sign else re.escape(value))
    except re.error as error:
        raise UsageError(f"{place}: {value!r} is no regular expression ({error})") from error
    holds = pattern.search if "~" in sign else pattern.fullmatch
    wanted = not sign.startswith("!")
    return lambda row: (holds(_text(row[column])) is not None) == wanted


def _text(value: object) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _columns(path: Path, entry: Set) -> list[str]:
    try:
        names = list(pq.read_schema(path).names)
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"the data set {entry.name}: {path} cannot be read ({str(error).splitlines()[0]})") from error
    reason = [entry.reason.partition(".")[0]] if entry.reason else []
    for column in (*NEEDED, *reason):
        if column not in names:
            raise UsageError(
                f"the data set {entry.name}: {path} has no column {column!r}; its columns are {', '.join(names)}"
                f"{nearest(column, names)}"
            )
    return names


def _rows(path: Path) -> Iterator[Row]:
    with pq.ParquetFile(path) as parquet:
        for batch in parquet.iter_batches(1024):
            yield from batch.to_pylist()


def _labelled(entry: Set, row: Row, number: int, label: Label, place: str) -> Labelled:
    labels = [_label(each, place) for each in row.get("sentence_labels") or ()]
    return Labelled(
        data_set=entry.name,
        id=str(row["id"]) if row.get("id") is not None else str(number),
        document=row["document"].strip(),
        summary=row["summary"].strip(),
        label=label,
        sentence_labels=tuple(each for each in labels if each) if labels and None not in labels else None,
        reason=_reason(entry.reason, row, place),
    )


def _label(value: object, place: str) -> Label | None:
    try:
        return gold_label(value)
    except ValueError as error:
        raise UsageError(f"{place}: {error}") from None


def _reason(column: str | None, row: Row, place: str) -> str | None:
    if column is None:
        return None
    name, _, key = column.partition(".")
    value = row[name]
    if key and isinstance(value, str):
        try:
            value = json.loads(value).get(key)
        except (json.JSONDecodeError, AttributeError) as error:
            raise UsageError(f"{place}: column {name!r} holds no JSON object for {column!r}") from error
    return value.strip() or None if isinstance(value, str) else None
