"""Measured trials as the papers' tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchfact.compare.cells import Cell
from batchfact.compare.data_sets import DataSet, find_data_sets
from batchfact.compare.execution import _reason
from batchfact.compare.layouts import DETAILS, MAIN_TITLE, SHOTS_TITLE, comparison_tables
from batchfact.compare.measuring import compare
from batchfact.compare.trials import Name, Trial
from batchfact.evaluate.layout import Failed, Table
from batchfact.evaluate.metrics import Absent, Measured, Spread
from batchfact.evaluate.reading import Columns
from batchfact.evaluate.rendering import markdown, tidy_csv
from tests.unit.scored_files import write_scored

GOLD = [1, 1, 0, 0]
ALL_RIGHT = [0.9, 0.8, 0.1, 0.2]
ONE_WRONG = [0.9, 0.8, 0.9, 0.2]  # balanced accuracy 0.75
ONE_UNSCORED = [0.9, 0.8, None, 0.2]


@pytest.fixture
def sets(tmp_path: Path) -> dict[str, DataSet]:
    """Three data sets: with labels, of one class, with ratings alone."""
    folder = tmp_path / "sets"
    folder.mkdir()
    columns: dict[str, tuple[str, list[Any]]] = {
        "labelled": ("label", GOLD),
        "one-class": ("label", [0, 0, 0, 0]),
        "rated": ("score", [0.1, 0.4, 0.6, 0.9]),
    }
    for name, (column, cells) in columns.items():
        pq.write_table(pa.table({"id": ["r0", "r1", "r2", "r3"], column: cells}), folder / f"{name}.parquet")
    return {each.name: each for each in find_data_sets([str(folder)], Columns(), limit=None)}


class Trials:
    """Trials as they are made, each from scores written to a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[Trial] = []

    def add(
        self, data_set: DataSet, system: str, scores: Sequence[float | None], *, shots: int = 0, **more: Any
    ) -> str:
        gold = pq.read_table(data_set.input)
        output = str(self.folder / f"scored{len(self.made)}.parquet")
        labels = gold["label"].to_pylist() if "label" in gold.column_names else [None] * 4
        ratings = {"score": gold["score"].to_pylist()} if "score" in gold.column_names else {}
        write_scored(Path(output), pa.array(labels, pa.int8()), scores, **ratings)
        cell = Cell(
            data_set=data_set, input=data_set.input, output=output, options={}, rows=4, problem=more.get("problem")
        )
        name = Name(system=system, base=system.removesuffix(" 2-shot"), shots=shots, repeat=more.get("repeat", ""))
        self.made.append(Trial(name=name, data_set=data_set, cells=(cell,)))
        return output

    def tables(self, failed: dict[str, str] | None = None) -> dict[str, Table]:
        made = comparison_tables(compare(self.made, failed or {}, Columns()))
        return {table.title: table for table in made}


@pytest.fixture
def trials(tmp_path: Path) -> Trials:
    return Trials(tmp_path)


def values(table: Table) -> dict[str, tuple[Any, ...]]:
    return {line.system: line.values for line in table.lines}


def test_systems_by_data_sets_have_balanced_accuracies_correlations_and_their_average(
    sets: dict[str, DataSet], trials: Trials
) -> None:
    for name, scores in {"good": ALL_RIGHT, "bad": ONE_WRONG}.items():
        trials.add(sets["labelled"], name, scores)
        trials.add(sets["one-class"], name, scores)
        trials.add(sets["rated"], name, [0.1, 0.4, 0.6, 0.9])
    tables = trials.tables()
    main = tables[MAIN_TITLE]

    assert main.columns == ("labelled", "one-class", "rated (Pearson)", "average")
    good, bad = values(main)["good"], values(main)["bad"]
    assert [each.mean for each in (good[0], bad[0], good[2])] == pytest.approx([1.0, 0.75, 1.0])
    assert good[1] == Absent("all gold labels are inconsistent")
    assert [each.value for each in (good[3], bad[3])] == pytest.approx([1.0, 0.875])
    assert "one-class is left out of the average: all gold labels are inconsistent." in main.notes
    assert {*DETAILS} - {*tables} == {"Repeated runs: mean and standard deviation"}
    labels = next(line for line in tables["Labels"].lines if (line.system, line.dataset) == ("bad", "labelled"))
    assert isinstance(labels.values[2], Measured) and labels.values[2].low is not None


def test_an_unscored_row_counts_as_wrong_and_lowers_the_coverage(sets: dict[str, DataSet], trials: Trials) -> None:
    trials.add(sets["labelled"], "s", ONE_UNSCORED)
    tables = trials.tables()

    assert values(tables[MAIN_TITLE])["s"] == (Spread(mean=0.75, deviation=None, runs=1),)
    assert tables["Labels"].lines[0].values[1] == Measured(0.75)


def test_repeated_runs_have_mean_and_deviation(sets: dict[str, DataSet], trials: Trials) -> None:
    trials.add(sets["labelled"], "s", ALL_RIGHT, repeat="seed 0")
    trials.add(sets["labelled"], "s", ONE_WRONG, repeat="seed 1")
    (spread,) = values(trials.tables()[MAIN_TITLE])["s"]

    assert (spread.mean, spread.deviation, spread.runs) == (0.875, pytest.approx(0.125 * 2**0.5), 2)


def test_zero_shot_stands_beside_few_shot(sets: dict[str, DataSet], trials: Trials) -> None:
    assert SHOTS_TITLE not in trials.tables()
    trials.add(sets["labelled"], "m vanilla", ONE_WRONG)
    trials.add(sets["labelled"], "m vanilla 2-shot", ALL_RIGHT, shots=2)
    trials.add(sets["labelled"], "m sbs", ALL_RIGHT)
    table = trials.tables()[SHOTS_TITLE]

    assert table.columns == ("labelled 0-shot", "labelled 2-shot")
    assert [each.mean for each in values(table)["m vanilla"]] == [0.75, 1.0]
    assert values(table)["m sbs"][1] is None


def test_what_failed_is_shown_with_its_reason_and_has_no_average(sets: dict[str, DataSet], trials: Trials) -> None:
    trials.add(sets["labelled"], "s", ALL_RIGHT)
    rated = trials.add(sets["rated"], "s", [0.1, 0.4, 0.6, 0.9])
    trials.add(sets["labelled"], "t", ALL_RIGHT, problem="it is gated")
    trials.add(sets["rated"], "t", [0.1, 0.4, 0.6, 0.9])
    tables = trials.tables({rated: "it died"})

    one, other = values(tables[MAIN_TITLE])["s"], values(tables[MAIN_TITLE])["t"]
    assert one[0] == Spread(mean=1.0, deviation=None, runs=1)
    assert (one[1], other[0]) == (Failed("it died"), Failed("it is gated"))
    assert one[2] == Absent("s failed on rated")
    text = markdown(list(tables.values()))
    assert "| s | 100.00 | failed | - |" in text
    assert "| s | rated | it died |" in text
    assert f"{MAIN_TITLE},s,,,rated (Pearson),,,,,failed: it died" in tidy_csv(list(tables.values())).replace('"', "")


def test_the_reason_of_a_failure_is_what_its_process_said_last() -> None:
    assert _reason(1, ["Traceback", "ValueError: x"]) == "ValueError: x"
    assert _reason(4, []) == "exit code 4"
    assert _reason(-9, ["scoring"]) == "its process was ended by SIGKILL, perhaps for lack of memory"
