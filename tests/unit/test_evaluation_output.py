"""What eval shows: tables as text, Markdown, CSV and JSON, and the plots."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import msgspec
import pytest

from batchfact.evaluate.error_types import read_error_map
from batchfact.evaluate.evaluation import Evaluation, evaluate
from batchfact.evaluate.layout import Line, Table
from batchfact.evaluate.metrics import Absent, Measured, Spread
from batchfact.evaluate.plots import write_plots
from batchfact.evaluate.published import published_figures
from batchfact.evaluate.reading import Columns, read_run
from batchfact.evaluate.rendering import as_json, markdown, shown, tidy_csv
from batchfact.evaluate.runs import Run
from batchfact.evaluate.tables import tables
from tests.unit.scored_files import facts, write_scored

TABLE = Table(
    title="T",
    group="kind",
    columns=("rows", "BAcc"),
    lines=(
        Line(system="a|b", group="x", values=(1200, Measured(0.6251, 0.5, 0.75))),
        Line(system="c", group="y", values=(3, Absent("all gold labels are consistent"))),
    ),
    notes=("A note.",),
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Measured(0.62514), "62.51"),
        (Measured(0.6251, 0.5, 0.75), "62.51 [50.0, 75.0]"),
        (Spread(mean=0.5, deviation=0.0123, runs=3), "50.00 ± 1.23"),
        (Absent("why"), "-"),
        (1234, "1,234"),
        (0.81234, "0.812"),
        ("text", "text"),
        (None, ""),
    ],
)
def test_metrics_are_shown_in_percent(value: object, text: str) -> None:
    assert shown(value) == text  # type: ignore[arg-type]  # parametrised over the union


def test_markdown_says_why_a_metric_is_not_there() -> None:
    assert markdown([TABLE]) == (
        "## T\n\n| system | kind | rows | BAcc |\n| --- | --- | ---: | ---: |\n"
        "| a\\|b | x | 1,200 | 62.51 [50.0, 75.0] |\n| c | y | 3 | - |\n\n"
        "No BAcc: all gold labels are consistent.\n\nA note.\n"
    )


def test_csv_has_a_line_for_each_value_and_the_reason_for_each_that_is_not_there() -> None:
    lines = list(csv.DictReader(io.StringIO(tidy_csv([TABLE]))))

    assert len(lines) == 4
    assert (lines[1]["value"], lines[1]["low"], lines[1]["high"]) == ("0.6251", "0.5", "0.75")
    assert (lines[3]["column"], lines[3]["value"], lines[3]["absent"]) == ("BAcc", "", "all gold labels are consistent")


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    """Two numbers of demonstrations on two data sets, with all columns."""
    made = []
    for shots, scores in ((0, [0.9, 0.2, 0.1, 0.6, 0.7, None]), (2, [0.9, 0.8, 0.1, 0.2, 0.7, 0.3])):
        file = write_scored(
            tmp_path / f"{shots}.parquet",
            [1, 1, 0, 0, 1, 0],
            scores,
            metadata=facts(shots=shots, paradigm="vanilla"),
            dataset=["diasumfact"] * 4 + ["other"] * 2,
            split=["all"] * 6,
            summarizer=["bart", "t5"] * 3,
            error_types=[[], [], ["EntE"], ["PredE", "EntE"], [], []],
            summary=["a few words"] * 6,
            document=["many words " * 200] * 6,
        )
        made.append(read_run(file, Columns()))
    return made


@pytest.fixture
def evaluation(runs: list[Run]) -> Evaluation:
    return evaluate(runs, error_map=read_error_map(), figures=published_figures())


def test_every_table_of_the_papers_is_there(evaluation: Evaluation) -> None:
    made = {table.title: table for table in tables(evaluation)}

    assert list(made) == [
        "Balanced accuracy, or Pearson's correlation where there are only ratings",
        "Labels",
        "The inconsistent class",
        "Scores",
        "Rows by status",
        "By summariser",
        "Recall by error type",
        "By length in words, over all data sets",
        "By number of demonstrations",
        "Agreement of two runs",
        "Rows with another label",
        "Published figures",
    ]
    assert all(len(line.values) == len(table.columns) for table in made.values() for line in table.lines)
    assert [line.group for line in made["By number of demonstrations"].lines] == ["0", "2", "0", "2"]
    overview = made["Balanced accuracy, or Pearson's correlation where there are only ratings"]
    assert overview.columns == ("diasumfact", "other", "macro-average")


def test_figures_that_are_not_comparable_are_named_with_the_reason(evaluation: Evaluation) -> None:
    (table,) = (table for table in tables(evaluation) if table.title == "Published figures")

    assert [line.system for line in table.lines] == ["none"]
    assert "Not comparable: Xu 2024, Table 2, diasumfact, balanced accuracy (475 rows, here 4)." in table.notes


def test_json_has_everything_and_no_nan(evaluation: Evaluation) -> None:
    text = as_json(evaluation)
    found = json.loads(text, parse_constant=pytest.fail)

    assert found["cells"][0]["runs"][0]["measures"]["balanced_accuracy"]["type"] == "measured"
    assert found["cells"][0]["runs"][0]["measures"]["pearson"] == {
        "type": "absent",
        "reason": "there are no human ratings",
    }
    assert len(found["agreements"][0]["flips"]) == 2


def test_every_plot_is_written_as_png_and_svg(tmp_path: Path, runs: list[Run], evaluation: Evaluation) -> None:
    written = write_plots(tmp_path / "plots", runs, evaluation)
    names = {path.name for path in written}

    for name in ("roc", "reliability", "length-of-summary", "length-of-document", "error-types", "shots"):
        assert {f"{name}.png", f"{name}.svg"} <= names
    assert all(path.read_bytes()[:4] == (b"\x89PNG" if path.suffix == ".png" else b"<?xm") for path in written)
    first = (tmp_path / "plots" / "roc.svg").read_bytes()
    write_plots(tmp_path / "plots", runs, evaluation)
    assert (tmp_path / "plots" / "roc.svg").read_bytes() == first


def test_runs_of_one_name_in_two_folders_have_a_plot_each(tmp_path: Path, runs: list[Run]) -> None:
    same = [msgspec.structs.replace(runs[0], file=str(tmp_path / folder / "scored.parquet")) for folder in "ab"]
    written = write_plots(tmp_path / "plots", same, evaluate(same, error_map=read_error_map()))
    scores = [path.name for path in written if path.name.startswith("scores-") and path.suffix == ".png"]

    assert len(set(scores)) == 2 and scores[1] == scores[0].replace(".png", "-2.png")
