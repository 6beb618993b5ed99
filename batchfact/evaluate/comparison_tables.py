"""The tables that set a run beside another run, or beside published figures.

An `Evaluation` flows in, `Table` records flow out.
"""

from __future__ import annotations

from collections.abc import Iterator

from batchfact.evaluate.evaluation import Evaluation, our_figures
from batchfact.evaluate.layout import Line, Table
from batchfact.evaluate.metrics import Measured
from batchfact.evaluate.published import Comparison


def agreements(evaluation: Evaluation) -> Table:
    return Table(
        title="Agreement of two runs",
        group="runs",
        columns=("rows", "other label", "kappa"),
        lines=tuple(
            Line(
                dataset=each.dataset, group=f"{each.first} / {each.second}", values=(each.rows, len(each.flips), kappa)
            )
            for each in evaluation.agreements
            for kappa in [each.kappa.value if isinstance(each.kappa, Measured) else each.kappa]
        ),
    )


def flips(evaluation: Evaluation) -> Table:
    """The rows that two runs label differently; the console shows the first ones only."""
    return Table(
        title="Rows with another label",
        group="id",
        columns=("gold", "first run", "second run"),
        lines=tuple(
            Line(
                dataset=each.dataset,
                group=flip.id,
                values=(flip.gold, flip.first or "unscored", flip.second or "unscored"),
            )
            for each in evaluation.agreements
            for flip in each.flips
        ),
    )


def published(evaluation: Evaluation) -> Table:
    """Comparable figures beside ours; what cannot be compared is named below."""
    lines = list(_published_lines(evaluation))
    others = [each for each in evaluation.comparisons if not each.is_comparable]
    reasons = dict.fromkeys(
        f"Not comparable: {each.figures.source}, {each.figures.dataset}, "
        f"{each.figures.metric.replace('_', ' ')} ({each.reason})."
        for each in others
    )
    remarks = dict.fromkeys(
        f"{each.figures.source}, {each.figures.dataset}: {each.remark}."
        for each in evaluation.comparisons
        if each.is_comparable and each.remark
    )
    if not lines and reasons:
        lines = [Line(system="none", values=(None, None, None))]
    return Table(
        title="Published figures",
        group="metric",
        columns=("published", "ours", "source"),
        lines=tuple(lines),
        notes=(*remarks, *reasons),
    )


def _published_lines(evaluation: Evaluation) -> Iterator[Line]:
    for each in evaluation.comparisons:
        if each.is_comparable:
            yield from _lines_of(each, evaluation)


def _lines_of(comparison: Comparison, evaluation: Evaluation) -> Iterator[Line]:
    """Our systems' figures of the metric, then the published ones."""
    figures = comparison.figures
    about = {"dataset": figures.dataset, "group": figures.metric.replace("_", " ")}
    for cell in evaluation.cells:
        ours = our_figures(cell, evaluation.error_types)
        if cell.dataset == figures.dataset and figures.metric in ours:
            yield Line(system=cell.system, values=(None, Measured(ours[figures.metric]), "here"), **about)
    for system, value in figures.values.items():
        yield Line(system=system, values=(Measured(value / 100), None, figures.source), **about)
