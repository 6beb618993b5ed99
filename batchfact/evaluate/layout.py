"""What a table is, before anyone decides how it looks."""

from __future__ import annotations

from msgspec import Struct

from batchfact.evaluate.metrics import Metric, Spread

Value = Metric | Spread | int | float | str | None
"""A metric or spread is shown in percent, a float as it is; None is an empty place."""


class Line(Struct, frozen=True, kw_only=True):
    """One line: what it is about, and a value for each column of the table."""

    system: str = ""
    dataset: str = ""
    group: str = ""
    values: tuple[Value, ...]


class Table(Struct, frozen=True, kw_only=True):
    """`group` is the heading of the lines' third key, such as summariser; keys that no line has are not shown."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    group: str = ""
    notes: tuple[str, ...] = ()
