"""Axes of options into the points of a grid.

Tables as TOML has them flow in, checked points flow out. It knows no data and reads no file but what an option names.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from batchfact.config import RunConfig
from batchfact.errors import UsageError, nearest
from batchfact.settings import make_config, option_names

PARADIGM_BY = "paradigm-by"
OTHERS = "*"
"""In `paradigm-by`: every value that is not named, and null."""
OWN: Mapping[str, str] = {
    "limit": "limit is the experiment's own setting, at the top of the file",
    "journal": "each run has its journal beside its output",
    "shard": "the evaluation needs all rows",
    "restart": "delete a run's output and journal to have it afresh",
    "retry-status": "run the cell by itself with it: its options lie beside its output",
    "keep-columns": "the evaluation needs all columns",
    "column-prefix": "the evaluation finds the columns by itself",
    "quiet": "only the experiment's progress is shown",
}
"""Options of `run` that have no place in a grid, and why."""


class ParadigmBy(Struct, frozen=True, kw_only=True):
    """The paradigm of a row, decided by a column.

    Source: Chen 2023, appendices A and F: sentence-by-sentence for CNN/DM rows, vanilla for XSum rows.
    """

    column: str
    paradigms: dict[str, str]

    def paradigm_of(self, value: object) -> str | None:
        """None where the value has no paradigm."""
        named = None if value is None else self.paradigms.get(str(value))
        return named or self.paradigms.get(OTHERS)

    @property
    def name(self) -> str:
        """Such as `sbs (cnndm) / vanilla (xsum)`."""
        by_paradigm: dict[str, list[str]] = {}
        for value, paradigm in self.paradigms.items():
            by_paradigm.setdefault(paradigm, []).append("others" if value == OTHERS else value)
        return " / ".join(f"{paradigm} ({', '.join(values)})" for paradigm, values in by_paradigm.items())


class Point(Struct, frozen=True, kw_only=True):
    """One setting of all axes: options of `run` by name. `configs` are the checked settings, one for each paradigm."""

    options: dict[str, Any]
    configs: dict[str, RunConfig]
    paradigm_by: ParadigmBy | None = None

    @property
    def config(self) -> RunConfig:
        """The settings, with the first paradigm where there are several."""
        return next(iter(self.configs.values()))

    def options_of(self, paradigm: str) -> dict[str, Any]:
        return {**self.options, "paradigm": paradigm}

    def value_of(self, name: str) -> Any:
        """An option as it is given, else its default."""
        section, field = option_names()[name]
        return self.options[name] if name in self.options else getattr(getattr(self.config, section), field)


def expand(common: Mapping[str, Any], grids: Sequence[Mapping[str, Any]]) -> tuple[Point, ...]:
    """Every combination of each grid's axes, once.

    A setting that changes nothing at a point is dropped, so that it asks nobody twice: `demonstrations` without shots,
    and then `seed` too at temperature 0.

    Args:
        common: options for all points; a grid's own go before them.
        grids: for each option one value, or the list of values that makes it an axis.
    Raises: UsageError for an unknown option, a wrong value, or options that do not go together, with its place.
    """
    shared = _named(common, "options")
    for name, value in shared.items():
        if isinstance(value, list):
            raise UsageError(f"options.{name}: a list is an axis, which has its place under [[grid]]")
    found: list[Point] = []
    for number, grid in enumerate(grids):
        place = f"grid[{number}]"
        own = _named(grid, place)
        if PARADIGM_BY in own and "paradigm" in own:
            raise UsageError(f"{place}: paradigm and {PARADIGM_BY} exclude each other")
        by = _paradigm_by(own.pop(PARADIGM_BY), place) if PARADIGM_BY in own else None
        axes = {name: value if isinstance(value, list) else [value] for name, value in own.items()}
        for name, values in axes.items():
            if not values:
                raise UsageError(f"{place}.{name}: an axis needs at least one value")
        for chosen in itertools.product(*axes.values()):
            options = _with_effect({**shared, **dict(zip(axes, chosen, strict=True))})
            point = _point(options, by, place, own)
            # An option that is given as its default is none.
            if not any((each.configs, each.paradigm_by) == (point.configs, by) for each in found):
                found.append(point)
    return tuple(found)


def _named(table: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The table with hyphens in its names. Raises: UsageError for a name that is no option of a grid."""
    options = {name.replace("_", "-"): value for name, value in table.items()}
    known = {*option_names(), PARADIGM_BY}
    for name in options:
        if name in OWN:
            raise UsageError(f"{place}.{name} cannot be set here: {OWN[name]}")
        if name not in known or (name == PARADIGM_BY and place == "options"):
            raise UsageError(f"{place}.{name}: there is no such option of run{nearest(name, known - {*OWN})}")
    return options


def _paradigm_by(value: Any, place: str) -> ParadigmBy:
    where = f"{place}.{PARADIGM_BY}"
    try:
        ((column, paradigms),) = msgspec.convert(value, dict[str, dict[str, str]]).items()
    except (msgspec.ValidationError, ValueError) as error:
        raise UsageError(
            f'{where} takes one column and the paradigm of each of its values, such as {{ source = {{ cnndm = "sbs", '
            f'xsum = "vanilla" }} }}, got {value!r}'
        ) from error
    if not paradigms:
        raise UsageError(f"{where}.{column} names no value")
    return ParadigmBy(column=column, paradigms=paradigms)


def _with_effect(options: dict[str, Any]) -> dict[str, Any]:
    if options.get("shots", 0) != 0:
        return options
    without = {"demonstrations"} if options.get("temperature", 0) else {"demonstrations", "seed"}
    return {name: value for name, value in options.items() if name not in without}


def _point(options: dict[str, Any], by: ParadigmBy | None, place: str, own: Mapping[str, Any]) -> Point:
    """Raises: UsageError for settings that `run` would refuse."""
    if by is None:
        config = _checked(options, place, own)
        return Point(options=options, configs={config.identity.paradigm: config})
    paradigms = dict.fromkeys(by.paradigms.values())
    configs = {each: _checked({**options, "paradigm": each}, place, own) for each in paradigms}
    return Point(options=options, configs=configs, paradigm_by=by)


def _checked(options: Mapping[str, Any], place: str, own: Mapping[str, Any]) -> RunConfig:
    try:
        return make_config((), "", options)
    except UsageError as error:
        named = re.match(r"--([\w-]+)", str(error))
        name = named[1] if named else ""
        where = f"{place}.{name}" if name in own else (f"options.{name}" if name in options else place)
        together = ", ".join(f"{axis} {options[axis]}" for axis in own if axis in options and axis != name)
        raise UsageError(f"{where}: {error}" + (f" (at {together})" if together else "")) from error
