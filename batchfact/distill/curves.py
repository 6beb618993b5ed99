"""A training's curves as a picture: the loss, and what the evaluations measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

MEASURES = {"eval_roc_auc": "ROC-AUC", "eval_balanced_accuracy": "balanced accuracy at 0.5"}


def draw_curves(history: Sequence[Mapping[str, float]], path: Path) -> None:
    """Write a PNG.

    Args:
        history: the Trainer's log: entries with `step` and `loss`, or `step` and measures.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    losses, measures = figure.subplots(1, 2)
    _draw(losses, history, {"loss": "training loss"})
    _draw(measures, history, MEASURES)
    figure.savefig(path, dpi=120)


def _draw(axes: object, history: Sequence[Mapping[str, float]], names: Mapping[str, str]) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    for name, label in names.items():
        points = [(entry["step"], entry[name]) for entry in history if name in entry]
        if points:
            axes.plot(*zip(*points, strict=True), marker="." if len(points) < 50 else "", label=label)
    axes.set_xlabel("step")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
