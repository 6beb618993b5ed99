"""The data sets of an experiment: found, and their labels checked before anything is scored.

Places flow in, `DataSet` records flow out. Texts are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import pyarrow.dataset as pads
from msgspec import Struct

from batchfact.compare.narrowing import Chosen, narrow_data
from batchfact.errors import UsageError, nearest
from batchfact.evaluate.metrics import NONE, Absent, balanced_accuracy, pearson
from batchfact.evaluate.opening import open_files
from batchfact.evaluate.reading import Columns, Gold, read_gold
from batchfact.input_files import content_digest, list_files


class DataSet(Struct, frozen=True, kw_only=True):
    """One column of the papers' tables.

    `digest` is that of its content, labels and all. `rows` counts the rows that are scored, the first ones of
    `all_rows`. `headline` is the metric that stands for it, and `missing` says why these rows have none.
    """

    name: str
    input: str
    digest: str
    all_rows: int
    rows: int
    headline: str
    missing: str | None
    notes: tuple[str, ...]

    def open(self) -> pads.Dataset:
        """Its rows in order. Raises: UsageError where they cannot be read."""
        return open_files(self.input).dataset

    def values_of(self, column: str) -> list[Any]:
        """A column, all rows of it. Raises: UsageError where there is no such column."""
        dataset = self.open()
        names = dataset.schema.names
        if column not in names:
            raise UsageError(f"{self.input} has no column {column!r}{nearest(column, names)}")
        return dataset.to_table(columns=[column]).column(0).to_pylist()


def find_data_sets(
    data: Iterable[str] | Mapping[str, str], columns: Columns, *, limit: int | None, only: Chosen | None = None
) -> tuple[DataSet, ...]:
    """Each file of the places, named by its stem; or each named place; those that `only` leaves.

    Raises: UsageError for a place without files, two data sets of one name, and labels that cannot be used.
    """
    found: dict[str, str] = {}
    for name, place in data.items() if isinstance(data, Mapping) else _files_of(data):
        if name in found:
            raise UsageError(
                f"data: {found[name]} and {place} are both named {name!r}; name them, as in data = {{ name = "
                f'"{place}" }}'
            )
        found[name] = place
    return tuple(_check(name, place, columns, limit) for name, place in narrow_data(found, only or {}).items())


def _files_of(places: Iterable[str]) -> Iterator[tuple[str, str]]:
    for place in places:
        # What lies behind a URI is one data set: its files alone do not say how to come there.
        for path in [place] if "://" in place else list_files(place)[1]:
            yield PurePath(path).stem, path


def _check(name: str, place: str, columns: Columns, limit: int | None) -> DataSet:
    opened = open_files(place)
    opened.refuse_doubled((columns.label, columns.rating, columns.id))
    dataset = opened.dataset
    all_rows = dataset.count_rows()
    rows = min(all_rows, limit or all_rows)
    gold = read_gold(dataset, place, columns, num_rows=rows)
    usable = (gold.labels != NONE) | ~np.isnan(gold.ratings)
    if not usable.any():
        raise UsageError(f"{place}: none of the {rows:,} rows has a label or a human score")
    _refuse_double_ids(gold, place, columns)
    has_labels = bool(np.any(gold.labels != NONE))
    labels = gold.labels[gold.labels != NONE]
    best = balanced_accuracy(labels, labels) if has_labels else pearson(gold.ratings, gold.ratings)
    missing = best.reason if isinstance(best, Absent) else None
    notes = [f"{name}: {np.sum(~usable):,} rows without a label are left out"] if not usable.all() else []
    if missing:
        notes.append(f"{name} is left out of the average: {missing}")
    return DataSet(
        name=name,
        input=place,
        digest=content_digest(place),
        all_rows=all_rows,
        rows=rows,
        headline="balanced_accuracy" if has_labels else "pearson",
        missing=missing,
        notes=tuple(notes),
    )


def _refuse_double_ids(gold: Gold, place: str, columns: Columns) -> None:
    ids = [] if gold.ids is None else gold.ids.tolist()
    seen: set[str | None] = set()
    for each in ids:
        if each in seen:
            raise UsageError(f"{place} has {columns.id} {each!r} more than once, so rows cannot be matched")
        seen.add(each)
