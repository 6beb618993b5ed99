"""`batchfact eval` and `batchfact calibrate`: scored rows against gold labels."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from batchfact.cli import columns as shared
from batchfact.cli.columns import COLUMNS, OUTPUT
from batchfact.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from batchfact.evaluate.evaluation import Evaluation, Threshold
    from batchfact.evaluate.layout import Table
    from batchfact.evaluate.runs import Run

DATA = "Rows and labels"
THRESHOLD = "Threshold"
SHOWN_LINES = 40
WIDEST = 1000

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help="Scored Parquet files or folders of shards, one for each run; shards of one run count as one.",
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Take labels from this Parquet file, joined by id.", rich_help_panel=DATA),
]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="CONDITION",
        help="Only rows such as: split == 'test' and dataset in ('frank', 'cliff').",
        rich_help_panel=DATA,
    ),
]


def evaluate(
    files: Files,
    labels: Labels = None,
    where: Where = None,
    label_column: shared.LabelColumn = None,
    rating_column: shared.RatingColumn = None,
    id_column: shared.IdColumn = None,
    dataset_column: shared.DatasetColumn = None,
    summarizer_column: shared.SummarizerColumn = None,
    error_types_column: shared.ErrorTypesColumn = None,
    score_column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Evaluate another system's scores too; may be repeated.", rich_help_panel=COLUMNS
        ),
    ] = None,
    error_map: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="More names of error types (TOML).", rich_help_panel=DATA),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Labels from the scores by it (default: the file's own labels).", rich_help_panel=THRESHOLD),
    ] = None,
    fit_threshold: Annotated[
        Literal["cv5"] | None,
        typer.Option(help="Fit it by 5-fold cross-validation in each data set.", rich_help_panel=THRESHOLD),
    ] = None,
    threshold_from: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Fit it on another labelled, scored file.", rich_help_panel=THRESHOLD),
    ] = None,
    json: shared.Json = False,
    csv: shared.Csv = False,
    markdown: shared.Markdown = False,
    plots: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write plots there, as PNG and SVG.", rich_help_panel=OUTPUT)
    ] = None,
) -> None:
    """Compare verdicts with gold labels: the papers' metrics, breakdowns and tables.

    Files of one system on the same rows are repeated runs; two runs are also compared row by row.
    """
    require_packages()
    from batchfact.evaluate import evaluation as evaluating
    from batchfact.evaluate.error_types import read_error_map
    from batchfact.evaluate.published import published_figures
    from batchfact.evaluate.reading import Columns, read_runs
    from batchfact.evaluate.runs import join_shards

    allow_one({"--json": json, "--csv": csv, "--markdown": markdown})
    allow_one(
        {"--threshold": threshold is not None, "--fit-threshold": fit_threshold, "--threshold-from": threshold_from}
    )
    # Another system's scores may lie anywhere.
    if threshold is not None and not (isfinite(threshold) if score_column else 0 < threshold < 1):
        raise UsageError(f"--threshold must lie between 0 and 1, got {threshold}")
    columns = Columns.named(
        label=label_column,
        rating=rating_column,
        id=id_column,
        dataset=dataset_column,
        summarizer=summarizer_column,
        error_types=error_types_column,
    )
    others = score_column or []
    types = read_error_map(error_map)
    rule: Threshold = fit_threshold or ("own" if threshold is None else threshold)
    if threshold_from:
        fit_on = read_runs(threshold_from, columns, score_columns=others, labels=labels)
        rule = {run.score_column: _fitted_threshold(run) for run in fit_on}
    read = [read_runs(file, columns, score_columns=others, labels=labels, where=where) for file in files]
    runs = join_shards([run for each in read for run in each])
    if isinstance(rule, dict) and (unknown := [run for run in runs if run.score_column not in rule]):
        raise UsageError(f"--threshold-from {threshold_from} has no verdicts of batchfact, but {unknown[0].file} has")
    found = evaluating.evaluate(runs, error_map=types, figures=published_figures(), threshold=rule)
    written: list[Path] = []
    if plots:
        from batchfact.evaluate.plots import write_plots

        written = write_plots(plots, runs, found)
    _show(found, as_json=json, as_csv=csv, as_markdown=markdown)
    for path in written:
        print(f"wrote {path}", file=sys.stderr)


def calibrate(
    files: Files,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the calibration goes (TOML).")],
    labels: Labels = None,
    where: Where = None,
    label_column: shared.LabelColumn = None,
    id_column: shared.IdColumn = None,
    dataset_column: shared.DatasetColumn = None,
) -> None:
    """Fit temperature and threshold on labelled rows, for --calibration of run and reduce."""
    require_packages()
    from rich.console import Console

    from batchfact.calibration import write_calibration
    from batchfact.evaluate.calibrating import fit
    from batchfact.evaluate.reading import Columns, read_run
    from batchfact.evaluate.rendering import shown
    from batchfact.output_files import refuse_overwriting

    refuse_overwriting(output, map(Path, [*files, *([labels] if labels else [])]))
    columns = Columns.named(label=label_column, id=id_column, dataset=dataset_column)
    runs = [read_run(file, columns, labels=labels, where=where) for file in files]
    made, effect = fit(runs)
    write_calibration(output, made)
    table = _plain_table(str(output))
    table.add_row("rows", f"{effect.rows:,}")
    table.add_row("temperature", f"{made.temperature:.4g}")
    table.add_row("weight of ln(findings)", f"{made.count_weight:.4g}")
    table.add_row("bias", f"{made.bias:.4g}")
    table.add_row("threshold", f"{made.threshold:.4g}")
    for name, before, after in (
        ("balanced accuracy", effect.balanced_accuracy_before, effect.balanced_accuracy_after),
        ("calibration error", effect.calibration_error_before, effect.calibration_error_after),
    ):
        table.add_row(f"{name}, raw at 0.5 / calibrated", f"{shown(before)} / {shown(after)}")
    Console().print(table)
    print("These figures are of the rows it was fitted on; measure it on others.", file=sys.stderr)


def _fitted_threshold(run: Run) -> float:
    """Raises: UsageError where the rows do not tell."""
    from batchfact.evaluate.evaluation import refuse_upper_bounds
    from batchfact.evaluate.metrics import Absent
    from batchfact.evaluate.thresholds import best_threshold

    refuse_upper_bounds([run])
    rows = run.rows
    found = best_threshold([(rows.gold[places], rows.scores[places]) for places in rows.by_dataset().values()])
    if isinstance(found, Absent):
        raise UsageError(f"--threshold-from {run.file}: {found.reason}")
    return found


def _show(found: Evaluation, *, as_json: bool, as_csv: bool, as_markdown: bool) -> None:
    from batchfact.evaluate.rendering import as_json as json_of
    from batchfact.evaluate.tables import tables

    for note in found.notes:
        print(f"note: {note}", file=sys.stderr)
    if as_json:
        print(json_of(found))
    else:
        show_tables(tables(found), as_csv=as_csv, as_markdown=as_markdown)


def show_tables(made: Sequence[Table], *, as_csv: bool, as_markdown: bool) -> None:
    """Print tables, for the console unless told otherwise."""
    from rich.console import Console
    from rich.text import Text

    from batchfact.evaluate.rendering import markdown, tidy_csv

    if as_csv:
        print(tidy_csv(made), end="")
    elif as_markdown:
        print(markdown(made), end="")
    else:
        console = Console()
        for table in made:
            # A line that is too long for the terminal is better wrapped by it than cut.
            rich = rich_table(table)
            needed = console.measure(rich, options=console.options.update(width=WIDEST)).maximum
            Console(width=max(console.width, needed)).print(rich)
            for note in _below(table):
                console.print(Text(note, style="dim"))
            console.print()


def rich_table(table: Table) -> RichTable:
    """A table for the console; of a very long one the first lines."""
    from rich.table import Table as RichTable
    from rich.text import Text

    from batchfact.evaluate.rendering import cells_of, keys_of

    made = RichTable(title=table.title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in keys_of(table):
        made.add_column(name, no_wrap=True)
    for name in table.columns:
        made.add_column(name, justify="right", no_wrap=True)
    for line in cells_of(table)[:SHOWN_LINES]:
        made.add_row(*map(Text, line))
    return made


def _below(table: Table) -> tuple[str, ...]:
    from batchfact.evaluate.rendering import reasons_of

    left_out = len(table.lines) - SHOWN_LINES
    more = (f"... and {left_out:,} more; --markdown, --csv and --json have all.",) if left_out > 0 else ()
    return (*more, *reasons_of(table), *table.notes)


def _plain_table(title: str) -> RichTable:
    from rich.table import Table as RichTable

    table = RichTable(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    return table


def allow_one(options: dict[str, object]) -> None:
    """Raises: UsageError where several options are given that exclude each other."""
    given = [name for name, value in options.items() if value]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other")


def require_packages() -> None:
    """Raises: UsageError where the extra is not installed."""
    from importlib.util import find_spec

    missing = [name for name in ("sklearn", "scipy", "matplotlib") if find_spec(name) is None]
    if missing:
        raise UsageError(f"this command needs {', '.join(missing)}: pip install 'batchfact[eval]'")
