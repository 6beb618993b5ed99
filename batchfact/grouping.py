"""Pairs to document groups: pairs of one document are brought together, in bounded memory.

Pairs flow in in row order; each leaves exactly once, in a `DocumentGroup` with others of its document. Rejected rows
pass through at once. Nothing is read that the look-ahead does not need. It knows nothing of files of input, paradigms
or engines.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator
from itertools import count
from pathlib import Path

from batchfact.config import Grouping
from batchfact.records import DocumentGroup, Pair, Rejected
from batchfact.spill import PairFile, Segments, Spilled, SpillFolder, pair_bytes

Chunks = Generator[tuple[Pair, ...] | Rejected, None, None]

MAX_GROUP_PAIRS = 256
_FAN_OUT_BITS = 6
_MAX_FAN_OUT_BITS = 9
_HASH_BITS = 64


def group_pairs(
    pairs: Iterable[Pair | Rejected],
    *,
    mode: Grouping,
    look_ahead_rows: int,
    look_ahead_bytes: int,
    spill_dir: Path,
    max_group_pairs: int = MAX_GROUP_PAIRS,
    expected_bytes: int | None = None,
) -> Generator[DocumentGroup | Rejected]:
    """Bring the pairs of one document together.

    Args:
        mode: `none` joins only pairs that follow each other; `window` joins those within `look_ahead_rows` of each
            other, groups leaving in the order of their first pair; `global` joins them wherever they are, after a
            first pass over the whole input.
        look_ahead_rows: pairs held back at most (window).
        look_ahead_bytes: memory for texts; what is above goes to files under `spill_dir`.
        max_group_pairs: a document with more pairs comes as several groups.
        expected_bytes: size of the whole input, if known; it only chooses the number of spill files (global).
    Returns: an iterator whose end or `close()` removes the spill files.
    Raises: RunFailedError, while iterating, where the disk for spill files is full.
    """
    if mode == "none":
        chunks = _follow(pairs, max_group_pairs)
    elif mode == "window":
        chunks = _look_ahead(pairs, look_ahead_rows, look_ahead_bytes, spill_dir, max_group_pairs)
    else:
        chunks = _cluster(pairs, look_ahead_bytes, spill_dir, max_group_pairs, expected_bytes)
    numbers = count()
    try:
        for chunk in chunks:
            yield chunk if isinstance(chunk, Rejected) else DocumentGroup(number=next(numbers), pairs=chunk)
    finally:
        chunks.close()


def _follow(pairs: Iterable[Pair | Rejected], max_pairs: int) -> Chunks:
    """Pairs of one document that follow each other."""
    held: list[Pair] = []
    for pair in pairs:
        if isinstance(pair, Rejected):
            yield pair
            continue
        if held and (len(held) == max_pairs or pair.document != held[0].document):
            yield tuple(held)
            held = []
        held.append(_share(pair, held[0].document) if held else pair)
    if held:
        yield tuple(held)


def _look_ahead(
    pairs: Iterable[Pair | Rejected], max_rows: int, max_bytes: int, spill_dir: Path, max_pairs: int
) -> Chunks:
    """Pairs of one document within `max_rows` of its first, in the order of first pairs."""
    with SpillFolder(spill_dir) as folder, Segments(folder) as segments:
        waiting = Waiting(segments, max_bytes)
        for pair in pairs:
            if isinstance(pair, Rejected):
                yield pair
                continue
            waiting.add(pair)
            while waiting.num_rows >= max_rows:
                yield from waiting.pop(max_pairs)
        while waiting.num_rows:
            yield from waiting.pop(max_pairs)


def _cluster(
    pairs: Iterable[Pair | Rejected], max_bytes: int, spill_dir: Path, max_pairs: int, expected_bytes: int | None
) -> Chunks:
    """Pairs of one document wherever they are: all are spilled by their document's hash, then read part by part."""
    with SpillFolder(spill_dir) as folder:
        bits = _FAN_OUT_BITS
        while expected_bytes and bits < _MAX_FAN_OUT_BITS and expected_bytes >> bits > max_bytes // 4:
            bits += 1
        parts = Partition(folder, max_bytes // 4, bits)
        for pair in pairs:
            if isinstance(pair, Rejected):
                yield pair
            else:
                parts.put(pair)
        yield from _read_parts(parts, max_bytes, max_pairs)


def _read_parts(parts: Partition, max_bytes: int, max_pairs: int) -> Chunks:
    for part in parts.files():
        if not part.is_mixed:
            yield from _follow(part, max_pairs)
        elif part.memory_bytes <= max_bytes or parts.is_last:
            yield from _gather(part, max_pairs)
        else:
            finer = parts.finer()
            for pair in part:
                finer.put(pair)
            yield from _read_parts(finer, max_bytes, max_pairs)


def _gather(pairs: Iterable[Pair], max_pairs: int) -> Chunks:
    groups: OrderedDict[str, list[Pair]] = OrderedDict()
    for pair in pairs:
        group = groups.setdefault(pair.document, [])
        group.append(_share(pair, group[0].document) if group else pair)
    while groups:
        _, group = groups.popitem(last=False)
        yield from (tuple(group[first : first + max_pairs]) for first in range(0, len(group), max_pairs))


def _share(pair: Pair, document: str) -> Pair:
    """The pair with this copy of its document, so that memory holds one."""
    if pair.document is document:
        return pair
    return Pair(
        row=pair.row,
        document=document,
        summary=pair.summary,
        document_hash=pair.document_hash,
        text_hash=pair.text_hash,
    )


class Waiting:
    """The look-ahead: documents in the order they came, each with the summaries seen so far.

    `memory_bytes` counts the texts held in memory: never more than `max_bytes` and the text that came last.
    """

    def __init__(self, segments: Segments, max_bytes: int) -> None:
        self.num_rows = 0
        self.memory_bytes = 0
        self._segments = segments
        self._max_bytes = max_bytes
        # A 64-bit hash and a length stand for the document, which may be on disk. Ordered, since a plain dict that is
        # emptied from its front slows down with every item that was there.
        self._documents: OrderedDict[tuple[int, int], _Held] = OrderedDict()

    def add(self, pair: Pair) -> None:
        key = (pair.document_hash, len(pair.document))
        held = self._documents.get(key)
        if held is None:
            held = self._documents[key] = _Held(pair.document_hash, self._hold(pair.document))
        held.summaries.append((pair.row, pair.text_hash, self._hold(pair.summary)))
        self.num_rows += 1

    def pop(self, max_pairs: int) -> Iterator[tuple[Pair, ...]]:
        """The document that came first, in groups of at most `max_pairs` pairs."""
        _, held = self._documents.popitem(last=False)
        self.num_rows -= len(held.summaries)
        document = self._release(held.document)
        for first in range(0, len(held.summaries), max_pairs):
            yield tuple(
                Pair(
                    row=row,
                    document=document,
                    summary=self._release(summary),
                    document_hash=held.document_hash,
                    text_hash=text_hash,
                )
                for row, text_hash, summary in held.summaries[first : first + max_pairs]
            )

    def _hold(self, text: str) -> str | Spilled:
        size = pair_bytes(text)
        if self.memory_bytes + size > self._max_bytes:
            return self._segments.put(text)
        self.memory_bytes += size
        return text

    def _release(self, text: str | Spilled) -> str:
        if isinstance(text, Spilled):
            return text.take()
        self.memory_bytes -= pair_bytes(text)
        return text


class _Held:
    __slots__ = ("document", "document_hash", "summaries")

    def __init__(self, document_hash: int, document: str | Spilled) -> None:
        self.document_hash = document_hash
        self.document = document
        self.summaries: list[tuple[int, int, str | Spilled]] = []


class Partition:
    """Pairs spread over 2**`bits` files by the bits of their document's hash from `shift` on."""

    def __init__(self, folder: SpillFolder, buffer_bytes: int, bits: int, shift: int = 0, name: str = "part") -> None:
        self._folder, self._buffer_bytes, self._bits, self._shift, self._name = folder, buffer_bytes, bits, shift, name
        self._files: dict[int, PairFile] = {}
        self._buffered_bytes = 0

    @property
    def is_last(self) -> bool:
        """Whether the hash has no bits left that could spread these pairs further."""
        return self._shift + self._bits >= _HASH_BITS

    def put(self, pair: Pair) -> None:
        index = (pair.document_hash >> self._shift) & ((1 << self._bits) - 1)
        file = self._files.get(index)
        if file is None:
            file = self._files[index] = PairFile(self._folder.path / f"{self._name}-{index:03d}")
        self._buffered_bytes += file.put(pair)
        if self._buffered_bytes > self._buffer_bytes:
            self._flush()

    def finer(self) -> Partition:
        """An empty one, for the pairs of one file, by the next bits."""
        return Partition(
            self._folder, self._buffer_bytes, _FAN_OUT_BITS, self._shift + self._bits, f"{self._name}.{self._shift}"
        )

    def files(self) -> Iterator[PairFile]:
        """Each file in turn; it must be read to its end before the next is asked for."""
        self._flush()
        for index in sorted(self._files):
            yield self._files.pop(index)

    def _flush(self) -> None:
        for file in self._files.values():
            file.flush()
        self._buffered_bytes = 0
