"""Recall by type of error, with the data sets' own names mapped to common ones.

Rows and a map flow in, recalls flow out; the shipped map is `error_map.toml`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from batchfact.errors import UsageError
from batchfact.evaluate.metrics import CONSISTENT, INCONSISTENT, Metric, recall_of, wrong_where_unscored
from batchfact.evaluate.runs import Rows

ErrorMap = Mapping[str, Mapping[str, str]]
NO_ERROR = "none"
UNTYPED = "not typed"


class TypeRecall(Struct, frozen=True, kw_only=True):
    """The share of rows with an error of this type that were called inconsistent; for `none`, called consistent."""

    system: str
    dataset: str
    error_type: str
    rows: int
    recall: Metric


def read_error_map(own: Path | None = None) -> ErrorMap:
    """The shipped map, with the user's own names before its.

    Raises: UsageError if the user's file cannot be read or is no map of texts.
    """
    shipped = _decode(files("batchfact.evaluate").joinpath("error_map.toml").read_text(encoding="utf-8"))
    if own is None:
        return shipped
    try:
        added = _decode(own.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"--error-map {own} is no map of error types: {error}") from error
    return {name: {**shipped.get(name, {}), **added.get(name, {})} for name in shipped.keys() | added.keys()}


def common_types(names: tuple[str, ...], dataset: str, error_map: ErrorMap) -> frozenset[str]:
    """The common types of a row; a name that no map has stays as it is."""
    by_dataset, by_all = error_map.get(dataset, {}), error_map.get("all", {})
    return frozenset(by_dataset.get(name, by_all.get(name, name)) for name in names) - {""}


def recall_by_type(rows: Rows, system: str, dataset: str, error_map: ErrorMap) -> tuple[TypeRecall, ...]:
    """Recall of every type in one data set's rows, and of the rows without error; none where nothing is typed.

    A row with several types counts for each. An unscored row counts as not recalled.

    Args:
        rows: with gold labels; those of repeated runs may be joined.
    Source: Xu 2024, Table 5; Chen 2023, Figure 2.
    """
    if not any(rows.error_types):
        return ()
    types = [common_types(names, dataset, error_map) or {UNTYPED} for names in rows.error_types]
    predicted = wrong_where_unscored(rows.gold, rows.predicted)
    is_inconsistent = rows.gold == INCONSISTENT
    found = [(NO_ERROR, CONSISTENT, ~is_inconsistent)]
    for name in sorted({name for each in types for name in each}, key=lambda name: (name == UNTYPED, name)):
        has_type = np.array([name in each for each in types], bool)
        if np.any(has_type & is_inconsistent):
            found.append((name, INCONSISTENT, has_type & is_inconsistent))
    return tuple(
        TypeRecall(
            system=system,
            dataset=dataset,
            error_type=name,
            rows=int(chosen.sum()),
            recall=recall_of(label, rows.gold[chosen], predicted[chosen]),
        )
        for name, label, chosen in found
    )


def _decode(text: str) -> dict[str, dict[str, str]]:
    return msgspec.convert(tomllib.loads(text), dict[str, dict[str, str]])
