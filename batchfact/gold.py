"""What a column of gold labels may hold, the same wherever labelled rows are read.

A cell's value flows in, a label, or None for a missing one, flows out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from batchfact.records import Label

LABELS: Mapping[object, Label] = {
    1: "consistent",
    0: "inconsistent",
    "1": "consistent",
    "0": "inconsistent",
    "consistent": "consistent",
    "inconsistent": "inconsistent",
}
"""True and 1.0 equal 1; texts are compared without case and outer white space."""


def gold_label(value: object) -> Label | None:
    """The label that a cell holds; None for null and NaN, which a column of floats has in its place.

    Raises: ValueError for a value that is no label, saying what a label is.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    name = value.strip().casefold() if isinstance(value, str) else value
    if not isinstance(name, str | int | float) or name not in LABELS:
        raise ValueError(f"a label is 1, 0, consistent or inconsistent, got {value!r}")
    return LABELS[name]
