"""The experiment file: what is compared, on what, and where the results lie.

A TOML file and what the command line puts before it flow in; one checked `Experiment` flows out. No data are looked at.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from batchfact.compare.grid import OWN, Point, expand
from batchfact.compare.narrowing import Chosen, narrow_points, parse_only
from batchfact.errors import UsageError, nearest
from batchfact.evaluate.reading import Columns
from batchfact.settings import option_names

REPEATS = ("seed", "instruction", "demonstrations")


class _File(Struct, frozen=True, kw_only=True, rename="kebab"):
    data: str | list[str] | dict[str, str] | None = None
    limit: int | None = None
    results: str | None = None
    repeats: tuple[str, ...] = REPEATS
    label_column: str = Columns().label
    rating_column: str = Columns().rating
    id_column: str = Columns().id
    options: dict[str, Any] = {}
    grid: tuple[dict[str, Any], ...] = ({},)


class Experiment(Struct, frozen=True, kw_only=True):
    """`data` are places, each file a data set; or places by the name of their one data set.

    `limit` is the number of rows of each data set, its first ones. Points that differ in nothing but `repeats` are
    repeated runs of one system. `points` are those that `only` leaves, which may also name data sets.
    """

    data: tuple[str, ...] | dict[str, str]
    limit: int | None
    results: Path
    repeats: tuple[str, ...]
    columns: Columns
    points: tuple[Point, ...]
    only: Chosen = {}


def read_experiment(
    file: Path,
    *,
    data: tuple[str, ...] = (),
    limit: int | None = None,
    results: Path | None = None,
    only: Iterable[str] = (),
    columns: Mapping[str, str | None] = {},
) -> Experiment:
    """Read and check an experiment file.

    Args:
        data, limit, results, columns: go before what the file says; empty or None where they were not given.
        only: `NAME=VALUE` words that narrow it.
    Raises: UsageError with the path of the setting that is wrong.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not TOML: {error}") from error
    chosen = parse_only(only)
    given = {name: value for name, value in columns.items() if value is not None}
    try:
        found = _experiment(_decode({**content, **given}), file.stem, data=data, limit=limit, results=results)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from error
    return msgspec.structs.replace(found, points=narrow_points(found.points, chosen), only=chosen)


def _experiment(
    found: _File, stem: str, *, data: tuple[str, ...], limit: int | None, results: Path | None
) -> Experiment:
    places = data or ((found.data,) if isinstance(found.data, str) else found.data)
    if not places:
        raise UsageError("data names no data set: give files or folders here, or with --data")
    limit = found.limit if limit is None else limit
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, got {limit}")
    for name in found.repeats:
        if name not in option_names():
            raise UsageError(f"repeats: there is no option {name!r} of run{nearest(name, option_names())}")
    return Experiment(
        data=places if isinstance(places, dict) else tuple(places),
        limit=limit,
        results=results or Path(found.results or f"{stem}-results"),
        repeats=found.repeats,
        columns=Columns(label=found.label_column, rating=found.rating_column, id=found.id_column),
        points=expand(found.options, found.grid),
    )


def _decode(named: dict[str, Any]) -> _File:
    """Raises: UsageError for a setting that there is not, or whose type is wrong."""
    content = {name.replace("_", "-"): value for name, value in named.items()}
    known = _File.__struct_encode_fields__
    for name in content:
        if name in known:
            continue
        if name in option_names() and name not in OWN:
            raise UsageError(f"{name} is an option of run: it has its place under [options] or [[grid]]")
        raise UsageError(f"there is no setting {name!r}{nearest(name, known)}")
    if isinstance(content.get("grid"), dict):
        content["grid"] = [content["grid"]]
    try:
        return msgspec.convert(content, _File)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        raise UsageError(f"{place.rstrip('`')}: {reason}" if place else reason) from error
