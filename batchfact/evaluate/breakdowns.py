"""Where a system is right and wrong: by summariser, by length, and row by row against another run.

Rows with gold labels flow in, small records flow out. Unscored rows count as wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from batchfact.evaluate.metrics import (
    CONSISTENT,
    INCONSISTENT,
    NONE,
    Metric,
    accuracy,
    balanced_accuracy,
    kappa,
    wrong_where_unscored,
)
from batchfact.evaluate.runs import UNKNOWN_LENGTH, Counts, Rows

SUMMARY_EDGES = (0, 15, 30, 45, 60, 75)
DOCUMENT_EDGES = (0, 250, 500, 750, 1000, 2000)
"""Words at which the next bin begins; the last one has no end. Xu 2024 counts tokens."""


class Group(Struct, frozen=True, kw_only=True):
    """The rows of one summariser: `called` and `consistent` are the shares that are called so and are so."""

    system: str
    dataset: str
    summarizer: str
    rows: int
    scored: int
    called: float | None
    consistent: float
    balanced_accuracy: Metric
    accuracy: Metric


class LengthBin(Struct, frozen=True, kw_only=True):
    """Rows whose text has `low` to `high` words, `high` excluded and None for no end."""

    system: str
    text: str
    low: int
    high: int | None
    rows: int
    accuracy: Metric
    balanced_accuracy: Metric


class Flip(Struct, frozen=True):
    """A row that two runs label differently; None for unscored."""

    id: str
    gold: str | None
    first: str | None
    second: str | None


class Agreement(Struct, frozen=True, kw_only=True):
    """Two runs on the same rows of a data set; `flips` are all rows with another label, or scored by one run alone."""

    dataset: str
    first: str
    second: str
    rows: int
    kappa: Metric
    flips: tuple[Flip, ...]


def by_summarizer(rows: Rows, system: str, dataset: str) -> tuple[Group, ...]:
    """One group for each summariser, by name; none where no row names one."""
    names = sorted({name for name in rows.summarizers.tolist() if name is not None})
    return tuple(_group(rows.select(rows.summarizers == name), system, dataset, name) for name in names)


def _group(rows: Rows, system: str, dataset: str, name: str) -> Group:
    gold, predicted = rows.gold, wrong_where_unscored(rows.gold, rows.predicted)
    scored = rows.predicted != NONE
    return Group(
        system=system,
        dataset=dataset,
        summarizer=name,
        rows=len(rows),
        scored=int(scored.sum()),
        called=float(np.mean(rows.predicted[scored] == CONSISTENT)) if scored.any() else None,
        consistent=float(np.mean(gold == CONSISTENT)),
        balanced_accuracy=balanced_accuracy(gold, predicted),
        accuracy=accuracy(gold, predicted),
    )


def by_length(rows: Rows, system: str) -> tuple[LengthBin, ...]:
    """Accuracy by the length of summary and document; empty bins are left out.

    Source: Xu 2024, Figures 2 and 3. Differs: words, not tokens, and balanced accuracy beside accuracy.
    """
    return (
        *_bins(rows, system, "summary", rows.summary_words, SUMMARY_EDGES),
        *_bins(rows, system, "document", rows.document_words, DOCUMENT_EDGES),
    )


def _bins(rows: Rows, system: str, text: str, words: Counts, edges: Sequence[int]) -> tuple[LengthBin, ...]:
    predicted = wrong_where_unscored(rows.gold, rows.predicted)
    found = []
    for low, high in zip(edges, [*edges[1:], math.inf], strict=True):
        chosen: NDArray[np.bool_] = (words != UNKNOWN_LENGTH) & (words >= low) & (words < high)
        if chosen.any():
            found.append(
                LengthBin(
                    system=system,
                    text=text,
                    low=low,
                    high=None if high == math.inf else int(high),
                    rows=int(chosen.sum()),
                    accuracy=accuracy(rows.gold[chosen], predicted[chosen]),
                    balanced_accuracy=balanced_accuracy(rows.gold[chosen], predicted[chosen]),
                )
            )
    return tuple(found)


def compare_labels(first: Rows, second: Rows, *, dataset: str, names: tuple[str, str]) -> Agreement:
    """How two runs on the same ids agree, whatever the rows' order."""
    first, second = in_order_of_ids(first), in_order_of_ids(second)
    (differ,) = np.nonzero(first.predicted != second.predicted)
    return Agreement(
        dataset=dataset,
        first=names[0],
        second=names[1],
        rows=len(first),
        kappa=kappa(first.predicted, second.predicted),
        flips=tuple(
            Flip(
                first.ids[row],
                LABEL_NAMES[int(first.gold[row])],
                LABEL_NAMES[int(first.predicted[row])],
                LABEL_NAMES[int(second.predicted[row])],
            )
            for row in differ.tolist()
        ),
    )


def in_order_of_ids(rows: Rows) -> Rows:
    return rows.select(np.argsort(rows.ids.astype(str), kind="stable"))


LABEL_NAMES: dict[int, str | None] = {CONSISTENT: "consistent", INCONSISTENT: "inconsistent", NONE: None}
