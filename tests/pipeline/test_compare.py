"""`batchfact compare` through the real command line: cells are ordinary runs, done once, and measured by `evaluate`."""

from __future__ import annotations

import csv
import io
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import psutil
import pyarrow.parquet as pq
import pytest

from batchfact import pipeline
from batchfact.compare.experiment import Experiment, read_experiment
from batchfact.compare.layouts import MAIN_TITLE
from batchfact.comparing import Done, list_cells, run_experiment
from batchfact.errors import UsageError
from batchfact.evaluate.measures import measure
from batchfact.evaluate.metrics import Measured, Spread
from batchfact.evaluate.reading import Columns, read_run
from batchfact.metadata import read_description
from batchfact.run_log import read_log
from batchfact.settings import make_config
from batchfact.toml_text import toml_lines
from tests.pipeline.command_line import PAIRS, CommandLine, rows, verdicts

WriteExperiment = Callable[..., Experiment]
LABELS = [1, 0, 1, 1, 0] * 2


@pytest.fixture
def experiment(fake_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteExperiment:
    """Writes an experiment with the fake engine and model, which logs its requests, in `experiment.toml`."""
    monkeypatch.chdir(tmp_path)

    def write(grid: str, **settings: Any) -> Experiment:
        top = {"data": ["in.parquet"], "results": "results"} | settings
        arguments = {"log": str(tmp_path / "requests.log"), "max_num_seqs": "2"} | top.pop("engine-arg", {})
        options = {
            "engine": "fake",
            "model": str(fake_model),
            "engine-arg": arguments,
            "part-rows": 2,
            "max-restarts": 0,
        }
        text = f"{toml_lines(top)}\n[options]\n{toml_lines(options)}\n{grid}\n"
        Path("experiment.toml").write_text(text)
        return read_experiment(Path("experiment.toml"))

    return write


def run(experiment: Experiment) -> Done:
    return run_experiment(experiment, tell=print)


def num_requests() -> int:
    """How many requests the engines got since the last time this was asked."""
    log = Path("requests.log")
    count = len(log.read_text().splitlines()) if log.exists() else 0
    log.unlink(missing_ok=True)
    return count


def cells(paradigm: str = "") -> dict[Path, int]:
    """Outputs in the results folder, with their time of change."""
    return {path: path.stat().st_mtime_ns for path in Path("results/cells/in").glob(f"*{paradigm}-*.parquet")}


def test_finished_cells_are_reused_and_what_is_new_is_run(
    cli: CommandLine, make_input: Any, experiment: WriteExperiment
) -> None:
    make_input(PAIRS[:10], id=range(10), label=LABELS)
    summ_nli = experiment('[[grid]]\nparadigm = ["summ-nli"]')
    assert [line.values[1] for line in list_cells(summ_nli).tables[0].lines] == ["new"]
    assert not Path("results").exists()

    printed = cli("compare", "experiment.toml").stdout
    assert num_requests() == 10
    (output,) = cells()
    own = measure(read_run(str(output), Columns()).rows).balanced_accuracy
    assert isinstance(own, Measured)
    assert f"fake-model summ-nli  {100 * own.value:.2f}" in printed
    for ending, start in (("md", "## Systems by data sets"), ("csv", "table,system,"), ("json", "{")):
        assert Path(f"results/comparison.{ending}").read_text().startswith(start)

    # Another paradigm is one cell more; the finished one is neither asked nor written again.
    before = cells()
    both = experiment('[[grid]]\nparadigm = ["summ-nli", "vanilla"]')
    assert [line.values[1] for line in list_cells(both).tables[0].lines] == ["finished", "new"]
    assert run(both).failed == 0
    assert num_requests() == 10
    assert before.items() < cells().items()

    # Other labels are another input, even where the file's footer stays the same; and so is another option.
    make_input(PAIRS[:10], id=range(10), label=LABELS[::-1])
    run(experiment('[[grid]]\nparadigm = "summ-nli"\nthreshold = [0.5, 0.3]'))
    assert num_requests() == 20
    assert before.items() < cells().items() and len(cells()) == 4


def num_starts() -> int:
    """Engines that were started so far, by the logs of the runs that they were started for."""
    logs = Path("results").rglob("log.jsonl")
    return sum(event.event == "engine_ready" for log in logs for event in read_log(log.parent))


def test_cells_that_can_use_one_engine_share_it_and_score_as_they_would_alone(
    cli: CommandLine, make_input: Any, experiment: WriteExperiment
) -> None:
    make_input(PAIRS[:10], id=range(10), label=LABELS)
    make_input(PAIRS[10:16], "more.parquet", id=range(6), label=LABELS[:6])
    grid = '[[grid]]\nparadigm = ["summ-nli", "sent-nli"]\nmax-model-len = [5000, 6000]'
    narrowed = experiment(grid, data=["in.parquet", "more.parquet"])
    assert run(narrowed).failed == 0
    assert num_starts() == 2

    for paradigm in ("summ-nli", "sent-nli"):
        options = {"engine": "fake", "model": str(cli.model), "paradigm": paradigm}
        anyio.run(pipeline.run, make_config(("in.parquet",), f"{paradigm}.parquet", options))
        assert [verdicts(cell) for cell in cells(paradigm)] == [verdicts(Path(f"{paradigm}.parquet"))] * 2
    counted = [read_description(pq.read_schema(cell).metadata)["throughput"] for cell in cells()]
    assert [each["rows"] for each in counted] == [10] * 4


def test_what_ends_the_process_ends_one_cell(cli: CommandLine, make_input: Any, experiment: WriteExperiment) -> None:
    make_input(PAIRS[:10], label=LABELS)
    os.mkfifo("pipe")
    log = {"engine-arg": {"log": str(Path("pipe").absolute())}}
    experiment('[[grid]]\nparadigm = ["summ-nli", "vanilla"]', **log)
    started = subprocess.Popen(
        cli.args("compare", "experiment.toml"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert started.stderr is not None
    first = next(line for line in started.stderr if line.startswith("[1/2]"))
    # It waits for a reader of the pipe, so it is not done yet.
    (child,) = psutil.Process(started.pid).children()
    child.kill()
    reader = os.open("pipe", os.O_RDWR | os.O_NONBLOCK)
    shown, said = started.communicate(timeout=120)
    os.close(reader)

    assert started.returncode == 1, said
    assert "1 of 2 runs failed" in said and "ended by SIGKILL" in shown
    (finished,) = cells()
    assert str(finished) not in first


def test_only_narrows_the_grid_and_the_data(make_input: Any, experiment: WriteExperiment) -> None:
    for name in ("a", "b"):
        make_input(PAIRS[:4], f"{name}.parquet", label=[1, 0] * 2)
    grid = '[[grid]]\nparadigm = ["summ-nli", "sent-nli"]\nthreshold = [0.5, 0.3]'
    experiment(grid, data=["a.parquet", "b.parquet"])

    def left(*only: str) -> list[str]:
        lines = list_cells(read_experiment(Path("experiment.toml"), only=only)).tables[0].lines
        return [f"{line.dataset} {line.system.removeprefix('fake-model ')}" for line in lines]

    assert len(left()) == 8
    assert left("paradigm=summ-nli", "threshold=0.5", "data=b") == ["b summ-nli"]
    assert left("paradigm=summ-nli", "paradigm=sent-nli", "threshold=0.3", "data=a") == [
        "a summ-nli threshold 0.3",
        "a sent-nli threshold 0.3",
    ]
    assert len(left("label_mode=probability")) == 8  # a default
    for word, message in {
        "paradigm=sum-nli": "--only paradigm=sum-nli: there is none; there are sent-nli, summ-nli; did you mean 'summ",
        "paradigms=summ-nli": "there is no option 'paradigms' of run; did you mean 'paradigm'?",
        "data=c": "--only data=c: there is none; there are a, b",
        "summ-nli": "--only takes NAME=VALUE",
    }.items():
        with pytest.raises(UsageError, match=re.escape(message)):
            left(word)


def test_a_failed_cell_is_shown_and_loses_no_other_and_goes_on_where_it_was(
    cli: CommandLine, make_input: Any, experiment: WriteExperiment
) -> None:
    make_input(PAIRS[:10], id=range(10), label=LABELS)
    grid = f'[[grid]]\nparadigm = ["sent-nli", "summ-nli"]\nmodel = ["{cli.model}", "nowhere-7b"]'
    experiment(grid, **{"engine-arg": {"die_after": "14", "die_times": "1"}})
    done = cli("compare", "experiment.toml", "--csv", code=1)
    lines = {(line["table"], line["system"], line["column"]): line for line in csv.DictReader(io.StringIO(done.stdout))}

    assert "error: 3 of 4 runs failed" in done.stderr
    assert lines[MAIN_TITLE, "fake-model sent-nli", "in"]["absent"].startswith("failed: the engine died")
    assert 0 <= float(lines[MAIN_TITLE, "fake-model summ-nli", "in"]["value"]) <= 1
    assert lines["Failed", "nowhere-7b summ-nli", "why"]["value"].startswith("--model nowhere-7b is no folder")

    num_requests()
    (state,) = [line.values[1] for line in list_cells(experiment("")).tables[0].lines]
    assert state == "begun"
    assert run(experiment("")).failed == 0
    assert 0 < num_requests() < 20
    cli.run("in.parquet", "whole.parquet")
    (resumed,) = cells("sent-nli")
    assert verdicts(resumed) == verdicts(Path("whole.parquet"))


def test_the_paradigm_goes_by_a_column(cli: CommandLine, make_input: Any, experiment: WriteExperiment) -> None:
    source = ["cnndm", "xsum", "cnndm", "cnndm", None] * 2
    make_input(PAIRS[:10], label=LABELS, source=source)
    grid = '[[grid]]\nparadigm-by = { source = { cnndm = "sbs", "*" = "vanilla" } }'
    done = run(experiment(grid, limit=8))

    (line,) = done.tables[0].lines
    assert line.system == "fake-model sbs (cnndm) / vanilla (others)" and isinstance(line.values[0], Spread)
    assert line.values[0].runs == 1
    chosen = {"sbs": [row for row in range(8) if source[row] == "cnndm"]}
    chosen["vanilla"] = [row for row in range(8) if row not in chosen["sbs"]]
    for paradigm, numbers in chosen.items():
        cli.run("in.parquet", f"{paradigm}.parquet", "--paradigm", paradigm)
        whole = rows(Path(f"{paradigm}.parquet"))
        (cell,) = cells(paradigm)
        assert [row["id"] for row in rows(cell)] == [f"row {number}" for number in numbers]
        assert [row["batchfact_score"] for row in rows(cell)] == [whole[row]["batchfact_score"] for row in numbers]

    # More rows of the same data: only they are asked, of two sentences by sbs and at once by vanilla.
    num_requests()
    run(experiment(grid))
    assert num_requests() == 2 + 1
    assert len(cells()) == 2


def test_stopped_by_a_signal_it_ends_in_order_and_the_same_command_goes_on(
    cli: CommandLine, make_input: Any, experiment: WriteExperiment
) -> None:
    make_input(PAIRS[:10], label=LABELS)
    os.mkfifo("pipe")
    experiment("", **{"engine-arg": {"log": str(Path("pipe").absolute()), "latency_s": "3600"}})
    started = subprocess.Popen(cli.args("compare", "experiment.toml"), stderr=subprocess.PIPE, text=True)
    with Path("pipe").open() as log:
        assert log.readline()  # it waits for the first request
        started.send_signal(signal.SIGTERM)
        _, said = started.communicate(timeout=120)

    assert started.returncode == 130, said
    assert "error: stopped: finished rows are kept; the same command goes on" in said
    (state,) = [line.values[1] for line in list_cells(experiment("")).tables[0].lines]
    assert state == "begun"
    assert run(experiment("")).failed == 0


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({}, {}, "in.parquet has no label column 'label', so it cannot be measured; name it with label-column"),
        ({"label": [None] * 4}, {}, "none of the 4 rows has a label or a human score"),
        ({"label": [1, 0, 1, 2]}, {}, "a label is 1, 0, consistent or inconsistent, got 2"),
        ({"label": [1, 0] * 2, "id": [1, 2, 3, 3]}, {}, "has id '3' more than once"),
        ({"gold": [1, 0] * 2}, {"label-column": "golt"}, "no label column 'golt'; did you mean 'gold'?"),
        ({"label": [1, 0] * 2}, {"data": ["in.parquet", "in.parquet"]}, "are both named 'in'; name them"),
        ({"label": [1, 0] * 2}, {"data": {"a": "i.parquet"}}, "does not exist; did you mean 'in.parquet'?"),
    ],
)
def test_data_that_cannot_be_measured_are_refused_before_any_run(
    make_input: Any,
    experiment: WriteExperiment,
    columns: dict[str, Any],
    settings: dict[str, Any],
    message: str,
) -> None:
    make_input(PAIRS[:4], **columns)
    with pytest.raises(UsageError, match=re.escape(message)):
        list_cells(experiment("", **settings))


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ('[[grid]]\ndocument-column = "text"', "has no column 'text'"),
        ('[[grid]]\nparadigm-by = { sorce = { a = "sbs" } }', "no column 'sorce'; did you mean 'source'?"),
        ('[[grid]]\nparadigm-by = { source = { a = "sbs" } }', "has rows with 'b', for which there is no paradigm"),
    ],
)
def test_a_grid_that_does_not_fit_the_data_is_refused_before_any_run(
    make_input: Any,
    experiment: WriteExperiment,
    grid: str,
    message: str,
) -> None:
    make_input(PAIRS[:4], label=[1, 0] * 2, source=["a", "b"] * 2)
    with pytest.raises(UsageError, match=re.escape(message)):
        list_cells(experiment(grid))
