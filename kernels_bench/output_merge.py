"""Journal and input to the output: a merge of streams against all rows and columns in memory at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from batchfact.config import FoldPolicy, OutputOptions
from batchfact.journal import Journal
from batchfact.journal_parts import list_parts
from batchfact.sink import VERDICT_FIELDS, merge, verdict_columns
from batchfact.source import Source
from kernels_bench.kernel import Arm, Cost, Kernel, MismatchError, Place
from kernels_bench.stored_rows import PART_ROWS, in_parts, make_outcomes, make_source, open_new_journal

ROWS = {"tiny": 10, "full": 2 * PART_ROWS}


def kernels(place: Place) -> Iterator[Kernel]:
    source = make_source(place.folder, ROWS[place.size])
    with open_new_journal(place.folder / "to-merge") as journal:
        for part in in_parts(make_outcomes(source), PART_ROWS):
            journal.append(part)
        written = streamed(source, journal, place.folder / "streamed.parquet").stat().st_size
        kept = sum(part.path.stat().st_size for part in list_parts(place.folder / "to-merge"))
        cost = Cost(bytes=source.num_bytes + kept + source.plain_text_bytes, disk_bytes=written)
        yield Kernel(
            shape=f"{source.num_rows:,} rows, {source.num_bytes / 1e6:.1f} MB in",
            reference=Arm(
                "all in memory", lambda: in_memory(source, journal, place.folder / "in-memory.parquet"), cost
            ),
            candidates=(Arm("sink.merge", lambda: streamed(source, journal, place.folder / "streamed.parquet"), cost),),
            check=same_rows,
        )


def in_memory(source: Source, journal: Journal, target: Path) -> Path:
    """Written and synced, as the floor's disk bytes mean it; nothing is checked."""
    table = pq.read_table(source.shards[0].path)
    columns, _ = verdict_columns(list(journal.outcomes()), FoldPolicy())
    for field, column in zip(VERDICT_FIELDS, columns, strict=True):
        table = table.append_column(field.with_name(f"batchfact_{field.name}"), column)
    with target.open("wb") as file:
        pq.write_table(table, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
    return target


def streamed(source: Source, journal: Journal, target: Path) -> Path:
    """As at the end of a run: texts are hashed and compared with what was scored, the file is synced and renamed."""
    merge(source, journal, str(target), FoldPolicy(), OutputOptions(), {})
    return target


def same_rows(expected: Path, found: Path) -> None:
    if not pq.read_table(expected).equals(pq.read_table(found)):
        raise MismatchError("the two outputs hold different rows")
