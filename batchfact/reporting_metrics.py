"""What the report says where a file has gold labels: the evaluation's tables and plots, for the page.

A scored file flows in, tables and plots of the page flow out. All metrics are `batchfact.evaluate`'s; here is only what
of them the page shows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import PurePath

from msgspec.structs import replace

from batchfact.evaluate import plots, rendering, tables
from batchfact.evaluate.error_types import read_error_map
from batchfact.evaluate.evaluation import Evaluation, evaluate
from batchfact.evaluate.layout import Table as Measured
from batchfact.evaluate.reading import Columns, NothingLabelledError, read_run
from batchfact.evaluate.runs import Run, join_rows
from batchfact.report.figures import Plot, fitted_plot
from batchfact.report.page import Section, Table
from batchfact.report.svg import drawing
from batchfact.scored_file import ScoredFiles

TITLE = "Against gold labels"

_LAST_OPEN = "Scores"
"""The tables up to this one are open on the page; those after it are folded."""

_MOST_COLUMNS = 4
"""A line of more is shown as a column, which no screen cuts."""

_LEFT_OUT = ("Rows by status",)
"""What the overview shows already."""


def measured(file: ScoredFiles) -> Section:
    """Tables and plots of a file with gold labels; a sentence in their place where the run's settings were lost."""
    columns = file.columns
    if file.metadata.get("columns", {}).get("column_prefix") != columns.prefix:
        return Section(title=TITLE, note="There are no metrics: the file does not say which run it is of.")
    wanted = Columns.named(
        label=columns.label,
        rating=columns.rating,
        id=columns.id,
        dataset=columns.dataset,
        summarizer=columns.summarizer,
        error_types=columns.error_types,
    )
    found = []
    for given in file.given:
        with contextlib.suppress(NothingLabelledError):  # others of the files have labels
            found.append(read_run(given, wanted))
    # There is one system, and its settings are on the page: its model's name is enough.
    run = replace(
        found[0],
        system=PurePath(file.metadata["identity"]["model"]).name,
        rows=join_rows([each.rows for each in found]),
    )
    evaluation = evaluate([run], error_map=read_error_map())
    shown = [table for table in tables.tables(evaluation) if table.title not in _LEFT_OUT]
    num_open = 1 + next((place for place, table in enumerate(shown) if table.title == _LAST_OPEN), -1)
    return Section(
        title=TITLE,
        note="In percent. The command batchfact eval prints them too, and compares several files.",
        tables=tuple(_table(table, is_folded=place >= num_open) for place, table in enumerate(shown)),
        plots=tuple(_plots(run, evaluation)),
    )


def _table(table: Measured, *, is_folded: bool) -> Table:
    """A table of the evaluation, without the system's name and without empty columns."""
    alone = replace(table, lines=tuple(replace(line, system="") for line in table.lines))
    heads = [*rendering.keys_of(alone), *table.columns]
    rows = rendering.cells_of(alone)
    filled = [place for place in range(len(heads)) if any(row[place] for row in rows)]
    columns = tuple(heads[place] for place in filled)
    lines = tuple(tuple(row[place] for place in filled) for row in rows)
    if len(lines) == 1 and len(columns) > _MOST_COLUMNS:  # one system on many data sets
        columns, lines = ("data set", ""), tuple(zip(columns, lines[0], strict=True))
    return Table(
        title=table.title,
        columns=columns,
        rows=lines,
        note=" ".join([*rendering.reasons_of(alone), *table.notes]),
        is_folded=is_folded,
    )


def _plots(run: Run, evaluation: Evaluation) -> Iterator[Plot]:
    with drawing(plots.STYLE):
        drawn = {
            "ROC curve": plots.roc([run]),
            "Reliability": plots.reliability(evaluation),
            "Recall by error type": plots.error_types(evaluation),
            "Accuracy by length of the summary": plots.lengths(evaluation, "summary"),
            "Accuracy by length of the document": plots.lengths(evaluation, "document"),
        }
        for title, figure in drawn.items():
            if figure is not None:
                yield fitted_plot(title, figure, run.system)
