"""How much each summary counts: labels alike within a data set, data sets by their size and their recipe's weight.

Counts flow in, weights flow out; their mean over all summaries is 1 before they are bounded.
"""

from __future__ import annotations

from collections.abc import Mapping

from batchfact.records import Label

Class = tuple[str, Label]
"""A data set's name and a label."""


def balanced_weights(
    counts: Mapping[Class, int], shares: Mapping[str, float], *, balance: float, most: float
) -> dict[Class, float]:
    """A weight for each data set's label.

    Args:
        counts: summaries of each class; each at least 1.
        shares: the recipe's weight of each data set.
        balance: power of a data set's size that its share grows with, in [0, 1].
        most: no weight is larger.
    """
    sizes: dict[str, int] = {}
    for (name, _), count in counts.items():
        sizes[name] = sizes.get(name, 0) + count
    parts = {name: shares[name] * size**balance for name, size in sizes.items()}
    total, whole = sum(sizes.values()), sum(parts.values())
    return {
        (name, label): min(most, parts[name] / whole / _num_labels(counts, name) / count * total)
        for (name, label), count in counts.items()
        if count
    }


def _num_labels(counts: Mapping[Class, int], name: str) -> int:
    return sum(other == name and count > 0 for (other, _), count in counts.items())
