"""The evaluation of scored runs: everything that the tables and plots show, as frozen records.

Runs, a threshold rule and maps flow in; one `Evaluation` flows out. The same runs give the same evaluation: bootstrap
and cross-validation are seeded. It reads and writes no file.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from batchfact.errors import UsageError
from batchfact.evaluate.breakdowns import Agreement, Group, LengthBin, by_length, by_summarizer, compare_labels
from batchfact.evaluate.error_types import ErrorMap, TypeRecall, recall_by_type
from batchfact.evaluate.measures import Measures, measure
from batchfact.evaluate.metrics import NONE, Absent, Measured, Metric, Spread, spread
from batchfact.evaluate.published import Comparison, Figures, OurSet, compare
from batchfact.evaluate.runs import Rows, Run, join_rows
from batchfact.evaluate.thresholds import cross_validated, predict

T = TypeVar("T")
Threshold = Literal["own", "cv5"] | float | Mapping[str | None, float]
"""The labels as they are; 5-fold cross-validation in each data set; one number for all; or one by score column."""


class RunMeasures(Struct, frozen=True, kw_only=True):
    """One run of a system; `thresholds` are those that were fitted, none where the labels are the file's own.

    `problem` says why no threshold could be fitted: nothing is called consistent or inconsistent then.
    """

    file: str
    repeat: str
    measures: Measures
    thresholds: tuple[float, ...] = ()
    problem: Absent | None = None


class Cell(Struct, frozen=True, kw_only=True):
    """A system on a data set: one run, or several that are repeats of each other."""

    system: str
    base_system: str
    shots: int
    dataset: str
    splits: tuple[str, ...]
    runs: tuple[RunMeasures, ...]

    @property
    def measures(self) -> Measures:
        """The first run's."""
        return self.runs[0].measures

    def spread_of(self, name: str) -> Spread | Absent:
        """Mean and deviation of a metric over the runs."""
        return spread(tuple(getattr(run.measures, name) for run in self.runs))


class Average(Struct, frozen=True, kw_only=True):
    """A system's mean over data sets: of balanced accuracy, or of Pearson's correlation where there are only ratings.

    Source: Xu 2024, Table 2.
    """

    system: str
    value: Metric
    parts: dict[str, str]
    """The metric that stands for each data set."""


class Evaluation(Struct, frozen=True, kw_only=True):
    cells: tuple[Cell, ...]
    averages: tuple[Average, ...]
    summarizers: tuple[Group, ...]
    error_types: tuple[TypeRecall, ...]
    lengths: tuple[LengthBin, ...]
    agreements: tuple[Agreement, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...] = ()


def evaluate(
    runs: Sequence[Run],
    *,
    error_map: ErrorMap,
    figures: Sequence[Figures] = (),
    threshold: Threshold = "own",
    seed: int = 0,
) -> Evaluation:
    """Measure runs, each on all its data sets; runs of one system on one data set are repeats.

    Args:
        runs: at least one. All runs on a data set hold the same rows.
        figures: published figures to set beside ours.
        threshold: how scores become labels.
        seed: of bootstrap and cross-validation.

    Raises: UsageError for two runs on different rows of one data set, or scores that are upper bounds and shall get
        another threshold.
    """
    if threshold != "own":
        refuse_upper_bounds(runs)
    check_same_rows(runs)
    parts: dict[tuple[str, str], list[_Part]] = defaultdict(list)
    for run in runs:
        for dataset, places in run.rows.by_dataset().items():
            parts[run.system, dataset].append(_make_part(run, run.rows.select(places), threshold, seed))
    cells = tuple(_cell(system, dataset, found, seed) for (system, dataset), found in parts.items())
    pooled = {key: rows for key, found in parts.items() if (rows := _pooled(found)) is not None}
    types = _flat(recall_by_type(rows, *key, error_map) for key, rows in pooled.items())
    return Evaluation(
        cells=cells,
        averages=_averages(cells),
        summarizers=_flat(by_summarizer(rows, *key) for key, rows in pooled.items()),
        error_types=types,
        lengths=_flat(by_length(rows, system) for system, rows in _by_system(pooled).items()),
        agreements=_agreements(parts),
        comparisons=_comparisons(cells, types, figures),
        notes=tuple(dict.fromkeys(note for run in runs for note in run.notes)),
    )


def refuse_upper_bounds(runs: Iterable[Run]) -> None:
    """Raises: UsageError where a run's scores are only upper bounds."""
    for run in runs:
        if run.has_upper_bounds:
            raise UsageError(
                f"{run.file} was scored with --early-exit: its scores are only upper bounds, so no threshold or "
                "calibration can be fitted or applied; score it again without"
            )


def check_same_rows(runs: Sequence[Run]) -> None:
    """Raises: UsageError where two runs have rows of one data set, but not the same ones, or an id twice."""
    known: dict[str, tuple[Run, list[str]]] = {}
    for run in runs:
        for dataset, places in run.rows.by_dataset().items():
            ids = run.rows.ids[places].tolist()
            first, first_ids = known.setdefault(dataset, (run, ids))
            if first is run:
                continue
            mine, others = frozenset(ids), frozenset(first_ids)
            if mine != others:
                raise UsageError(
                    f"{first.file} and {run.file} hold different rows of {dataset}, so they cannot be compared: "
                    f"{_some(others - mine)} only in the first, {_some(mine - others)} only in the second; choose the "
                    "same rows with --where, or name the column that tells data sets apart with --dataset-column"
                )
            for each, its_ids in ((first, first_ids), (run, ids)):
                if len(mine) < len(its_ids):
                    raise UsageError(f"{each.file} has an id of {dataset} more than once, so it cannot be compared")


def _some(ids: frozenset[str]) -> str:
    return f"{len(ids):,} ids" + (f" ({', '.join(map(repr, sorted(ids, key=str)[:2]))})" if ids else "")


class _Part(Struct, frozen=True, kw_only=True):
    """One run's rows of one data set, with the predictions that count, or the reason why there are none."""

    run: Run
    rows: Rows
    thresholds: tuple[float, ...] = ()
    problem: Absent | None = None


def _make_part(run: Run, rows: Rows, threshold: Threshold, seed: int) -> _Part:
    if threshold == "own":
        return _Part(run=run, rows=rows)
    if threshold == "cv5":
        fitted = cross_validated(rows.gold, rows.scores, seed=seed)
        if isinstance(fitted, Absent):
            return _Part(run=run, rows=rows, problem=fitted)
        predicted, thresholds = fitted
    else:
        number = threshold[run.score_column] if isinstance(threshold, Mapping) else threshold
        predicted, thresholds = predict(rows.scores, number), (number,)
    return _Part(run=run, rows=msgspec.structs.replace(rows, predicted=predicted), thresholds=thresholds)


def _cell(system: str, dataset: str, parts: Sequence[_Part], seed: int) -> Cell:
    first = parts[0].run
    return Cell(
        system=system,
        base_system=first.base_system,
        shots=first.shots,
        dataset=dataset,
        splits=tuple(sorted({split for split in parts[0].rows.splits.tolist() if split is not None})),
        runs=tuple(
            RunMeasures(
                file=part.run.file,
                repeat=part.run.repeat,
                measures=measure(
                    part.rows, problem=part.problem, has_upper_bounds=part.run.has_upper_bounds, seed=seed
                ),
                thresholds=part.thresholds,
                problem=part.problem,
            )
            for part in parts
        ),
    )


def _pooled(parts: Sequence[_Part]) -> Rows | None:
    """The rows with gold labels of all repeated runs; None where there are no predictions or no labels."""
    rows = [part.rows.select(part.rows.gold != NONE) for part in parts if part.problem is None]
    return join_rows(rows) if any(map(len, rows)) else None


def _by_system(pooled: dict[tuple[str, str], Rows]) -> dict[str, Rows]:
    found: dict[str, list[Rows]] = defaultdict(list)
    for (system, _), rows in pooled.items():
        found[system].append(rows)
    return {system: join_rows(rows) for system, rows in found.items()}


def _averages(cells: Sequence[Cell]) -> tuple[Average, ...]:
    """One for each system with several data sets."""
    by_system: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        by_system[cell.system].append(cell)
    return tuple(macro_average(system, found) for system, found in by_system.items() if len(found) > 1)


def headline(cell: Cell) -> str:
    """The metric that stands for a data set: balanced accuracy, or Pearson's correlation where it has only ratings."""
    return "balanced_accuracy" if cell.measures.labelled else "pearson"


def macro_average(system: str, cells: Sequence[Cell]) -> Average:
    """The mean over a system's cells, which must be at least one; absent where one of them has no figure."""
    parts = {cell.dataset: headline(cell) for cell in cells}
    values = []
    for cell in cells:
        spread = cell.spread_of(headline(cell))
        if isinstance(spread, Absent):
            return Average(system=system, value=Absent(f"{cell.dataset}: {spread.reason}"), parts=parts)
        values.append(spread.mean)
    return Average(system=system, value=Measured(float(np.mean(values))), parts=parts)


def _agreements(parts: dict[tuple[str, str], list[_Part]]) -> tuple[Agreement, ...]:
    """Where a data set has exactly two runs: how they agree."""
    by_dataset: dict[str, list[_Part]] = defaultdict(list)
    for (_, dataset), found in parts.items():
        by_dataset[dataset].extend(found)
    return tuple(
        compare_labels(*(part.rows for part in found), dataset=dataset, names=_names(found))
        for dataset, found in by_dataset.items()
        if len(found) == 2 and not any(part.problem for part in found)
    )


def _names(parts: Sequence[_Part]) -> tuple[str, str]:
    first, second = (part.run for part in parts)
    return (first.repeat, second.repeat) if first.system == second.system else (first.system, second.system)


def _comparisons(
    cells: Sequence[Cell], types: Sequence[TypeRecall], figures: Sequence[Figures]
) -> tuple[Comparison, ...]:
    """Published figures of each data set, once; what was measured on it is what any of the systems has."""
    by_dataset: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        by_dataset[cell.dataset].append(cell)
    found: list[Comparison] = []
    for dataset, same in by_dataset.items():
        first = same[0]
        measured = {name for cell in same for name in our_figures(cell, types)}
        labelled = first.measures.labelled
        ours = OurSet(
            dataset=dataset,
            splits=first.splits,
            rows=first.measures.rows,
            consistent=first.measures.consistent / labelled if labelled else None,
            metrics=frozenset(measured),
        )
        found.extend(compare(ours, figures))
    return tuple(found)


def our_figures(cell: Cell, types: Sequence[TypeRecall]) -> dict[str, float]:
    """A cell's values by the names that published figures have."""
    found: dict[str, float] = {}
    for name in ("balanced_accuracy", "pearson"):
        spread = cell.spread_of(name)
        if isinstance(spread, Spread):
            found[name] = spread.mean
            if name == "balanced_accuracy" and spread.deviation is not None:
                found["balanced_accuracy_deviation"] = spread.deviation
    for each in types:
        if (each.system, each.dataset) == (cell.system, cell.dataset) and isinstance(each.recall, Measured):
            found[f"recall {each.error_type}"] = each.recall.value
    return found


def _flat(groups: Iterable[Iterable[T]]) -> tuple[T, ...]:
    return tuple(itertools.chain.from_iterable(groups))
