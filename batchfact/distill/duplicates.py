"""Which documents say nearly the same: they must lie on one side of a split.

Texts flow in; a cluster number for each flows out. Two documents are near duplicates where half of the shorter one's
runs of eight words stand in the other, so a cut or lightly edited copy counts as one. Clusters are transitive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

RUN_WORDS = 8
LEAST_SHARED = 0.5
COMMON_TO = 100
"""Runs in more documents than this are phrases, not copies."""


def near_duplicate_clusters(texts: Sequence[str]) -> NDArray[Any]:
    """Numbers (len(texts),): equal for near duplicates. Texts shorter than a run only match when equal in words."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    runs = _runs_of(texts)
    shared = (runs @ runs.T).tocoo()
    rows, columns = shared.coords
    sizes = runs.sum(axis=1)
    is_near = shared.data >= LEAST_SHARED * np.minimum(sizes[rows], sizes[columns])
    links = coo_array((np.ones(int(is_near.sum())), (rows[is_near], columns[is_near])), shape=shared.shape)
    return connected_components(links, directed=False)[1]


def _runs_of(texts: Sequence[str]) -> Any:
    """Documents by runs, a sparse matrix of ones."""
    from scipy.sparse import csr_array

    numbers: dict[tuple[str, ...], int] = {}
    columns: list[int] = []
    ends = [0]
    for text in texts:
        words = ["".join(filter(str.isalnum, word)) for word in text.casefold().split()]
        words = [word for word in words if word]
        runs = {tuple(words[at : at + RUN_WORDS]) for at in range(max(len(words) - RUN_WORDS, 0) + 1)}
        columns += [numbers.setdefault(run, len(numbers)) for run in runs]
        ends.append(len(columns))
    matrix = csr_array((np.ones(len(columns), np.int32), columns, ends), shape=(len(texts), max(len(numbers), 1)))
    return matrix[:, matrix.sum(axis=0) <= COMMON_TO]
