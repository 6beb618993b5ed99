"""Several sorted parts read as one: all rows in order, the newest of each.

Batches sorted by row flow in, one iterator a part; batches sorted by row flow out, each row once. It knows nothing of
files or of what a row holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def merge_parts(parts: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """All parts in row order, the newest of each row; `parts` come oldest first.

    No more is held than one batch of each part: every round gives out the rows up to the smallest last row of these
    batches, so each round uses up at least one.
    """
    cursors = [_Cursor(rank, batches) for rank, batches in enumerate(parts)]
    cursors = [cursor for cursor in cursors if cursor.batch is not None]
    while cursors:
        bound = min(int(cursor.rows[-1]) for cursor in cursors)
        taken = [(cursor.rank, batch) for cursor in cursors if (batch := cursor.take_through(bound)) is not None]
        cursors = [cursor for cursor in cursors if cursor.batch is not None]
        yield _newest(taken)


class _Cursor:
    """A part's next batch of rows; `rank` is higher for newer parts."""

    def __init__(self, rank: int, batches: Iterator[pa.RecordBatch]) -> None:
        self.rank = rank
        self._batches = batches
        self.batch: pa.RecordBatch | None = None
        self.rows: np.ndarray[Any, np.dtype[np.int64]] = np.empty(0, np.int64)
        self.refill()

    def refill(self) -> None:
        self.batch = next((batch for batch in self._batches if batch.num_rows), None)
        if self.batch is not None:
            self.rows = self.batch.column(0).to_numpy()

    def take_through(self, row: int) -> pa.RecordBatch | None:
        """What the batch holds up to `row`; the next batch comes when it is used up."""
        stop = int(np.searchsorted(self.rows, row, side="right"))
        if not stop or self.batch is None:
            return None
        taken = self.batch.slice(0, stop)
        if stop == len(self.rows):
            self.refill()
        else:
            self.batch, self.rows = self.batch.slice(stop), self.rows[stop:]
        return taken


def _newest(taken: list[tuple[int, pa.RecordBatch]]) -> pa.RecordBatch:
    if len(taken) == 1:
        return taken[0][1]
    batch = pa.concat_batches([batch for _, batch in taken])
    rows = batch.column(0).to_numpy()
    ranks = np.concatenate([np.full(part.num_rows, rank) for rank, part in taken])
    order = np.lexsort((ranks, rows))
    is_last = np.append(rows[order][1:] != rows[order][:-1], True)
    return batch.take(pa.array(order[is_last]))
