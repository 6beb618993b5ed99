"""Whether a disk holds what a run will write, asked before it is written.

Sizes from the input's footers flow in; a refusal, or nothing, flows out. All estimates are low: a run that might fit
is never refused.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from batchfact.config import Grouping, Runtime
from batchfact.errors import UsageError
from batchfact.journal_parts import list_parts
from batchfact.source import Source

JOURNAL_ROW_BYTES = 40
"""Of a committed row with one finding without reasoning, compressed: the least that a scored row takes."""


def check_journal_space(
    folder: Path,
    source: Source,
    *,
    group: Grouping,
    look_ahead_rows: int = Runtime().look_ahead_rows,
    look_ahead_bytes: int = Runtime().look_ahead_bytes,
    num_rows: int | None = None,
    restart: bool = False,
) -> None:
    """Refuse, before any model loads, a journal whose parts and spill files its disk could not hold.

    Args:
        folder: the journal's; it may be missing.
        num_rows: rows of this run, all of the source's by default.
        restart: what the journal holds is dropped and done again.
    Raises: UsageError.
    """
    num_rows = source.num_rows if num_rows is None else min(num_rows, source.num_rows)
    num_left = num_rows if restart else max(0, num_rows - _num_committed(folder))
    spill_bytes = _spill_bytes(source, num_left, group, look_ahead_rows, look_ahead_bytes)
    lacking = lacking_space(folder, num_left * JOURNAL_ROW_BYTES + spill_bytes)
    if lacking:
        raise UsageError(f"the journal {folder} {lacking} with --journal")


def lacking_space(folder: Path, needed_bytes: int) -> str:
    """What the folder's disk lacks for so many bytes, as the end of a sentence; empty if they fit."""
    free_bytes = shutil.disk_usage(nearest_folder(folder)).free
    if free_bytes >= needed_bytes:
        return ""
    return (
        f"needs about {needed_bytes / 1e9:,.1f} GB and its disk has {free_bytes / 1e9:,.1f} GB free; free some space "
        "or name a place on another disk"
    )


def nearest_folder(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    folder = folder.absolute()
    return next(each for each in (folder, *folder.parents) if each.exists())


def _spill_bytes(source: Source, num_left: int, group: Grouping, look_ahead_rows: int, look_ahead_bytes: int) -> int:
    """Bytes of text that lie on the disk at once, at least."""
    if not num_left or group == "none":
        return 0
    if group == "global":
        return source.plain_text_bytes * num_left // source.num_rows
    # A document is held once for all its pairs in the window, so uncompressed columns may count it many times over.
    held_bytes = source.text_bytes * min(num_left, look_ahead_rows) // source.num_rows
    return max(0, held_bytes - look_ahead_bytes)


def _num_committed(folder: Path) -> int:
    """Rows in the journal's parts; one that is there twice counts twice, one in a damaged part not at all."""
    num_rows = 0
    for part in list_parts(folder):
        try:
            num_rows += pq.read_metadata(part.path).num_rows
        except (OSError, pa.ArrowException):
            continue
    return num_rows
