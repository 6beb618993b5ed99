"""Trials: every point of the grid on every data set, with a name that tells it from the others.

An experiment and its data sets flow in, `Trial` records flow out: what one place of the papers' tables is made of.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from batchfact.compare.cells import Cell, Methods, Part, make_cell
from batchfact.compare.data_sets import DataSet
from batchfact.compare.experiment import Experiment
from batchfact.compare.grid import PARADIGM_BY, ParadigmBy, Point
from batchfact.errors import UsageError
from batchfact.evaluate.runs import system_name
from batchfact.models import known_entry
from batchfact.settings import reasons


class Name(Struct, frozen=True, kw_only=True):
    """`system` is what repeated runs have in common, `base` the same without its shots; `repeat` tells them apart."""

    system: str
    base: str
    shots: int
    repeat: str


class Trial(Struct, frozen=True, kw_only=True):
    """One system on one data set, once; several cells where the paradigm goes by a column."""

    name: Name
    data_set: DataSet
    cells: tuple[Cell, ...]


def make_trials(experiment: Experiment, data_sets: Iterable[DataSet], *, may_fetch: bool) -> tuple[Trial, ...]:
    """All points on the first data set, then on the next.

    Raises: UsageError for a data set that no run could read, or that lacks a column or a value of it.
    """
    names = name_points(experiment.points, experiment.repeats)
    methods = Methods(may_fetch=may_fetch)
    return tuple(
        Trial(name=name, data_set=data_set, cells=_cells(point, data_set, experiment.results, methods))
        for data_set in data_sets
        for point, name in zip(experiment.points, names, strict=True)
    )


def _cells(point: Point, data_set: DataSet, results: Path, methods: Methods) -> tuple[Cell, ...]:
    by = point.paradigm_by
    if by is None:
        return (make_cell(data_set, point.options, results, methods, rows=data_set.rows),)
    paradigms = _paradigms_of(data_set, by)
    scored = Counter(paradigms[: data_set.rows])
    is_split = len(set(paradigms)) > 1
    return tuple(
        make_cell(
            data_set,
            point.options_of(paradigm),
            results,
            methods,
            rows=rows,
            part=Part(by=by, paradigm=paradigm) if is_split else None,
        )
        for paradigm, rows in scored.items()
    )


def _paradigms_of(data_set: DataSet, by: ParadigmBy) -> list[str]:
    """The paradigm of each row. Raises: UsageError for a value that has none."""
    found = []
    for value in data_set.values_of(by.column):
        paradigm = by.paradigm_of(value)
        if paradigm is None:
            raise UsageError(
                f"{PARADIGM_BY}.{by.column}: {data_set.input} has rows with {value!r}, for which there is no paradigm; "
                f'add it, or "*" for all others'
            )
        found.append(paradigm)
    return found


def name_points(points: Sequence[Point], repeats: Sequence[str]) -> tuple[Name, ...]:
    """Systems by `evaluate`'s rule, and where that gives several points one name, by the options that they differ in.

    Args:
        repeats: options that points of one system may differ in.
    """
    groups: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        groups[_system(point)].append(point)
    return tuple(_name(point, groups[_system(point)], repeats) for point in points)


def _name(point: Point, same: Sequence[Point], repeats: Sequence[str]) -> Name:
    given = sorted({name for each in same for name in each.options})
    differing = [name for name in given if len({str(each.value_of(name)) for each in same}) > 1]
    said = [f"{name} {point.value_of(name)}" for name in differing if name not in repeats]
    return Name(
        system=" ".join([_system(point), *said]),
        base=" ".join([_system(point, with_shots=False), *said]),
        shots=point.config.identity.shots,
        repeat=", ".join(f"{name} {point.value_of(name)}" for name in differing if name in repeats),
    )


def _system(point: Point, *, with_shots: bool = True) -> str:
    identity = msgspec.to_builtins(point.config.identity)
    model, by = point.config.identity.model, point.paradigm_by
    entry = None if point.config.runtime.base_url else known_entry(model)
    facts = {
        "identity": {
            **identity,
            "model": Path(model).name if Path(model).is_dir() else model,
            "paradigm": identity["paradigm"] if by is None else by.name,
            "reasoning": by is None and reasons(point.config.identity, entry),
        },
        "fold": msgspec.to_builtins(point.config.fold),
    }
    return system_name(facts, with_shots=with_shots)
