"""The papers' figures as PNG and SVG files.

Runs and their evaluation flow in; files flow out. Colours are told apart by colour-blind people too.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.metrics import roc_curve

from batchfact.errors import UsageError
from batchfact.evaluate.evaluation import Evaluation, headline
from batchfact.evaluate.metrics import CONSISTENT, INCONSISTENT, NONE, Absent, Measured, Metric
from batchfact.evaluate.runs import Run
from batchfact.evaluate.tables import shot_series

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5f6b7a")
FORMATS = ("png", "svg")
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": f"cycler('linestyle', ['-', '--']) * cycler('color', {list(COLOURS)})",
    "font.size": 9,
    "svg.hashsalt": "batchfact",  # the same evaluation gives the same file
}


def write_plots(folder: Path, runs: Sequence[Run], evaluation: Evaluation) -> list[Path]:
    """Write every plot that the evaluation has values for, as PNG and SVG.

    Returns: the files.
    Raises: UsageError if the folder cannot be written to.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with mpl.rc_context(STYLE):
            for name, figure in _figures(runs, evaluation):
                for kind in FORMATS:
                    path = folder / f"{name}.{kind}"
                    metadata = {"Date": None} if kind == "svg" else None
                    figure.savefig(path, dpi=150, metadata=metadata)
                    written.append(path)
    except OSError as error:
        raise UsageError(f"--plots {folder} cannot be written: {error}") from error
    return written


def _figures(runs: Sequence[Run], evaluation: Evaluation) -> list[tuple[str, Figure]]:
    made = [
        *zip(_score_names(runs), map(scores, runs), strict=True),
        ("roc", roc(runs)),
        ("reliability", reliability(evaluation)),
        *((f"length-of-{text}", lengths(evaluation, text)) for text in ("summary", "document")),
        ("error-types", error_types(evaluation)),
        ("shots", shots(evaluation)),
    ]
    return [(name, figure) for name, figure in made if figure is not None]


def _score_names(runs: Sequence[Run]) -> list[str]:
    """A name for each run; where files of one name in several folders give the same, the later ones have a number."""
    names: list[str] = []
    seen: Counter[str] = Counter()
    for run in runs:
        name = f"scores-{_file_name(f'{run.system} {Path(run.file).stem}')}"
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return names


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-")


def _axes(title: str, across: str, up: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel=across, ylabel=up)
    return figure, axes


def scores(run: Run) -> Figure | None:
    """How scores of both gold labels are spread."""
    rows = run.rows
    known = ~np.isnan(rows.scores)
    if not known.any():
        return None
    figure, axes = _axes(f"Scores: {run.system}", "score", "rows")
    bins = np.linspace(min(0.0, rows.scores[known].min()), max(1.0, rows.scores[known].max()), 21)
    for label, name in ((CONSISTENT, "consistent"), (INCONSISTENT, "inconsistent"), (NONE, "no gold label")):
        chosen = known & (rows.gold == label)
        if chosen.any():
            axes.hist(rows.scores[chosen], bins=bins.tolist(), alpha=0.6, label=name)
    axes.legend()
    return figure


def roc(runs: Sequence[Run]) -> Figure | None:
    """ROC curves, one for each run and data set that has both labels and scores."""
    figure, axes = _axes("ROC", "false positive rate (inconsistent called consistent)", "true positive rate")
    count = 0
    for run in runs:
        for dataset, places in run.rows.by_dataset().items():
            rows = run.rows.select(places)
            chosen = (rows.gold != NONE) & ~np.isnan(rows.scores)
            if run.has_upper_bounds or len(set(rows.gold[chosen].tolist())) < 2:
                continue
            false_rate, true_rate, _ = roc_curve(rows.gold[chosen], rows.scores[chosen])
            axes.plot(false_rate, true_rate, label=f"{run.system}, {dataset}")
            count += 1
    if not count:
        return None
    axes.plot([0, 1], [0, 1], color="0.7", linestyle=":")
    figure.legend(loc="outside lower center", fontsize="small")
    return figure


def reliability(evaluation: Evaluation) -> Figure | None:
    """Mean score against the share of consistent rows; a point's size tells its rows."""
    figure, axes = _axes("Reliability", "mean score of a bin", "share of consistent rows")
    count = 0
    for cell in evaluation.cells:
        bins = cell.measures.reliability
        if bins:
            count += 1
            across, up = [each.mean_score for each in bins], [each.consistent for each in bins]
            (line,) = axes.plot(across, up, label=f"{cell.system}, {cell.dataset}")
            total = sum(each.rows for each in bins)
            sizes = [10 + 190 * each.rows / total for each in bins]
            axes.scatter(across, up, s=sizes, color=line.get_color())
    if not count:
        return None
    axes.plot([0, 1], [0, 1], color="0.7", linestyle=":")
    figure.legend(loc="outside lower center", fontsize="small")
    return figure


def lengths(evaluation: Evaluation, text: str) -> Figure | None:
    """Accuracy by length; each bin's rows stand below it (Xu 2024, Figures 2 and 3)."""
    found = [each for each in evaluation.lengths if each.text == text]
    if not found:
        return None
    figure, axes = _axes(f"Accuracy by length of the {text}", f"words of the {text}, and rows", "accuracy")
    lows = sorted({each.low for each in found})
    rows = {each.low: each for each in found}
    ticks = [_tick(rows[low].low, rows[low].high, [each.rows for each in found if each.low == low]) for low in lows]
    for system, bins in itertools.groupby(found, key=lambda each: each.system):
        points = [(lows.index(each.low), _value(each.accuracy)) for each in bins]
        axes.plot([place for place, _ in points], [value for _, value in points], marker="o", label=system)
    axes.set_xticks(range(len(lows)), ticks)
    axes.set_ylim(0, 1)
    figure.legend(loc="outside lower center", fontsize="small")
    return figure


def _tick(low: int, high: int | None, rows: Sequence[int]) -> str:
    spread = f"{min(rows):,}" if min(rows) == max(rows) else f"{min(rows):,}-{max(rows):,}"
    return f"{low}-{high - 1}\n{spread}" if high else f"{low}+\n{spread}"


def error_types(evaluation: Evaluation) -> Figure | None:
    """Recall by error type (Chen 2023, Figure 2)."""
    by_system: dict[str, dict[str, float]] = defaultdict(dict)
    for each in evaluation.error_types:
        by_system[f"{each.system}, {each.dataset}"][f"{each.error_type}"] = _value(each.recall)
    if not by_system:
        return None
    names = list(dict.fromkeys(name for values in by_system.values() for name in values))
    figure, axes = _axes("Recall by error type", "recall", "")
    height = 0.8 / len(by_system)
    for place, (label, values) in enumerate(by_system.items()):
        heights = [row + place * height for row in range(len(names))]
        axes.barh(heights, [values.get(name, np.nan) for name in names], height=height, label=label)
    axes.set_yticks([row + 0.4 - height / 2 for row in range(len(names))], names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    figure.legend(loc="outside lower center", fontsize="small")
    return figure


def shots(evaluation: Evaluation) -> Figure | None:
    """Balanced accuracy by number of demonstrations (Chen 2023, Figure 3)."""
    series = shot_series(evaluation.cells)
    if not series:
        return None
    figure, axes = _axes("Demonstrations", "demonstrations in the prompt", "balanced accuracy, %")
    for (system, dataset), cells in series.items():
        spreads = [(cell.shots, cell.spread_of(headline(cell))) for cell in cells]
        points = [(number, spread) for number, spread in spreads if not isinstance(spread, Absent)]
        axes.errorbar(
            [place for place, _ in points],
            [100 * spread.mean for _, spread in points],
            yerr=[100 * (spread.deviation or 0.0) for _, spread in points],
            marker="o",
            capsize=3,
            label=f"{system}, {dataset}",
        )
    figure.legend(loc="outside lower center", fontsize="small")
    return figure


def _value(metric: Metric) -> float:
    """For drawing, where NaN leaves a gap."""
    return metric.value if isinstance(metric, Measured) else float("nan")
