"""`batchfact report`: scored files as a page to look at."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from batchfact.cli import columns as shared
from batchfact.cli.columns import COLUMNS
from batchfact.errors import UsageError

PAGE = "The page"


def report(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="What run or reduce wrote: Parquet files, folders of shards, globs or URIs; all by one method.",
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="The page (default: FILE with the ending .html; needed for several files).",
            rich_help_panel=PAGE,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write over a page that exists.", rich_help_panel=PAGE)
    ] = False,
    max_rows: Annotated[
        int,
        typer.Option(help="Most rows to list, evenly spaced; all rows are counted.", rich_help_panel=PAGE),
    ] = 10_000,
    label_column: shared.LabelColumn = None,
    rating_column: shared.RatingColumn = None,
    id_column: shared.IdColumn = None,
    dataset_column: shared.DatasetColumn = None,
    summarizer_column: shared.SummarizerColumn = None,
    error_types_column: shared.ErrorTypesColumn = None,
    document_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Documents (default: as in the run).", rich_help_panel=COLUMNS)
    ] = None,
    summary_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Summaries (default: as in the run).", rich_help_panel=COLUMNS)
    ] = None,
    column_prefix: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Of the verdict's columns (default: the run's).", rich_help_panel=COLUMNS),
    ] = None,
) -> None:
    """Make one page of scored files, to look at in a browser: figures, and each summary with its flagged spans."""
    if any(find_spec(name) is None for name in ("matplotlib", "scipy", "sklearn")):
        raise UsageError("batchfact report needs matplotlib, scipy and scikit-learn: pip install 'batchfact[eval]'")
    from batchfact.reporting import write_report
    from batchfact.scored_file import ColumnOptions

    options = ColumnOptions(
        column_prefix=column_prefix,
        document=document_column,
        summary=summary_column,
        label=label_column,
        rating=rating_column,
        summarizer=summarizer_column,
        dataset=dataset_column,
        error_types=error_types_column,
        id=id_column,
    )
    target, written = write_report(files, output, options, max_rows=max_rows, force=force)
    for warning in written.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    listed = "" if written.listed == written.rows else f", {written.listed:,} of them listed"
    print(f"{target}: {written.rows:,} rows{listed}, {written.bytes / 1e6:.1f} MB")
