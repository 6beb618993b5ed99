"""Text that does not fit the look-ahead's memory, on disk until it is wanted.

Texts and pairs flow in and come back as they were. It knows nothing of documents' groups. All files lie in one fresh
folder, which `close` removes; a killed run leaves it behind, in a folder that the next run may delete whole.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from batchfact.errors import RunFailedError
from batchfact.records import Pair

SEGMENT_BYTES = 64 << 20
_LENGTH_BYTES = 4
_READ_BYTES = 1 << 20


class SpillFolder:
    """A fresh folder for spill files; leaving the block removes it with all that is in it."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self._path: Path | None = None

    @property
    def path(self) -> Path:
        """The folder, made when it is first asked for: most runs never spill."""
        if self._path is None:
            with _said_plainly(self._parent):
                self._parent.mkdir(parents=True, exist_ok=True)
                self._path = Path(tempfile.mkdtemp(prefix="spill-", dir=self._parent))
        return self._path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)


class Segment:
    """One append-only file of texts, deleted when it takes no more and every text in it was taken back."""

    def __init__(self, path: Path) -> None:
        self.bytes = 0
        self._path = path
        with _said_plainly(path.parent):
            self._file: BinaryIO = path.open("w+b")
        self._live = 0
        self._sealed = False

    @property
    def is_gone(self) -> bool:
        return self._file.closed

    def put(self, text: str) -> Spilled:
        """Raises: RunFailedError where the disk is full."""
        content = text.encode()
        self._file.seek(self.bytes)
        write(self._file, content, self._path)
        spilled = Spilled(self, self.bytes, len(content))
        self.bytes += len(content)
        self._live += 1
        return spilled

    def take(self, start: int, length: int) -> str:
        self._file.seek(start)
        text = self._file.read(length).decode()
        self._live -= 1
        self._drop_if_done()
        return text

    def seal(self) -> None:
        self._sealed = True
        self._drop_if_done()

    def close(self) -> None:
        self._file.close()

    def _drop_if_done(self) -> None:
        if self._sealed and not self._live:
            self.close()
            self._path.unlink(missing_ok=True)


class Spilled:
    """Where a text lies; it can be taken once."""

    __slots__ = ("_length", "_segment", "_start")

    def __init__(self, segment: Segment, start: int, length: int) -> None:
        self._segment, self._start, self._length = segment, start, length

    def take(self) -> str:
        return self._segment.take(self._start, self._length)


class Segments:
    """Texts in first-in-first-out order, roughly: segments are deleted as their texts are taken back."""

    def __init__(self, folder: SpillFolder, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._count = 0
        self._open: list[Segment] = []

    def put(self, text: str) -> Spilled:
        if not self._open or self._open[-1].bytes >= self._segment_bytes:
            if self._open:
                self._open[-1].seal()
            self._open = [segment for segment in self._open if not segment.is_gone]
            self._open.append(Segment(self._folder.path / f"segment-{self._count:06d}"))
            self._count += 1
        return self._open[-1].put(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for segment in self._open:
            segment.close()


class SpilledPair(msgspec.Struct, frozen=True, array_like=True):
    """A pair on disk; `document` is None where it is the one before it's."""

    row: int
    document: str | None
    summary: str
    document_hash: int
    text_hash: int


class PairFile:
    """Pairs appended to one file through a buffer and read back in order. No file stays open between two calls."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.memory_bytes = 0
        """What the pairs take once read back, at most."""
        self.is_mixed = False
        """Whether it holds more than one document."""
        self._buffer: list[bytes] = []
        self._encode = msgspec.msgpack.Encoder().encode
        self._last_document: tuple[int, str] | None = None

    def put(self, pair: Pair) -> int:
        """Returns: bytes that the buffer grew by."""
        document = (pair.document_hash, pair.document)
        is_same = document == self._last_document
        self.is_mixed = self.is_mixed or (self._last_document is not None and not is_same)
        self._last_document = document
        content = self._encode(
            SpilledPair(pair.row, None if is_same else pair.document, pair.summary, pair.document_hash, pair.text_hash)
        )
        self._buffer.append(len(content).to_bytes(_LENGTH_BYTES, "little") + content)
        self.memory_bytes += pair_bytes(pair.summary) + (0 if is_same else pair_bytes(pair.document))
        return len(content) + _LENGTH_BYTES

    def flush(self) -> None:
        """Raises: RunFailedError where the disk is full."""
        if self._buffer:
            with _said_plainly(self.path.parent), self.path.open("ab") as file:
                _write_bytes(file, b"".join(self._buffer))
            self._buffer = []

    def __iter__(self) -> Iterator[Pair]:
        """The pairs in the order they came in; the file is deleted when the last was read."""
        self.flush()
        self._last_document = None
        document = ""
        with self.path.open("rb", buffering=_READ_BYTES) as file:
            while head := file.read(_LENGTH_BYTES):
                record = msgspec.msgpack.decode(file.read(int.from_bytes(head, "little")), type=SpilledPair)
                document = document if record.document is None else record.document
                yield Pair(
                    row=record.row,
                    document=document,
                    summary=record.summary,
                    document_hash=record.document_hash,
                    text_hash=record.text_hash,
                )
        self.path.unlink(missing_ok=True)


def pair_bytes(text: str) -> int:
    """Memory of a text and of what is kept beside it: a string's own size, and a few small objects."""
    return text.__sizeof__() + 200


def write(file: BinaryIO, content: bytes, path: Path) -> None:
    """Raises: RunFailedError where the disk is full or fails."""
    with _said_plainly(path.parent):
        _write_bytes(file, content)


@contextlib.contextmanager
def _said_plainly(folder: Path) -> Iterator[None]:
    """Raises: RunFailedError in place of an OSError."""
    try:
        yield
    except OSError as error:
        raise RunFailedError(
            f"texts cannot be spilled to {folder}: {error}; finished rows are kept, free some space and run the same "
            "command again"
        ) from error


def _write_bytes(file: BinaryIO, content: bytes) -> None:
    # A seam: tests put a full disk here.
    file.write(content)
    file.flush()
