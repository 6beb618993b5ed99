"""The append-only folder of finished work: what a killed run goes on from, and what `reduce` folds again.

Outcomes flow in, in any order; they come back in row order, the newest of each row. The folder holds `run.json`, which
says what the run was told to do, and `part-FIRST-LAST.parquet` files, each sorted by row, named by the range of appends
that it holds. It knows nothing of input, folds or output.

A part is written under another name, synced and renamed, so it is whole or not there. Compaction writes a part whose
range covers those it replaces, then deletes them: a kill in between leaves parts that lie inside another's range, and
the next `open` deletes those.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import filelock
import msgspec
import pyarrow as pa

from batchfact import run_file, run_log
from batchfact.durable import TEMPORARY
from batchfact.errors import UsageError
from batchfact.journal_merging import merge_parts
from batchfact.journal_parts import (
    COMPACT_PARTS,
    SCHEMA,
    Part,
    crowded,
    delete_parts,
    find_parts,
    list_parts,
    make_part,
    open_batches,
    write_part,
)
from batchfact.records import Outcome, Pair, Rejected
from batchfact.run_file import RunFile, make_run, read_run, refuse_change, write_run

__all__ = ["COMPACT_PARTS", "Journal", "Part", "RunFile", "default_folder", "pending", "read_run"]

_SPILL = ".batchfact-spill"
"""A name that no folder of a user's has: it is deleted whole."""
_KEYS = ["row", "text_hash"]
_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(Outcome).decode


def default_folder(output: str) -> Path:
    """The journal's folder beside the output.

    Raises: UsageError where the output is no local path, since the journal needs a lock and renames.
    """
    if "://" in output:
        raise UsageError(f"the output {output} is not on a local file system, so name a local folder with --journal")
    path = Path(output).expanduser()
    return path.with_name(path.name + ".journal")


class Journal:
    """An open, locked journal. `append` and `compact_if_needed` may be called from any thread, also while others read.

    Readers see the outcomes committed when they were asked for.
    """

    def __init__(self, folder: Path, lock: filelock.BaseFileLock, parts: list[Part], warnings: list[str]) -> None:
        self.folder = folder
        self.warnings = warnings
        self._lock = lock
        self._parts = parts
        self._guard = threading.Lock()
        self._compacting = threading.Lock()
        self._next = max((part.last for part in parts), default=-1) + 1

    @classmethod
    def open(
        cls,
        folder: Path,
        identity: Mapping[str, Any],
        fold: Mapping[str, Any],
        runtime: Mapping[str, Any],
        *,
        restart: bool = False,
    ) -> Self:
        """Lock the folder, compare what it was made for with what is asked for, and check every part.

        A part that is cut or whose checksums fail is renamed to `*.corrupt` and named in `warnings`; its rows count as
        not done.

        Args:
            folder: made if missing, with its parents.
            identity, fold, runtime: the sections of run.json; a change of the last two is just written down.
            restart: drop what is there and start afresh.
        Raises: UsageError where another process has the folder, the identity differs, or run.json is missing or
            damaged.
        """
        wanted = make_run(identity, fold, runtime)
        lock = _lock(folder)
        try:
            if restart:
                _clear(folder)
            was = read_run(folder)
            _refuse_other(folder, was, wanted)
            _delete_unfinished_run(folder)
            if was != wanted:
                write_run(folder, wanted)
            parts, warnings = find_parts(folder)
            journal = cls(folder, lock, parts, warnings)
            shutil.rmtree(journal.spill_dir, ignore_errors=True)
        except BaseException:
            lock.release()
            raise
        return journal

    @property
    def spill_dir(self) -> Path:
        """Where spill files may lie: what a killed run left there is deleted by `open`."""
        return self.folder / _SPILL

    @property
    def num_rows(self) -> int:
        """Finished rows, each once."""
        return sum(batch.num_rows for batch in merge_parts(open_batches(self._snapshot(), ["row"])))

    @property
    def num_parts(self) -> int:
        return len(self._snapshot())

    @property
    def num_bytes(self) -> int:
        """Size of the parts on disk."""
        return sum(part.path.stat().st_size for part in self._snapshot())

    def append(self, outcomes: Sequence[Outcome]) -> None:
        """Commit outcomes as one part: on return they survive a kill and a power cut.

        Args:
            outcomes: in any order; the last of several for one row counts, and replaces any committed before.
        Raises: RunFailedError where the disk is full or fails.
        """
        if not outcomes:
            return
        newest = {outcome.row: outcome for outcome in outcomes}
        ordered = [newest[row] for row in sorted(newest)]
        batch = pa.record_batch(
            [
                pa.array([outcome.row for outcome in ordered], pa.int64()),
                pa.array([outcome.text_hash for outcome in ordered], pa.uint64()),
                pa.array([_ENCODE(outcome) for outcome in ordered], pa.large_binary()),
            ],
            schema=SCHEMA,
        )
        with self._guard:
            part = make_part(self.folder, self._next, self._next)
            write_part(part.path, [batch])
            self._next += 1
            self._parts.append(part)

    def compact_if_needed(self) -> None:
        """Merge neighbouring parts where there are many of one size; returns at once where another thread does."""
        if not self._compacting.acquire(blocking=False):
            return
        try:
            while old := crowded(self._snapshot()):
                self._compact(old)
        finally:
            self._compacting.release()

    def compact(self) -> None:
        """Merge all parts into one, so that a reader of many journals has few files open."""
        with self._compacting:
            old = self._snapshot()
            if len(old) > 1:
                self._compact(old)

    def committed(self, is_retried: Callable[[Outcome], bool] | None = None) -> Iterator[tuple[int, int]]:
        """(row, text_hash) of each finished row, in row order, without those that `is_retried` picks."""
        if is_retried is None:
            return _keys(open_batches(self._snapshot(), _KEYS))
        return ((outcome.row, outcome.text_hash) for outcome in self.outcomes() if not is_retried(outcome))

    def outcomes(self) -> Iterator[Outcome]:
        """The newest outcome of each finished row, in row order."""
        return _decode_outcomes(open_batches(self._snapshot(), None))

    def close(self) -> None:
        shutil.rmtree(self.spill_dir, ignore_errors=True)  # empty by now, or what a failure left
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _snapshot(self) -> list[Part]:
        with self._guard:
            return list(self._parts)

    def _compact(self, old: list[Part]) -> None:
        part = make_part(self.folder, old[0].first, old[-1].last)
        write_part(part.path, merge_parts(open_batches(old, None)))
        with self._guard:
            start = self._parts.index(old[0])
            self._parts[start : start + len(old)] = [part]
        for each in old:
            each.path.unlink(missing_ok=True)


def pending(pairs: Iterable[Pair | Rejected], committed: Iterable[tuple[int, int]]) -> Iterator[Pair | Rejected]:
    """The rows that are not committed, or were with another text; both arguments come in row order."""
    keys = iter(committed)
    end = (-1, -1)
    key: tuple[int, int] = next(keys, end)
    for pair in pairs:
        while key is not end and key[0] < pair.row:
            key = next(keys, end)
        if key != (pair.row, pair.text_hash):
            yield pair


def _lock(folder: Path) -> filelock.BaseFileLock:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Not thread_local: the thread that closes the journal need not be the one that opened it.
        lock = filelock.FileLock(folder / ".lock", thread_local=False)
        lock.acquire(timeout=0)
    except filelock.Timeout as error:
        raise UsageError(
            f"another process is working on {folder}; wait for it to end, or name another output or --journal"
        ) from error
    except OSError as error:
        raise UsageError(f"the journal folder {folder} cannot be made or written: {error}") from error
    return lock


def _refuse_other(folder: Path, was: RunFile | None, wanted: RunFile) -> None:
    if was is not None:
        refuse_change(folder, was, wanted)
    elif list_parts(folder):
        raise UsageError(
            f"{folder} holds finished rows but no run.json that says what they are; restore it, or start afresh "
            "with --restart"
        )


def _clear(folder: Path) -> None:
    """Delete what a journal writes and nothing else: the folder may be one that the user named by mistake."""
    # Parts first: while run.json says what they are, a kill in between leaves a journal that can go on.
    delete_parts(folder)
    (folder / run_file.NAME).unlink(missing_ok=True)
    (folder / run_log.NAME).unlink(missing_ok=True)
    _delete_unfinished_run(folder)


def _delete_unfinished_run(folder: Path) -> None:
    (folder / (run_file.NAME + TEMPORARY)).unlink(missing_ok=True)


def _keys(parts: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[tuple[int, int]]:
    for batch in merge_parts(parts):
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def _decode_outcomes(parts: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[Outcome]:
    for batch in merge_parts(parts):
        for payload in batch.column(2):
            yield _DECODE(payload.as_buffer())
