"""How right a model's verdicts are, on labelled data sets by a fixed split of documents that no training may see."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from batchfact.evaluate.measures import Measures
from batchfact.evaluate.measures import measure as measure_rows
from batchfact.evaluate.metrics import (
    Absent,
    Measured,
    Metric,
    balanced_accuracy_draws,
    wrong_where_unscored,
)
from batchfact.evaluate.reading import Columns, read_run
from batchfact.evaluate.runs import Rows
from batchfact.pipeline import run
from batchfact.settings import make_config
from bench.facts import command_line, write_result

SETS = (
    "cogensumm_val",
    "diasumfact",
    "faceval",
    "factcc_val",
    "fib_cnndm",
    "fib_xsum",
    "frank_val",
    "summedits",
)
"""Data sets with at least 20 rows of each label in the folds that are measured."""
PARTLY_SYNTHETIC = "fib_"
KEPT = ("id", "document", "summary", "label", "summarizer", "error_types")
FIGURES = ("balanced_accuracy", "balanced_accuracy_scored", "roc_auc", "calibration_error")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="with labelled/NAME.parquet, and folds.parquet (file, id, fold)")
    parser.add_argument("--folds", default="0,1", help="the folds to measure on [%(default)s]")
    parser.add_argument("--sets", nargs="+", default=SETS, metavar="NAME")
    parser.add_argument("--model", default=None)
    parser.add_argument("--paradigm", default="sent-nli")
    parser.add_argument("--calibration", default=None, help="a file, or none [the model's own]")
    parser.add_argument("--keep", type=Path, help="keep the scored rows in this file; given again, they are not redone")
    parser.add_argument("--name", default="accuracy", help="of the result [%(default)s]")


def measure(args: argparse.Namespace) -> None:
    folds = tuple(map(int, args.folds.split(",")))
    with tempfile.TemporaryDirectory(prefix="batchfact-bench-") as folder:
        scored = args.keep or Path(folder) / "scored.parquet"
        source = scored.with_suffix(".input.parquet")
        if not source.exists():
            pq.write_table(gather(args.folder, args.sets, folds), source)
        options = {"model": args.model, "paradigm": args.paradigm, "calibration": args.calibration}
        report = anyio.run(run, make_config((str(source),), str(scored), options))
        found = read_run(str(scored), Columns())
    sets = {name: measure_rows(found.rows.select(places)) for name, places in found.rows.by_dataset().items()}
    all_rows = measure_rows(found.rows)
    result = {
        "command": command_line("bench", sys.argv[1:]),
        "model": found.facts["identity"]["model"],
        "folds": folds,
        "rows": len(found.rows),
        "statuses": report.totals.statuses,
        "macro": macro(sets.values()),
        "macro_interval_95": macro_interval(found.rows),
        "macro_without_fib": macro(value for name, value in sets.items() if not name.startswith(PARTLY_SYNTHETIC)),
        "calibration_error_all_rows": value_of(all_rows.calibration_error),
        "sets": {name: shown(each) for name, each in sets.items()},
    }
    write_result(args.name, result)
    for name, each in result["sets"].items():
        print(f"{name:16} {each['rows']:5} rows  " + "  ".join(f"{key} {each[key]}" for key in FIGURES))
    print("macro", result["macro"], result["macro_interval_95"], "without fib_", result["macro_without_fib"])


def gather(folder: Path, sets: Sequence[str], folds: tuple[int, ...]) -> pa.Table:
    """The rows of `sets` in `folds`, with their data set's name; ids are made unique over all sets."""
    split = pq.read_table(folder / "folds.parquet", columns=["file", "id", "fold"]).to_pylist()
    chosen = {(row["file"], row["id"]) for row in split if row["fold"] in folds}
    rows: list[dict[str, Any]] = []
    for name in sets:
        table = pq.read_table(folder / "labelled" / f"{name}.parquet", columns=list(KEPT))
        rows += [
            {**row, "dataset": name, "id": f"{name}/{row['id']}"}
            for row in table.to_pylist()
            if (name, row["id"]) in chosen
        ]
    return pa.Table.from_pylist(rows)


def macro(sets: Iterable[Measures]) -> dict[str, float | None]:
    """Each figure's mean over data sets, in percent; None where a set has none."""
    found = list(sets)
    values = {name: [value_of(getattr(each, name)) for each in found] for name in FIGURES}
    return {
        name: None if None in each else round(float(np.mean([value for value in each if value is not None])), 2)
        for name, each in values.items()
    }


def macro_interval(rows: Rows) -> tuple[float, float] | None:
    """The 95 % bootstrap interval of the macro-averaged balanced accuracy, in percent; None if a set has one class."""
    draws = []
    for seed, places in enumerate(rows.by_dataset().values()):
        gold, predicted = rows.gold[places], rows.predicted[places]
        if len(np.unique(gold)) < 2:
            return None
        draws.append(balanced_accuracy_draws(gold, wrong_where_unscored(gold, predicted), seed=seed))
    low, high = np.quantile(np.mean(draws, axis=0), [0.025, 0.975])
    return round(100 * float(low), 2), round(100 * float(high), 2)


def shown(found: Measures) -> dict[str, Any]:
    figures = {name: value_of(getattr(found, name)) for name in FIGURES}
    accuracy = found.balanced_accuracy
    interval = None if isinstance(accuracy, Absent) else msgspec.to_builtins(accuracy)
    return {
        "rows": found.rows,
        "scored": found.scored,
        "consistent": found.consistent,
        **figures,
        "balanced_accuracy_interval_95": interval and [interval["low"], interval["high"]],
    }


def value_of(metric: Metric) -> float | None:
    """In percent."""
    return round(100 * metric.value, 2) if isinstance(metric, Measured) else None
