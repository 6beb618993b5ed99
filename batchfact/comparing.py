"""What `batchfact compare` does: an experiment's cells run, measured, and written as tables.

An experiment flows in; tables flow out, and as `comparison.md`, `.csv` and `.json` into the results folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from batchfact.compare.data_sets import find_data_sets
from batchfact.compare.execution import run_cells
from batchfact.compare.experiment import Experiment
from batchfact.compare.layouts import cell_table, comparison_tables
from batchfact.compare.measuring import Compared, compare
from batchfact.compare.trials import Trial, make_trials
from batchfact.durable import durable_file
from batchfact.errors import RunFailedError
from batchfact.evaluate.layout import Table
from batchfact.evaluate.rendering import markdown, tidy_csv


class Done(Struct, frozen=True, kw_only=True):
    """What there is to show, and how many of the trials have failed."""

    tables: tuple[Table, ...]
    json: str
    trials: int
    failed: int = 0


def list_cells(experiment: Experiment) -> Done:
    """The cells with what is there of them; nothing is run, fetched or written.

    Raises: UsageError as `run_experiment`.
    """
    trials = _trials(experiment, may_fetch=False)
    table = cell_table(trials)
    return Done(tables=(table,), json=_json({"cells": table.lines}), trials=len(trials))


def run_experiment(experiment: Experiment, *, tell: Callable[[str], None]) -> Done:
    """Run what is not finished, measure everything, and write the tables.

    Args:
        tell: hears a line of progress.
    Raises:
        UsageError: for data that cannot be measured, before any run.
        RunFailedError: the results folder cannot be written.
        InterruptedComparisonError: after a Ctrl-C.
    """
    trials = _trials(experiment, may_fetch=True)
    cells = {cell.output: cell for trial in trials for cell in trial.cells if cell.problem is None}
    failed = run_cells(tuple(cells.values()), experiment.results, id_column=experiment.columns.id, tell=tell)
    compared = compare(trials, failed, experiment.columns)
    done = Done(
        tables=comparison_tables(compared),
        json=_comparison_json(compared),
        trials=len(trials),
        failed=len(compared.failures),
    )
    _write(experiment.results, done)
    return done


def _trials(experiment: Experiment, *, may_fetch: bool) -> Sequence[Trial]:
    data_sets = find_data_sets(experiment.data, experiment.columns, limit=experiment.limit, only=experiment.only)
    return make_trials(experiment, data_sets, may_fetch=may_fetch)


def _comparison_json(compared: Compared) -> str:
    return _json(
        {
            "tables": comparison_tables(compared),
            "cells": compared.evaluation.cells,
            "failures": compared.failures,
            "data_sets": compared.data_sets,
        }
    )


def _json(content: object) -> str:
    return msgspec.json.format(msgspec.json.encode(content)).decode()


def _write(folder: Path, done: Done) -> None:
    texts = {"md": markdown(done.tables), "csv": tidy_csv(done.tables), "json": done.json}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for ending, text in texts.items():
            with durable_file(folder / f"comparison.{ending}") as file:
                file.write(text.encode())
    except OSError as error:
        raise RunFailedError(f"the tables cannot be written to {folder}: {error}; --results names another") from error
