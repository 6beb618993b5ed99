"""What the trials' outputs are worth, by `batchfact.evaluate`.

Trials and the reasons of failed cells flow in, one `Compared` flows out. No metric is made here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec import Struct

from batchfact.compare.data_sets import DataSet
from batchfact.compare.trials import Name, Trial
from batchfact.errors import UsageError
from batchfact.evaluate.error_types import read_error_map
from batchfact.evaluate.evaluation import Evaluation, evaluate
from batchfact.evaluate.published import published_figures
from batchfact.evaluate.reading import Columns, read_run
from batchfact.evaluate.runs import Run, join_rows


class Failure(Struct, frozen=True, kw_only=True):
    """A trial without figures."""

    name: Name
    data_set: str
    reason: str


class Compared(Struct, frozen=True, kw_only=True):
    """The measured experiment; `systems` are in the grid's order."""

    systems: tuple[Name, ...]
    data_sets: tuple[DataSet, ...]
    evaluation: Evaluation
    failures: tuple[Failure, ...]


def compare(trials: Sequence[Trial], failed: Mapping[str, str], columns: Columns) -> Compared:
    """Measure all trials together.

    Args:
        failed: for the outputs of cells that failed, why.
    """
    runs: list[Run] = []
    failures: list[Failure] = []
    for trial in trials:
        reasons = [cell.problem or failed.get(cell.output) for cell in trial.cells]
        reason = next((each for each in reasons if each), None)
        if reason is None:
            try:
                runs.append(_run_of(trial, columns))
            except UsageError as error:
                reason = str(error)
        if reason is not None:
            failures.append(Failure(name=trial.name, data_set=trial.data_set.name, reason=reason))
    return Compared(
        systems=tuple({trial.name.system: trial.name for trial in trials}.values()),
        data_sets=tuple({trial.data_set.name: trial.data_set for trial in trials}.values()),
        evaluation=evaluate(runs, error_map=read_error_map(None), figures=published_figures()),
        failures=tuple(failures),
    )


def _run_of(trial: Trial, columns: Columns) -> Run:
    """The trial's rows, those of all its cells, under its own name and the data set's."""
    runs = [read_run(cell.output, columns) for cell in trial.cells]
    rows = join_rows([run.rows for run in runs])
    return msgspec.structs.replace(
        runs[0],
        system=trial.name.system,
        base_system=trial.name.base,
        repeat=trial.name.repeat,
        shots=trial.name.shots,
        has_upper_bounds=any(run.has_upper_bounds for run in runs),
        rows=msgspec.structs.replace(rows, datasets=np.full(len(rows), trial.data_set.name, object)),
        notes=(),
    )
