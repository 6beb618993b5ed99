"""Pairs a second of every arm as bars, one panel an input."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.throughput.arms import REFERENCE


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Write an SVG; nothing where no arm has finished yet."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    lines = [line for line in result["summary"] if line["status"] == "ok"]
    inputs = list(dict.fromkeys(line["input"] for line in lines))
    if not inputs:
        return
    mpl.rcParams["svg.hashsalt"] = "batchfact"  # the same figures give the same file
    figure = Figure(figsize=(8, 1 + 2.2 * len(inputs)), layout="constrained")
    panels = figure.subplots(len(inputs), squeeze=False)[:, 0]
    for axes, name in zip(panels, inputs, strict=True):
        mine = [line for line in lines if line["input"] == name][::-1]
        bars = axes.barh([line["title"] for line in mine], [line["pairs_per_s"] for line in mine])
        for bar, line in zip(bars, mine, strict=True):
            bar.set_color("#1f6f8b" if line["arm"] == REFERENCE else "#b9c4c9")
        axes.bar_label(bars, fmt="%.2f", padding=3)
        axes.set_title(result["inputs"][name]["what"], loc="left", fontsize="medium")
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.12)
    panels[-1].set_xlabel("pairs a second, start-up left out")
    figure.savefig(path, format="svg", metadata={"Date": None})
