"""A comparison, and a list of cells, as tables in the papers' layouts.

Records flow in, `evaluate`'s tables flow out; how they look is decided by who shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from batchfact.compare.cells import state_of
from batchfact.compare.data_sets import DataSet
from batchfact.compare.measuring import Compared
from batchfact.compare.trials import Trial
from batchfact.evaluate.comparison_tables import published
from batchfact.evaluate.evaluation import macro_average
from batchfact.evaluate.layout import Failed, Line, Table, Value
from batchfact.evaluate.metrics import Absent
from batchfact.evaluate.tables import tables

MAIN_TITLE = "Systems by data sets"
MAIN_NOTE = (
    "Balanced accuracy x 100, or Pearson's correlation x 100 where the column says so. An unscored row counts as "
    "wrong. Repeated runs are shown as mean and standard deviation; intervals and coverage stand below, for each run."
)
SHOTS_TITLE = "Systems by data sets and number of demonstrations"
DETAILS = (
    "Labels",
    "The inconsistent class",
    "Scores",
    "Repeated runs: mean and standard deviation",
    "Rows by status",
)
"""Those of `evaluate`'s tables that follow; the others are long, and `batchfact eval` has them for each cell."""


def comparison_tables(compared: Compared) -> tuple[Table, ...]:
    details = {table.title: table for table in tables(compared.evaluation)}
    made = (_main(compared), _by_shots(compared), _failures(compared))
    others = published(compared.evaluation)
    return (
        *(table for table in made if table.lines),
        *(details[title] for title in DETAILS if title in details),
        *([others] if any(each.is_comparable for each in compared.evaluation.comparisons) else []),
    )


def _main(compared: Compared) -> Table:
    """Systems by data sets, with their average.

    Source: Xu 2024, Table 2; with repeated runs Chen 2023, Table 4, and the deviations of Xu 2024, Table 4.
    """
    usable = [each for each in compared.data_sets if each.missing is None]
    has_average = len(usable) > 1
    lines = []
    for name in compared.systems:
        values = [_value(compared, name.system, each) for each in compared.data_sets]
        average = [_average(compared, name.system, usable)] if has_average else []
        lines.append(Line(system=name.system, values=(*values, *average)))
    heads = [_head(each) for each in compared.data_sets]
    notes = [note for each in compared.data_sets for note in each.notes]
    return Table(
        title=MAIN_TITLE,
        columns=(*heads, *(["average"] if has_average else [])),
        lines=tuple(lines),
        notes=(MAIN_NOTE, *(f"{note}." for note in notes)),
    )


def _by_shots(compared: Compared) -> Table:
    """Systems by data sets, zero-shot beside few-shot; no lines where all points have as many shots.

    Source: Chen 2023, Table 2.
    """
    shots = sorted({name.shots for name in compared.systems})
    places = [(each, number) for each in compared.data_sets for number in shots]
    lines = []
    for base in dict.fromkeys(name.base for name in compared.systems):
        systems = {name.shots: name.system for name in compared.systems if name.base == base}
        values = [_value(compared, systems[number], each) if number in systems else None for each, number in places]
        lines.append(Line(system=base, values=tuple(values)))
    return Table(
        title=SHOTS_TITLE,
        columns=tuple(f"{_head(each)} {number}-shot" for each, number in places),
        lines=tuple(lines) if len(shots) > 1 else (),
    )


def _head(data_set: DataSet) -> str:
    return f"{data_set.name} (Pearson)" if data_set.headline == "pearson" else data_set.name


def _value(compared: Compared, system: str, data_set: DataSet) -> Value:
    """One place of the papers' tables: a value without its interval, or mean and deviation of repeated runs."""
    for failure in compared.failures:
        if (failure.name.system, failure.data_set) == (system, data_set.name):
            return Failed(failure.reason)
    for cell in compared.evaluation.cells:
        if (cell.system, cell.dataset) == (system, data_set.name):
            return cell.spread_of(data_set.headline)
    return None


def _average(compared: Compared, system: str, usable: Sequence[DataSet]) -> Value:
    """Over the data sets that have a figure for anyone; absent where this system has none on one of them."""
    for each in usable:
        if isinstance(_value(compared, system, each), Failed):
            return Absent(f"{system} failed on {each.name}")
    names = {each.name for each in usable}
    cells = [cell for cell in compared.evaluation.cells if cell.system == system and cell.dataset in names]
    return macro_average(system, cells).value


def _failures(compared: Compared) -> Table:
    return Table(
        title="Failed",
        group="run",
        columns=("why",),
        lines=tuple(
            Line(system=each.name.system, dataset=each.data_set, group=each.name.repeat, values=(each.reason,))
            for each in compared.failures
        ),
        notes=("The same command tries these again.",),
    )


def cell_table(trials: Iterable[Trial]) -> Table:
    """What would be run: every cell with what there is of it."""
    return Table(
        title="Cells",
        group="run",
        columns=("rows", "state", "output"),
        lines=tuple(
            Line(
                system=trial.name.system,
                dataset=trial.data_set.name,
                group=trial.name.repeat,
                values=(cell.rows, state_of(cell), cell.problem or cell.output),
            )
            for trial in trials
            for cell in trial.cells
        ),
    )
