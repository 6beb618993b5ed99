"""Eight sorted parts of the journal to one, the newest of each row: merged as streams, against sorted in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from batchfact.journal_merging import merge_parts
from batchfact.journal_parts import COMPACT_PARTS, SCHEMA, Part, list_parts, open_batches, write_part
from kernels_bench.kernel import Arm, Cost, Kernel, MismatchError, Place
from kernels_bench.stored_rows import make_outcomes, make_source, open_new_journal

# Rows a part; each part has every eighth row, and the last one all rows of the first once more.
PART_ROWS = {"tiny": 3, "full": 2048}


def kernels(place: Place) -> Iterator[Kernel]:
    outcomes = make_outcomes(make_source(place.folder, COMPACT_PARTS * PART_ROWS[place.size]))
    folder = place.folder / "to-compact"
    with open_new_journal(folder) as journal:
        for number in range(COMPACT_PARTS):
            again = outcomes[::COMPACT_PARTS] if number == COMPACT_PARTS - 1 else []
            journal.append([*outcomes[number::COMPACT_PARTS], *again])
    parts = list_parts(folder)
    read = sum(part.path.stat().st_size for part in parts)
    written = streamed(parts, place.folder / "streamed.parquet").stat().st_size
    cost = Cost(bytes=read, disk_bytes=written)
    yield Kernel(
        shape=f"{len(parts)} parts, {len(outcomes):,} rows, {read / 1e6:.2f} MB",
        reference=Arm("all in memory", lambda: in_memory(parts, place.folder / "in-memory.parquet"), cost),
        candidates=(Arm("merge of streams", lambda: streamed(parts, place.folder / "streamed.parquet"), cost),),
        check=same_rows,
    )


def in_memory(parts: Sequence[Part], target: Path) -> Path:
    """Newest first, a stable sort by row, the first of each row."""
    table = pa.concat_tables(pq.read_table(part.path, schema=SCHEMA) for part in reversed(parts))
    _, newest = np.unique(table["row"].to_numpy(), return_index=True)
    write_part(target, table.take(newest).to_batches())
    return target


def streamed(parts: Sequence[Part], target: Path) -> Path:
    write_part(target, merge_parts(open_batches(parts, None)))
    return target


def same_rows(expected: Path, found: Path) -> None:
    if not pq.read_table(expected).equals(pq.read_table(found)):
        raise MismatchError("the two parts hold different rows")
