"""`batchfact reduce`: fold a kept journal again, without a model."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from batchfact.cli import options as shared


def reduce(
    output: Annotated[str, typer.Argument(help="The output of an earlier run, whose journal is beside it.")],
    to: Annotated[str | None, typer.Option("--to", "-o", help="Write there instead of over OUTPUT.")] = None,
    moved_input: Annotated[
        list[str] | None, typer.Option("--input", help="Where the input is now (default: where it was).")
    ] = None,
    journal: Annotated[str | None, typer.Option(help="The journal's folder (default: OUTPUT.journal).")] = None,
    threshold: shared.Threshold = None,
    aggregation: shared.Aggregation = None,
    min_label_mass: shared.MinLabelMass = None,
    calibration: shared.Calibration = None,
    column_prefix: shared.ColumnPrefix = None,
    keep_columns: shared.KeepColumns = None,
    drop_document: shared.DropDocument = None,
) -> None:
    """Apply another threshold, aggregation, calibration or choice of columns to finished work; no model is needed.

    What is not given stays as it was last.
    """
    from rich.console import Console

    from batchfact.cli.display import totals_table
    from batchfact.reducing import reduce_journal

    options = {
        "threshold": threshold,
        "aggregation": aggregation,
        "min-label-mass": min_label_mass,
        "calibration": calibration,
        "column-prefix": column_prefix,
        "keep-columns": shared.split_words(keep_columns),
        "drop-document": drop_document,
    }
    totals = reduce_journal(
        output,
        to=to,
        inputs=tuple(moved_input or ()),
        journal=journal,
        options=options,
        warn=lambda warning: print(f"warning: {warning}", file=sys.stderr),
    )
    Console().print(totals_table(to or output, totals))
