"""A part of an experiment, named by the values of options and by data sets.

Words such as `paradigm=summ-nli` flow in; what they leave of points and data sets flows out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from batchfact.compare.grid import Point
from batchfact.errors import UsageError, nearest
from batchfact.settings import option_names

DATA = "data"
"""In place of an option: the name of a data set."""

Chosen = Mapping[str, frozenset[str]]
"""For each option, or `data`, the values that are wanted; a point must have one of each."""


def parse_only(words: Iterable[str]) -> Chosen:
    """`NAME=VALUE` words; of one name that comes several times any value is wanted.

    Raises: UsageError for a word of another form, or a name that is no option.
    """
    chosen: dict[str, frozenset[str]] = {}
    known = {*option_names(), DATA}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.strip().replace("_", "-")
        if not equals:
            raise UsageError(f"--only takes NAME=VALUE, such as paradigm=summ-nli or data=frank, got {word!r}")
        if name not in known:
            raise UsageError(f"--only {word}: there is no option {name!r} of run{nearest(name, known)}")
        chosen[name] = chosen.get(name, frozenset()) | {_plain(value.strip()) if name != DATA else value.strip()}
    return chosen


def narrow_points(points: Sequence[Point], chosen: Chosen) -> tuple[Point, ...]:
    """The points that have a chosen value of every option named.

    Raises: UsageError for a value that no point has, or where no point has all of them.
    """
    options = {name: wanted for name, wanted in chosen.items() if name != DATA}
    for name, wanted in options.items():
        _refuse_unknown(name, wanted, {value for point in points for value in _values(point, name)})
    left = [point for point in points if all(wanted & _values(point, name) for name, wanted in options.items())]
    if not left:
        raise UsageError("--only leaves nothing of the grid: no point of it has all of these values")
    return tuple(left)


def narrow_data(places: Mapping[str, str], chosen: Chosen) -> dict[str, str]:
    """The data sets that are chosen, all of them where none is named. Raises: UsageError for one that is not there."""
    wanted = chosen.get(DATA)
    if wanted is None:
        return dict(places)
    _refuse_unknown(DATA, wanted, set(places))
    return {name: place for name, place in places.items() if name in wanted}


def _values(point: Point, name: str) -> frozenset[str]:
    """What a point has for an option; several paradigms where they go by a column."""
    return frozenset(point.configs) if name == "paradigm" else frozenset([_shown(point.value_of(name))])


def _shown(value: Any) -> str:
    """As it is written in TOML, without quotes."""
    return str(value).lower() if isinstance(value, bool) else _plain(str(value))


def _plain(text: str) -> str:
    """A number in one form: `0` and `0.0` are the same value of an option, whoever wrote it."""
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() else str(number)


def _refuse_unknown(name: str, wanted: frozenset[str], there: set[str]) -> None:
    for value in sorted(wanted - there):
        raise UsageError(
            f"--only {name}={value}: there is none; there are {', '.join(sorted(there))}{nearest(value, there)}"
        )
