"""The append-only folder of finished work: what a killed run goes on from, and what `reduce` folds again.

Outcomes flow in, in any order; they come back in row order, the newest of each row. The folder holds `run.json`, which
says what the run was told to do, and `part-FIRST-LAST.parquet` files, each sorted by row, named by the range of appends
that it holds. It knows nothing of input, folds or output.

A part is written under another name, synced and renamed, so it is whole or not there. Compaction writes a part whose
range covers those it replaces, then deletes them: a kill in between leaves parts that lie inside another's range, and
the next `open` deletes those.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import filelock
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from batchfact.errors import RunFailedError, UsageError
from batchfact.records import Outcome, Pair, Rejected

FORMAT = 1
COMPACT_PARTS = 8
"""So many neighbouring parts of a level become one of the next: parts stay below 8 for each power of 8 of appends."""

_SCHEMA = pa.schema([("row", pa.int64()), ("text_hash", pa.uint64()), ("payload", pa.large_binary())])
_KEYS = ["row", "text_hash"]
_KEY_BATCH_ROWS = 65_536
_PAYLOAD_BATCH_ROWS = 256
_PAYLOAD_BATCH_BYTES = 1 << 20
_GROUP_BYTES = 4 << 20
_READ_BUFFER_BYTES = 256 << 10
_MAX_DIFFERENCES = 10
_PART = re.compile(r"part-(\d+)-(\d+)\.parquet")
_OURS = re.compile(r"part-.*\.parquet(\.tmp|\.corrupt)?|run\.json(\.tmp)?")
_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(Outcome).decode


class RunFile(Struct, frozen=True, kw_only=True):
    """`run.json`: what decides the answers, what decides how they become rows, and the rest."""

    identity: dict[str, Any]
    fold: dict[str, Any]
    runtime: dict[str, Any]
    format: int = FORMAT


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


def default_folder(output: str) -> Path:
    """The journal's folder beside the output.

    Raises: UsageError where the output is no local path, since the journal needs a lock and renames.
    """
    if "://" in output:
        raise UsageError(f"the output {output} is not on a local file system, so name a local folder with --journal")
    path = Path(output).expanduser()
    return path.with_name(path.name + ".journal")


def read_run(folder: Path) -> RunFile | None:
    """What the journal in `folder` was made for; None where there is no journal.

    Raises: UsageError where run.json is damaged or of another version.
    """
    path = folder / "run.json"
    try:
        run = msgspec.json.decode(path.read_bytes(), type=RunFile)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} is damaged ({error}); restore it, or start afresh with --restart, which drops the finished rows"
        ) from error
    if run.format != FORMAT:
        raise UsageError(
            f"{path} has format {run.format}, this version writes {FORMAT}; finish it with the version that began it, "
            "or start afresh with --restart"
        )
    return run


class Journal:
    """An open, locked journal. `append` and `compact_if_needed` may be called from any thread, also while others read.

    Readers see the outcomes committed when they were asked for.
    """

    def __init__(self, folder: Path, lock: filelock.BaseFileLock, parts: list[Part], *, fold_changed: bool) -> None:
        self.folder = folder
        self.fold_changed = fold_changed
        """Whether the fold differs from the one that the journal was last opened with: only a merge is needed."""
        self.warnings: list[str] = []
        self._lock = lock
        self._parts = parts
        self._guard = threading.Lock()
        self._compacting = threading.Lock()
        self._next = max((part.last for part in parts), default=-1) + 1
        self._num_rows: int | None = None

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
        wanted = RunFile(identity=_plain(identity), fold=_plain(fold), runtime=_plain(runtime))
        lock = _lock(folder)
        try:
            if restart:
                _clear(folder)
            was = read_run(folder)
            _refuse_change(folder, was, wanted)
            if was != wanted:
                _write_durably(folder / "run.json", msgspec.json.format(msgspec.json.encode(wanted)))
            parts, warnings = _find_parts(folder)
            journal = cls(folder, lock, parts, fold_changed=was is not None and was.fold != wanted.fold)
            journal.warnings.extend(warnings)
            shutil.rmtree(journal.spill_dir, ignore_errors=True)
        except BaseException:
            lock.release()
            raise
        return journal

    @property
    def spill_dir(self) -> Path:
        """Where spill files may lie: what a killed run left there is deleted by `open`."""
        return self.folder / "spill"

    @property
    def num_bytes(self) -> int:
        """Size of the parts on disk."""
        return sum(part.path.stat().st_size for part in self._snapshot())

    @property
    def num_parts(self) -> int:
        return len(self._snapshot())

    @property
    def num_rows(self) -> int:
        """Rows with an outcome."""
        with self._guard:
            known, parts = self._num_rows, list(self._parts)
        if known is None:
            known = sum(batch.num_rows for batch in _merge(_open_all(parts, _KEYS)))
            with self._guard:
                if parts == self._parts:
                    self._num_rows = known
        return known

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
            schema=_SCHEMA,
        )
        with self._guard:
            part = _new_part(self.folder, self._next, self._next)
            _write_part(part.path, [batch])
            self._next += 1
            self._parts.append(part)
            self._num_rows = None

    def compact_if_needed(self) -> None:
        """Merge neighbouring parts where there are many of one size; returns at once where another thread does."""
        if not self._compacting.acquire(blocking=False):
            return
        try:
            while old := _crowd(self._snapshot()):
                self._compact(old)
        finally:
            self._compacting.release()

    def committed(self, is_retried: Callable[[Outcome], bool] | None = None) -> Iterator[tuple[int, int]]:
        """(row, text_hash) of each finished row, in row order, without those that `is_retried` picks."""
        if is_retried is None:
            return _keys(_open_all(self._snapshot(), _KEYS))
        return ((outcome.row, outcome.text_hash) for outcome in self.outcomes() if not is_retried(outcome))

    def outcomes(self) -> Iterator[Outcome]:
        """The newest outcome of each finished row, in row order."""
        return _decode_outcomes(_open_all(self._snapshot(), None))

    def close(self) -> None:
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _snapshot(self) -> list[Part]:
        with self._guard:
            return list(self._parts)

    def _compact(self, old: list[Part]) -> None:
        part = _new_part(self.folder, old[0].first, old[-1].last)
        _write_part(part.path, _merge(_open_all(old, None)))
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


# run.json


def _plain(section: Mapping[str, Any]) -> dict[str, Any]:
    """The section as it comes back from JSON, so that a tuple does not differ from the list it is read as."""
    plain: dict[str, Any] = json.loads(msgspec.json.encode(section, enc_hook=str))
    return plain


def _refuse_change(folder: Path, was: RunFile | None, wanted: RunFile) -> None:
    if was is None:
        if any(_PART.fullmatch(path.name) for path in folder.iterdir()):
            raise UsageError(
                f"{folder} holds finished rows but no run.json that says what they are; restore it, or start afresh "
                "with --restart"
            )
        return
    found = list(itertools.islice(_differences(was.identity, wanted.identity, ""), _MAX_DIFFERENCES + 1))
    if found:
        more = ["and more"] if len(found) > _MAX_DIFFERENCES else []
        raise UsageError(
            f"{folder} was made with other settings: {'; '.join(found[:_MAX_DIFFERENCES] + more)}. Set them back to go "
            "on, name another output, or drop the finished rows with --restart"
        )


def _differences(was: Any, wanted: Any, path: str) -> Iterator[str]:
    if isinstance(was, dict) and isinstance(wanted, dict):
        for key in was | wanted:
            yield from _differences(was.get(key), wanted.get(key), f"{path}.{key}" if path else key)
    elif was != wanted:
        yield f"{path}: {json.dumps(was, ensure_ascii=False)} -> {json.dumps(wanted, ensure_ascii=False)}"


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


def _clear(folder: Path) -> None:
    """Delete what a journal writes and nothing else: the folder may be one that the user named by mistake."""
    # Parts first: while run.json says what they are, a kill in between leaves a journal that can go on.
    for path in sorted(folder.iterdir()):
        if _OURS.fullmatch(path.name):
            path.unlink()


# Parts on disk


def _new_part(folder: Path, first: int, last: int) -> Part:
    return Part(first=first, last=last, path=folder / f"part-{first:08d}-{last:08d}.parquet")


def _find_parts(folder: Path) -> tuple[list[Part], list[str]]:
    """The whole parts in the order of appends; leftovers of a kill are deleted, damaged parts set aside."""
    for path in folder.glob("*.tmp"):
        if _OURS.fullmatch(path.name):
            path.unlink()
    names = ((_PART.fullmatch(path.name), path) for path in folder.iterdir())
    parts = sorted(Part(first=int(match[1]), last=int(match[2]), path=path) for match, path in names if match)
    whole: list[Part] = []
    warnings: list[str] = []
    # Widest first, so that a part is only deleted for one that was found whole.
    for part in sorted(parts, key=lambda part: part.first - part.last):
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


def _fault(part: Part) -> str:
    """What is wrong with a part, found by reading it through; empty if nothing is."""
    previous = -1
    try:
        with _open_part(part) as file:
            if file.schema_arrow.remove_metadata() != _SCHEMA:
                return "its columns are not a part's"
            for batch in file.iter_batches(_batch_rows(file)):
                rows = batch.column(0).to_numpy()
                if len(rows) and (rows[0] <= previous or np.any(np.diff(rows) <= 0)):
                    return "its rows are out of order"
                previous = int(rows[-1]) if len(rows) else previous
    except (OSError, pa.ArrowException) as error:
        return str(error).splitlines()[0]
    return ""


def _open_part(part: Part) -> pq.ParquetFile:
    return pq.ParquetFile(part.path, pre_buffer=False, buffer_size=_READ_BUFFER_BYTES, page_checksum_verification=True)


def _write_part(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    """A whole part under its name, or none. Row groups are small, so that merging many parts stays small too."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            with pq.ParquetWriter(
                file,
                _SCHEMA,
                compression="zstd",
                use_dictionary=False,
                write_statistics=False,
                write_page_checksum=True,
            ) as writer:
                for group in _gather(batches, _GROUP_BYTES):
                    writer.write_table(group)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunFailedError(
            f"finished rows cannot be written to {path.parent}: {error}; rows committed before are kept, free some "
            "space and run the same command again"
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


def _write_durably(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error}") from error


def _sync_folder(folder: Path) -> None:
    """Make a rename in the folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _crowd(parts: list[Part]) -> list[Part]:
    """The newest parts up to a level that has enough of them to be merged; of the lowest such level."""
    for level in sorted({part.level for part in parts}):
        num_trailing = 0
        while num_trailing < len(parts) and parts[-1 - num_trailing].level <= level:
            num_trailing += 1
        if num_trailing >= COMPACT_PARTS:
            return parts[-num_trailing:]
    return []


# Merging parts


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


def _open_all(parts: Sequence[Part], columns: list[str] | None) -> list[Iterator[pa.RecordBatch]]:
    """The parts' batches. Files are opened here and not at the first batch: compaction may delete them meanwhile."""
    return [_batches(_open_part(part), columns) for part in parts]


def _batch_rows(file: pq.ParquetFile) -> int:
    """Rows that hold about _PAYLOAD_BATCH_BYTES: long reasonings make short batches."""
    meta = file.metadata
    num_bytes = sum(meta.row_group(group).total_byte_size for group in range(meta.num_row_groups))
    return int(max(1, min(_PAYLOAD_BATCH_ROWS, meta.num_rows * _PAYLOAD_BATCH_BYTES // max(num_bytes, 1))))


def _batches(file: pq.ParquetFile, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    size = _batch_rows(file) if columns is None else _KEY_BATCH_ROWS
    try:
        with file:
            yield from file.iter_batches(size, columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise RunFailedError(
            f"the journal cannot be read any more: {error}; run the same command again, damaged parts are set aside"
        ) from error


def _merge(parts: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
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


def _newest(taken: list[tuple[int, pa.RecordBatch]]) -> pa.RecordBatch:
    if len(taken) == 1:
        return taken[0][1]
    batch = pa.concat_batches([batch for _, batch in taken])
    rows = batch.column(0).to_numpy()
    ranks = np.concatenate([np.full(part.num_rows, rank) for rank, part in taken])
    order = np.lexsort((ranks, rows))
    is_last = np.append(rows[order][1:] != rows[order][:-1], True)
    return batch.take(pa.array(order[is_last]))


def _keys(parts: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[tuple[int, int]]:
    for batch in _merge(parts):
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def _decode_outcomes(parts: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[Outcome]:
    for batch in _merge(parts):
        for payload in batch.column(2):
            yield _DECODE(payload.as_buffer())
