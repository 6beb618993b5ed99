"""Figures that others published, set beside ours where they measure the same.

The shipped file and facts about our data sets flow in, comparisons flow out. What does not match in data set, split,
rows and metric is never compared: it is named with the difference.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import msgspec
from msgspec import Struct


class Figures(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table's figures of one metric on one data set; values in percent by system.

    `rows` and `consistent`, the share of consistent rows, are None where the source does not state them.
    """

    source: str
    dataset: str
    metric: str
    split: str
    values: dict[str, float]
    rows: int | None = None
    consistent: float | None = None
    note: str | None = None


class OurSet(Struct, frozen=True, kw_only=True):
    """What a data set here is: `metrics` are those that were measured on it."""

    dataset: str
    splits: tuple[str, ...]
    rows: int
    consistent: float | None
    metrics: frozenset[str]


class Comparison(Struct, frozen=True, kw_only=True):
    """Figures on a data set of ours: comparable, with a remark, or not, with the reason."""

    figures: Figures
    reason: str | None
    remark: str | None = None

    @property
    def is_comparable(self) -> bool:
        return self.reason is None


@cache
def published_figures() -> tuple[Figures, ...]:
    text = files("batchfact.evaluate").joinpath("published.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)["figures"], tuple[Figures, ...])


def compare(ours: OurSet, figures: Sequence[Figures]) -> tuple[Comparison, ...]:
    """All figures that name our data set."""
    return tuple(
        Comparison(figures=each, reason=_difference(ours, each), remark=_remark(ours, each))
        for each in figures
        if each.dataset == ours.dataset
    )


def _difference(ours: OurSet, theirs: Figures) -> str | None:
    """Why they do not measure the same; None where they do."""
    if ours.splits != (theirs.split,):
        return f"split {theirs.split}, here {', '.join(ours.splits) or 'not known'}"
    if theirs.rows is None:
        return "its number of rows is not stated"
    if theirs.rows != ours.rows:
        return f"{theirs.rows:,} rows, here {ours.rows:,}"
    if theirs.metric not in ours.metrics:
        return f"{theirs.metric.replace('_', ' ')} was not measured here"
    return None


def _remark(ours: OurSet, theirs: Figures) -> str | None:
    remarks = [] if theirs.note is None else [theirs.note]
    there, here = theirs.consistent, ours.consistent
    if there is not None and here is not None and abs(there - here) > 0.005:
        shares = f"{there:.1%} of its rows are consistent, here {here:.1%}"
        remarks.append(f"{shares}: its labels were made by another rule")
    return "; ".join(remarks) or None
