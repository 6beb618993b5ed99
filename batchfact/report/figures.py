"""The report's own figures: what became of the rows, how scores lie, and which summarisers do well.

Counts flow in; SVG documents by matplotlib flow out, with the words that stand for them where nobody sees them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from msgspec import Struct

from batchfact.report.svg import draw, drawing
from batchfact.report.tally import SCORE_BINS, Ranked

WIDTH_INCHES = 5.2
MAX_RANKED = 16
"""Summarisers in the figure; the table beside it has all."""

_MAX_NAME_CHARS = 28
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff]")
_COLOUR = {"consistent": "#1d6fb8", "inconsistent": "#c2410c"}
_OTHER = "#8a6d1a"
_THOUSANDS = StrMethodFormatter("{x:,.0f}")


class Plot(Struct, frozen=True, kw_only=True):
    """A figure of the page: `svg` is a document as matplotlib writes it, `description` says in words what it shows."""

    title: str
    svg: str
    description: str
    note: str = ""


@drawing()
def verdict_plot(labels: Mapping[str, int], statuses: Mapping[str, int]) -> Plot:
    """Rows by label; those without one by their status."""
    unscored = {status.replace("_", " "): rows for status, rows in statuses.items() if status != "ok"}
    counts = {name: labels.get(name, 0) for name in ("consistent", "inconsistent")} | dict(
        sorted(unscored.items(), key=lambda item: -item[1])
    )
    total = max(sum(counts.values()), 1)
    figure, axes = _axes(0.7 + 0.34 * len(counts))
    bars = axes.barh(list(counts), list(counts.values()), color=[_COLOUR.get(name, _OTHER) for name in counts])
    axes.bar_label(bars, [f"{rows:,} ({rows / total:.1%})" for rows in counts.values()], padding=4)
    axes.invert_yaxis()
    axes.set_xlabel("rows")
    axes.margins(x=0.22)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(_THOUSANDS)
    words = ", ".join(f"{name} {rows:,}" for name, rows in counts.items())
    return Plot(title="Verdicts", svg=draw(figure), description=f"Rows by verdict: {words}.")


@drawing()
def score_plot(scores: Mapping[str, Sequence[int]], threshold: float | None) -> Plot:
    """The histogram of scores, stacked by gold labels where there are some."""
    has_gold = any(name in _COLOUR for name in scores)
    names = [name for name in ("inconsistent", "consistent", "no gold label") if name in scores]
    figure, axes = _axes(2.6)
    edges = [place / SCORE_BINS for place in range(SCORE_BINS)]
    floor = [0] * SCORE_BINS
    for name in names:
        colour = _COLOUR.get(name, "#5f6b7a" if has_gold else "#5b4fc7")
        label = f"gold: {name}" if name in _COLOUR else name
        axes.bar(
            edges,
            scores[name],
            1 / SCORE_BINS,
            bottom=floor,
            align="edge",
            color=colour,
            label=label,
            edgecolor="#ffffff",
            linewidth=0.6,
        )
        floor = [below + rows for below, rows in zip(floor, scores[name], strict=True)]
    if threshold is not None:
        axes.axvline(threshold, color="#000000", linewidth=1, linestyle="--", label=f"threshold {threshold:.3g}")
    axes.set_xlim(0, 1)
    axes.set_xlabel("score, P(consistent)")
    axes.set_ylabel("rows")
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(_THOUSANDS)
    if has_gold or threshold is not None:
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.18), ncols=4, fontsize=8)
    low = sum(floor[: SCORE_BINS // 2])
    total = sum(floor)
    description = f"Histogram of {total:,} scores from 0 to 1: {low:,} below one half, {total - low:,} from there on."
    return Plot(title="Scores", svg=draw(figure), description=description)


@drawing()
def ranking_plot(ranking: Sequence[Ranked]) -> Plot:
    """The share of consistent summaries of each summariser, with its interval."""
    shown = [(_short(each.name), each.share) for each in ranking if each.share is not None][:MAX_RANKED]
    figure, axes = _axes(0.8 + 0.3 * len(shown))
    for place, (_, share) in enumerate(shown):
        axes.plot([share.low, share.high], [place, place], color="#5f6b7a", linewidth=2, solid_capstyle="round")
        axes.plot([share.value], [place], "o", color="#1d6fb8", markersize=6, clip_on=False)
    axes.set_yticks(range(len(shown)), [name for name, _ in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of scored summaries that are consistent")
    axes.grid(visible=True)
    axes.set_axisbelow(True)
    words = "; ".join(f"{name} {share.value:.0%}" for name, share in shown[:5])
    more = f"The first {MAX_RANKED} of {len(ranking)}; the table has all." if len(ranking) > len(shown) else ""
    return Plot(title="Summarisers", svg=draw(figure), description=f"From the best: {words}.", note=more)


def fitted_plot(title: str, figure: Figure, system: str) -> Plot:
    """A figure of an evaluation of one system, made to fit the page.

    The title stands above it on the page, and one legend below its axes, where it hides nothing; the system is the same
    all over the page. It must be made, and made to fit, inside `svg.drawing`.
    """
    (axes,) = figure.axes
    axes.set_title("")
    for legend in figure.legends:
        legend.remove()
    handles, labels = axes.get_legend_handles_labels()
    names = [_short(label.removeprefix(f"{system}, ")) for label in labels]
    if len(handles) > 1:
        figure.legend(handles, names, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    legend_inches = 0.2 * math.ceil(len(handles) / 2) if len(handles) > 1 else 0
    figure.set_size_inches(WIDTH_INCHES, legend_inches + max(2.8, 0.4 + 0.3 * len(axes.get_yticks())))
    return Plot(title=title, svg=draw(figure), description=f"{title}; the tables have its numbers.")


def _axes(height_inches: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
    return figure, figure.subplots()


def _short(name: str) -> str:
    """A name that fits beside a figure, without control characters, which XML does not allow."""
    printable = _CONTROL.sub("\ufffd", name)
    return printable if len(printable) <= _MAX_NAME_CHARS else printable[: _MAX_NAME_CHARS - 1] + "…"
