"""The options by which `eval`, `calibrate`, `compare` and `report` are told the columns of the user's, and their forms
of output: one name and one meaning for all of them. None always means: not given.
"""

from __future__ import annotations

from typing import Annotated

import typer

COLUMNS = "Columns (found by their usual names unless given)"
OUTPUT = "Output"

LabelColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Gold labels: 1 or consistent, 0 or inconsistent, or booleans (default: label).",
        rich_help_panel=COLUMNS,
    ),
]
RatingColumn = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Human scores, for correlations (default: score).", rich_help_panel=COLUMNS),
]
IdColumn = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="What rows are matched by (default: id).", rich_help_panel=COLUMNS),
]
DatasetColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Data sets (default: dataset; without it each input is one).", rich_help_panel=COLUMNS
    ),
]
SummarizerColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What wrote the summary (default: summarizer, summariser or system).",
        rich_help_panel=COLUMNS,
    ),
]
ErrorTypesColumn = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Lists of error types (default: error_types).", rich_help_panel=COLUMNS),
]

Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON.", rich_help_panel=OUTPUT)]
Csv = Annotated[bool, typer.Option("--csv", help="Print one value a line, as CSV.", rich_help_panel=OUTPUT)]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown tables.", rich_help_panel=OUTPUT)]
