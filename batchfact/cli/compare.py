"""`batchfact compare`: a grid of runs on labelled data sets, as the papers' tables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from batchfact.cli import columns as shared
from batchfact.cli.evaluate import allow_one, require_packages, show_tables
from batchfact.errors import RunFailedError

EXPERIMENT = "Experiment (these go before the file)"


def compare(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG.toml", help="What is compared on what; docs/evaluation.md has its form.")
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLACE",
            help="Labelled Parquet files or folders of them, each file a data set; may be repeated.",
            rich_help_panel=EXPERIMENT,
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Only points of the grid with this value of an option, or data=NAME: one data set; may be repeated.",
            rich_help_panel=EXPERIMENT,
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Only the first rows of each data set.", rich_help_panel=EXPERIMENT)
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where runs and tables are kept (default: CONFIG-results).", rich_help_panel=EXPERIMENT
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the runs, with what is done.", rich_help_panel=EXPERIMENT)
    ] = False,
    label_column: shared.LabelColumn = None,
    rating_column: shared.RatingColumn = None,
    id_column: shared.IdColumn = None,
    json: shared.Json = False,
    csv: shared.Csv = False,
    markdown: shared.Markdown = False,
) -> None:
    """Score labelled data sets by every setting of a grid, and write the papers' tables.

    What is finished is not run again; after a stop, a failure or a change of the grid, the same command does the rest.
    The tables are also written to the results folder, as Markdown, CSV and JSON. Exit codes: 0 done, 1 a run failed, 2
    usage, 130 stopped.
    """
    require_packages()
    allow_one({"--json": json, "--csv": csv, "--markdown": markdown})
    from batchfact.compare.experiment import read_experiment
    from batchfact.comparing import list_cells, run_experiment

    experiment = read_experiment(
        config,
        data=tuple(data or ()),
        limit=limit,
        results=results,
        only=only or (),
        columns={"label-column": label_column, "rating-column": rating_column, "id-column": id_column},
    )
    done = list_cells(experiment) if dry_run else run_experiment(experiment, tell=_tell)
    if json:
        print(done.json)
    else:
        show_tables(done.tables, as_csv=csv, as_markdown=markdown)
    if done.failed:
        raise RunFailedError(
            f"{done.failed:,} of {done.trials:,} runs failed: the table named Failed says why; the others are measured"
        )


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
