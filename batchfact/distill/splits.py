"""Which rows are for training, which for testing and which for neither: whole clusters of documents at a time.

For each row its cluster, its data set's side and its fold flow in; its side flows out. Near duplicates are one cluster,
so no document is trained on that another copy of is tested with.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

from batchfact.distill.recipe import Side

Split = Literal["train", "test"]


class Folds(Struct, frozen=True, kw_only=True):
    """A fixed split by folds: excluded ones are for neither side, those of `test` are held out, the rest is trained on.

    Without `test` the rest is split by chance.
    """

    exclude: frozenset[int] = frozenset()
    test: frozenset[int] = frozenset()


class Row(Struct, frozen=True, kw_only=True):
    """What a row's side depends on; `fold` None where no fold is known."""

    cluster: str
    side: Side
    is_synthetic: bool
    fold: int | None = None


def assign_sides(rows: Sequence[Row], folds: Folds, *, test_share: float, seed: int) -> list[Split | None]:
    """The side of each row; None for a row that is left out.

    A cluster with a row of an excluded fold is left out as a whole. One with a row that is for testing is tested with:
    its rows of sets that are for training alone, and synthetic ones, are left out. The others are split by chance,
    `test_share` of the clusters to the test side, by a hash that does not depend on what other rows there are.
    """
    members: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        members[row.cluster].append(row)
    side_of = {
        cluster: _cluster_side(cluster, group, folds, test_share=test_share, seed=seed)
        for cluster, group in members.items()
    }
    return [_row_side(row, side_of[row.cluster]) for row in rows]


def _cluster_side(cluster: str, rows: Iterable[Row], folds: Folds, *, test_share: float, seed: int) -> Split | None:
    group = list(rows)
    if any(row.fold in folds.exclude for row in group):
        return None
    if any(row.side == "test" or row.fold in folds.test for row in group):
        return "test"
    is_drawn = not folds.test and any(row.side == "both" and not row.is_synthetic for row in group)
    return "test" if is_drawn and _draw(cluster, seed) < test_share else "train"


def _row_side(row: Row, cluster: Split | None) -> Split | None:
    if cluster == "test":
        return "test" if row.side != "train" and not row.is_synthetic else None
    return "train" if cluster == "train" and row.side != "test" else None


def _draw(cluster: str, seed: int) -> float:
    """A number in [0, 1) that is a cluster's own."""
    digest = hashlib.blake2b(f"{seed} {cluster}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
