"""The journal's part files: sorted runs of finished rows, each named by the range of appends that it holds.

Batches of rows flow in and become a whole file, or none; batches flow out. What a kill left behind is cleared and what
is damaged is set aside in `find_parts`. It knows nothing of outcomes, locks or settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from batchfact.durable import durable_file
from batchfact.errors import RunFailedError

COMPACT_PARTS = 8
"""So many neighbouring parts of a level become one of the next: parts stay below 8 for each power of 8 of appends."""

SCHEMA = pa.schema([("row", pa.int64()), ("text_hash", pa.uint64()), ("payload", pa.large_binary())])

_KEY_BATCH_ROWS = 65_536
_PAYLOAD_BATCH_ROWS = 4096
_PAYLOAD_BATCH_BYTES = 1 << 20
_GROUP_BYTES = 4 << 20
_READ_BUFFER_BYTES = 256 << 10
# Exactly what we write: a user's own part-00000.parquet in the folder is no business of ours.
_PART = re.compile(r"part-(\d{8,})-(\d{8,})\.parquet")
_OURS = re.compile(_PART.pattern + r"(\.tmp|\.corrupt)?")


class Part(Struct, frozen=True, kw_only=True, order=True):
    """The outcomes of appends `first` to `last`, sorted by row, each row once."""

    first: int
    last: int
    path: Path

    def is_inside(self, other: Part) -> bool:
        return other.path != self.path and other.first <= self.first and self.last <= other.last

    @property
    def level(self) -> int:
        """The power of COMPACT_PARTS in the number of appends."""
        level, width = 0, self.last - self.first + 1
        while width >= COMPACT_PARTS:
            level, width = level + 1, width // COMPACT_PARTS
        return level


def make_part(folder: Path, first: int, last: int) -> Part:
    """The part of these appends; its file need not be there."""
    return Part(first=first, last=last, path=folder / f"part-{first:08d}-{last:08d}.parquet")


def list_parts(folder: Path) -> list[Part]:
    """The parts that the folder holds, in the order of appends, whole or not."""
    if not folder.is_dir():
        return []
    names = ((_PART.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted(Part(first=int(match[1]), last=int(match[2]), path=path) for match, path in names if match)


def find_parts(folder: Path) -> tuple[list[Part], list[str]]:
    """The whole parts in the order of appends, and a warning for each that was damaged.

    Leftovers of a kill are deleted, damaged parts renamed to `*.corrupt`.
    """
    for path in folder.glob("*.tmp"):
        if _OURS.fullmatch(path.name):
            path.unlink()
    whole: list[Part] = []
    warnings: list[str] = []
    # Widest first, so that a part is only deleted for one that was found whole.
    for part in sorted(list_parts(folder), key=lambda part: part.first - part.last):
        if any(part.is_inside(other) for other in whole):
            part.path.unlink()
        elif fault := _fault(part):
            part.path.replace(part.path.with_name(part.path.name + ".corrupt"))
            warnings.append(
                f"{part.path.name} is damaged ({fault}) and was set aside as {part.path.name}.corrupt; its rows are "
                "done again"
            )
        else:
            whole.append(part)
    return sorted(whole), warnings


def delete_parts(folder: Path) -> None:
    """Delete all part files, finished, unfinished and damaged, and nothing else."""
    for path in sorted(folder.iterdir()):
        if _OURS.fullmatch(path.name):
            path.unlink()


def write_part(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    """A whole part under its name, or none. Row groups are small, so that merging many parts stays small too.

    Raises: RunFailedError where the disk is full or fails.
    """
    try:
        with (
            durable_file(path) as file,
            pq.ParquetWriter(
                file,
                SCHEMA,
                compression="zstd",
                use_dictionary=False,
                write_statistics=False,
                write_page_checksum=True,
            ) as writer,
        ):
            for group in _gather(batches, _GROUP_BYTES):
                writer.write_table(group)
    except OSError as error:
        raise RunFailedError(
            f"finished rows cannot be written to {path.parent}: {error}; rows committed before are kept, free some "
            "space and run the same command again"
        ) from error


def open_batches(parts: Sequence[Part], columns: list[str] | None) -> list[Iterator[pa.RecordBatch]]:
    """The parts' batches, all columns where `columns` is None.

    Files are opened here and not at the first batch: compaction may delete them meanwhile.
    """
    return [_batches(open_part(part), columns) for part in parts]


def open_part(part: Part) -> pq.ParquetFile:
    return pq.ParquetFile(part.path, pre_buffer=False, buffer_size=_READ_BUFFER_BYTES, page_checksum_verification=True)


def batch_rows(file: pq.ParquetFile) -> int:
    """Rows that hold about _PAYLOAD_BATCH_BYTES: long reasonings make short batches."""
    meta = file.metadata
    num_bytes = sum(meta.row_group(group).total_byte_size for group in range(meta.num_row_groups))
    return int(max(1, min(_PAYLOAD_BATCH_ROWS, meta.num_rows * _PAYLOAD_BATCH_BYTES // max(num_bytes, 1))))


def crowded(parts: list[Part]) -> list[Part]:
    """Neighbouring parts of one level that are enough to be merged; of the lowest such level.

    Newer parts of lower levels are left alone: with them, a large old part would be written again every few appends. A
    small part before a large one, as after a resume, counts as that one's level, so that none stays behind.
    """
    runs: dict[int, list[Part]] = {}
    level = 0
    for part in reversed(parts):
        level = max(level, part.level)
        runs.setdefault(level, []).append(part)
    return next((run[::-1] for _, run in sorted(runs.items()) if len(run) >= COMPACT_PARTS), [])


def _fault(part: Part) -> str:
    """What is wrong with a part, found by reading it through; empty if nothing is."""
    previous = -1
    try:
        with open_part(part) as file:
            if file.schema_arrow.remove_metadata() != SCHEMA:
                return "its columns are not a part's"
            for batch in file.iter_batches(batch_rows(file)):
                rows = batch.column(0).to_numpy()
                if len(rows) and (rows[0] <= previous or np.any(np.diff(rows) <= 0)):
                    return "its rows are out of order"
                previous = int(rows[-1]) if len(rows) else previous
    except (OSError, pa.ArrowException) as error:
        return str(error).splitlines()[0]
    return ""


def _batches(file: pq.ParquetFile, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    size = batch_rows(file) if columns is None else _KEY_BATCH_ROWS
    try:
        with file:
            yield from file.iter_batches(size, columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise RunFailedError(
            f"the journal cannot be read any more: {error}; run the same command again, damaged parts are set aside"
        ) from error


def _gather(batches: Iterable[pa.RecordBatch], group_bytes: int) -> Iterator[pa.Table]:
    """Tables of about `group_bytes`, whatever the size of the batches."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        step = max(1, batch.num_rows * group_bytes // max(batch.nbytes, 1))
        for start in range(0, batch.num_rows, step):
            held.append(batch.slice(start, step))
            held_bytes += held[-1].nbytes
            if held_bytes >= group_bytes:
                yield pa.Table.from_batches(held)
                held, held_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)
