"""`batchfact merge`: the output of a job array, from its shards' journals."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from batchfact.cli import options as shared
from batchfact.errors import UsageError


def merge(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="JOURNAL... INPUT... OUTPUT",
            help="The shards' journals, or the folder they lie in; the input they were scored from; the output.",
        ),
    ],
    threshold: shared.Threshold = None,
    aggregation: shared.Aggregation = None,
    min_label_mass: shared.MinLabelMass = None,
    calibration: shared.Calibration = None,
    column_prefix: shared.ColumnPrefix = None,
    keep_columns: shared.KeepColumns = None,
    drop_document: shared.DropDocument = None,
) -> None:
    """Write the output of `run --shard` from all shards' journals, in the input's order; no model is needed.

    Journals of different runs, and shards that are missing, there twice or unfinished, are refused. What is not given
    stays as the shards had it.
    """
    from rich.console import Console

    from batchfact.cli.display import totals_table
    from batchfact.merging import merge_journals

    if len(paths) < 3:
        raise UsageError("merge takes at least a journal, an input and an output")
    options = {
        "threshold": threshold,
        "aggregation": aggregation,
        "min-label-mass": min_label_mass,
        "calibration": calibration,
        "column-prefix": column_prefix,
        "keep-columns": shared.split_words(keep_columns),
        "drop-document": drop_document,
    }
    totals = merge_journals(
        paths[:-1], paths[-1], options=options, warn=lambda warning: print(f"warning: {warning}", file=sys.stderr)
    )
    Console().print(totals_table(paths[-1], totals))
