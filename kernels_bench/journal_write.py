"""Finished rows to the disk: the journal's parts, synced and checksummed, against one synced msgpack file a part."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from batchfact.records import Outcome
from kernels_bench.kernel import Arm, Cost, Kernel, MismatchError, Place
from kernels_bench.stored_rows import PART_ROWS, in_parts, make_outcomes, make_source, new_folders, open_new_journal

# (rows, rows a part)
SHAPES = {"tiny": (10, 4), "full": (4 * PART_ROWS, PART_ROWS)}


def kernels(place: Place) -> Iterator[Kernel]:
    rows, part_rows = SHAPES[place.size]
    outcomes = make_outcomes(make_source(place.folder, rows))
    parts = in_parts(outcomes, part_rows)
    files, folders = new_folders(place.folder, "msgpack"), new_folders(place.folder, "journal")
    plain, written = by_msgpack(parts, next(files)), by_journal(parts, next(folders))
    yield Kernel(
        shape=f"{rows:,} rows in {len(parts)} parts",
        reference=Arm("msgpack", lambda: by_msgpack(parts, next(files)), Cost(disk_bytes=_num_bytes(plain))),
        candidates=(Arm("journal", lambda: by_journal(parts, next(folders)), Cost(disk_bytes=_num_bytes(written))),),
        check=same_rows,
    )


def by_msgpack(parts: Sequence[Sequence[Outcome]], folder: Path) -> Path:
    folder.mkdir()
    for number, part in enumerate(parts):
        with (folder / str(number)).open("wb") as file:
            file.write(msgspec.msgpack.encode(part))
            file.flush()
            os.fsync(file.fileno())
    return folder


def by_journal(parts: Sequence[Sequence[Outcome]], folder: Path) -> Path:
    with open_new_journal(folder) as journal:
        for part in parts:
            journal.append(part)
    return folder


def same_rows(expected: Path, found: Path) -> None:
    """What was written reads back the same."""
    kept = [each for path in sorted(expected.iterdir(), key=lambda path: int(path.name)) for each in _decode(path)]
    with open_new_journal(found) as journal:
        if list(journal.outcomes()) != kept:
            raise MismatchError("the journal gives back other rows than were written")


def _decode(path: Path) -> list[Outcome]:
    return msgspec.msgpack.decode(path.read_bytes(), type=list[Outcome])


def _num_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())
