"""An evaluation as tables, one layout for the console, Markdown and CSV alike.

An `Evaluation` flows in, `Table` records flow out; how they look is decided by who shows them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from batchfact.evaluate.comparison_tables import agreements, flips, published
from batchfact.evaluate.evaluation import Cell, Evaluation, RunMeasures, headline
from batchfact.evaluate.layout import Line, Table, Value
from batchfact.evaluate.metrics import Absent, Measured, Metric

LABELS_NOTE = (
    "An unscored row counts as wrong, but in BAcc scored, which is over the scored rows. Brackets hold 95 % bootstrap "
    "intervals."
)
POSITIVE_NOTE = "Positive means inconsistent. F1, precision and recall count an unscored row as wrong."
RECALL_NOTE = (
    "The share of rows with such an error that are called inconsistent; for none, of rows without error that are "
    "called consistent."
)
POOLED_NOTE = "Unscored rows count as wrong. Repeated runs are joined: a row counts once for each."


def tables(evaluation: Evaluation) -> tuple[Table, ...]:
    """All tables that have lines."""
    made = (
        _overview(evaluation),
        _labels(evaluation.cells),
        _inconsistent(evaluation.cells),
        _scores(evaluation.cells),
        _repeats(evaluation.cells),
        _coverage(evaluation.cells),
        _summarizers(evaluation),
        _error_types(evaluation),
        _lengths(evaluation),
        _shots(evaluation.cells),
        agreements(evaluation),
        flips(evaluation),
        published(evaluation),
    )
    return tuple(table for table in made if table.lines)


def _overview(evaluation: Evaluation) -> Table:
    """Systems by data sets, as in Xu 2024, Table 2, where there are several of either."""
    datasets = list(dict.fromkeys(cell.dataset for cell in evaluation.cells))
    averages = {average.system: average.value for average in evaluation.averages}
    by_system: dict[str, dict[str, Value]] = defaultdict(dict)
    for cell in evaluation.cells:
        by_system[cell.system][cell.dataset] = _headline_value(cell)
    kinds = {cell.dataset: headline(cell) for cell in evaluation.cells}
    columns = [f"{name} (Pearson)" if kinds[name] == "pearson" else name for name in datasets]
    lines = [
        Line(system=system, values=(*(values.get(name) for name in datasets), averages.get(system)))
        for system, values in by_system.items()
    ]
    return Table(
        title="Balanced accuracy, or Pearson's correlation where there are only ratings",
        columns=(*columns, "macro-average"),
        lines=tuple(lines) if len(datasets) > 1 else (),
    )


def _headline_value(cell: Cell) -> Value:
    if len(cell.runs) > 1:
        return cell.spread_of(headline(cell))
    value: Metric = getattr(cell.measures, headline(cell))
    return value


def _labels(cells: Sequence[Cell]) -> Table:
    lines = [
        _line(
            cell,
            _repeat(cell, run),
            run.measures.labelled,
            Measured(run.measures.scored / run.measures.rows),
            run.measures.balanced_accuracy,
            run.measures.balanced_accuracy_scored,
            run.problem or ", ".join(f"{threshold:.3g}" for threshold in run.thresholds) or "the file's own",
        )
        for cell in cells
        for run in cell.runs
        if run.measures.labelled
    ]
    columns = ("rows", "scored", "BAcc", "BAcc scored", "threshold")
    return Table(title="Labels", group="run", columns=columns, lines=tuple(lines), notes=(LABELS_NOTE,))


def _inconsistent(cells: Sequence[Cell]) -> Table:
    lines = []
    for cell in cells:
        for run in cell.runs:
            counts = run.measures.confusion
            numbers = (
                counts.true_positives,
                counts.false_positives,
                counts.true_negatives,
                counts.false_negatives,
                counts.unscored_positives + counts.unscored_negatives,
            )
            lines.append(
                _line(
                    cell,
                    _repeat(cell, run),
                    run.measures.f1,
                    run.measures.precision,
                    run.measures.recall,
                    *(numbers if run.problem is None else [run.problem] * len(numbers)),
                )
            )
    columns = ("F1", "precision", "recall", "TP", "FP", "TN", "FN", "unscored")
    return Table(
        title="The inconsistent class", group="run", columns=columns, lines=tuple(lines), notes=(POSITIVE_NOTE,)
    )


def _repeat(cell: Cell, run: RunMeasures) -> str:
    """What tells a run from its repeats; nothing where it has none."""
    return run.repeat if len(cell.runs) > 1 else ""


def _scores(cells: Sequence[Cell]) -> Table:
    lines = [
        _line(
            cell,
            _repeat(cell, run),
            run.measures.rows,
            run.measures.roc_auc,
            run.measures.pearson,
            run.measures.spearman,
            run.measures.calibration_error,
        )
        for cell in cells
        for run in cell.runs
    ]
    columns = ("rows", "ROC-AUC", "Pearson", "Spearman", "ECE")
    return Table(title="Scores", group="run", columns=columns, lines=tuple(lines), notes=("Over rows with a score.",))


def _repeats(cells: Sequence[Cell]) -> Table:
    names = ("balanced_accuracy", "f1", "roc_auc", "pearson")
    repeated = [cell for cell in cells if len(cell.runs) > 1]
    return Table(
        title="Repeated runs: mean and standard deviation",
        columns=("runs", "BAcc", "F1", "ROC-AUC", "Pearson"),
        lines=tuple(_line(cell, "", len(cell.runs), *map(cell.spread_of, names)) for cell in repeated),
        notes=("The deviation is that of a sample (n - 1).",),
    )


def _coverage(cells: Sequence[Cell]) -> Table:
    statuses = sorted({status for cell in cells for run in cell.runs for status in run.measures.statuses})
    lines = [
        _line(
            cell,
            _repeat(cell, run),
            run.measures.rows,
            *(run.measures.statuses.get(status, 0) for status in statuses),
        )
        for cell in cells
        for run in cell.runs
    ]
    return Table(title="Rows by status", group="run", columns=("rows", *statuses), lines=tuple(lines))


def _summarizers(evaluation: Evaluation) -> Table:
    return Table(
        title="By summariser",
        group="summariser",
        columns=("rows", "scored", "called", "are", "BAcc", "accuracy"),
        lines=tuple(
            Line(
                system=each.system,
                dataset=each.dataset,
                group=each.summarizer,
                values=(
                    each.rows,
                    each.scored,
                    Absent("no row is scored") if each.called is None else Measured(each.called),
                    Measured(each.consistent),
                    each.balanced_accuracy,
                    each.accuracy,
                ),
            )
            for each in evaluation.summarizers
        ),
        notes=("Called and are: the shares called consistent, of the scored rows, and labelled so.", POOLED_NOTE),
    )


def _error_types(evaluation: Evaluation) -> Table:
    return Table(
        title="Recall by error type",
        group="error type",
        columns=("rows", "recall"),
        lines=tuple(
            Line(system=each.system, dataset=each.dataset, group=each.error_type, values=(each.rows, each.recall))
            for each in evaluation.error_types
        ),
        notes=(RECALL_NOTE, POOLED_NOTE),
    )


def _lengths(evaluation: Evaluation) -> Table:
    return Table(
        title="By length in words, over all data sets",
        group="words",
        columns=("rows", "accuracy", "BAcc"),
        lines=tuple(
            Line(
                system=each.system,
                group=f"{each.text} {each.low} to {each.high - 1}" if each.high else f"{each.text} {each.low} or more",
                values=(each.rows, each.accuracy, each.balanced_accuracy),
            )
            for each in evaluation.lengths
        ),
        notes=(POOLED_NOTE,),
    )


def shot_series(cells: Iterable[Cell]) -> dict[tuple[str, str], list[Cell]]:
    """The cells of systems that differ in their number of demonstrations alone, in its order."""
    found: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        found[cell.base_system, cell.dataset].append(cell)
    return {key: sorted(same, key=lambda cell: cell.shots) for key, same in found.items() if len(same) > 1}


def _shots(cells: Sequence[Cell]) -> Table:
    return Table(
        title="By number of demonstrations",
        group="shots",
        columns=("runs", "BAcc"),
        lines=tuple(
            Line(system=system, dataset=dataset, group=str(cell.shots), values=(len(cell.runs), _headline_value(cell)))
            for (system, dataset), same in shot_series(cells).items()
            for cell in same
        ),
    )


def _line(cell: Cell, group: str, *values: Value) -> Line:
    return Line(system=cell.system, dataset=cell.dataset, group=group, values=values)
