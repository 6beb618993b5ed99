"""`batchfact report`: a scored file as a page to look at."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from batchfact.errors import UsageError

PAGE = "The page"
COLUMNS = "Columns (found by their usual names unless given)"


def report(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A Parquet file that run or reduce wrote.")],
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="The page (default: FILE with the ending .html).", rich_help_panel=PAGE),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write over a page that exists.", rich_help_panel=PAGE)
    ] = False,
    max_rows: Annotated[
        int,
        typer.Option(help="Most rows to list, evenly spaced; all rows are counted.", rich_help_panel=PAGE),
    ] = 10_000,
    label_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Gold labels (usually label).", rich_help_panel=COLUMNS)
    ] = None,
    summarizer_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Usually summarizer or system.", rich_help_panel=COLUMNS)
    ] = None,
    dataset_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Usually dataset.", rich_help_panel=COLUMNS)
    ] = None,
    error_types_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Lists of error types (usually error_types).", rich_help_panel=COLUMNS),
    ] = None,
    id_column: Annotated[str | None, typer.Option(metavar="NAME", help="Usually id.", rich_help_panel=COLUMNS)] = None,
    document_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="As in the run.", rich_help_panel=COLUMNS)
    ] = None,
    summary_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="As in the run.", rich_help_panel=COLUMNS)
    ] = None,
    column_prefix: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Of the verdict's columns (as in the run).", rich_help_panel=COLUMNS),
    ] = None,
) -> None:
    """Make one page of a scored file, to look at in a browser: figures, and each summary with its flagged spans."""
    if any(find_spec(name) is None for name in ("matplotlib", "scipy", "sklearn")):
        raise UsageError("batchfact report needs matplotlib, scipy and scikit-learn: pip install 'batchfact[eval]'")
    from batchfact.reporting import write_report
    from batchfact.scored_file import ColumnOptions

    options = ColumnOptions(
        column_prefix=column_prefix,
        document=document_column,
        summary=summary_column,
        label=label_column,
        summarizer=summarizer_column,
        dataset=dataset_column,
        error_types=error_types_column,
        id=id_column,
    )
    target, written = write_report(file, output, options, max_rows=max_rows, force=force)
    for warning in written.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    listed = "" if written.listed == written.rows else f", {written.listed:,} of them listed"
    print(f"{target}: {written.rows:,} rows{listed}, {written.bytes / 1e6:.1f} MB")
