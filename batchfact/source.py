"""Parquet to pairs: the only reader of the user's input.

Paths, folders, globs and URIs flow in; numbered `Pair`s, and `Rejected` rows with their reason, flow out, a bounded
batch at a time. It knows nothing of documents' groups, models or outputs. What can be wrong with a file as a whole is
found by `input_files`, in `open_source`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from batchfact.errors import RunFailedError, UsageError
from batchfact.input_files import Shard, find_inputs
from batchfact.object_stores import reason
from batchfact.records import Pair, PairStatus, Rejected

__all__ = ["BATCH_BYTES", "MAX_BATCH_ROWS", "Shard", "Source", "open_source", "row_hashes", "rows_of"]

MAX_BATCH_ROWS = 1024
BATCH_BYTES = 16 << 20
"""A batch is cut to about this many bytes of decoded values, so that rows of megabytes stay bounded too."""

_PROBE_ROWS = 16
_LOCAL_BUFFER_BYTES = 1 << 20
_REMOTE_BUFFER_BYTES = 8 << 20


class Source:
    """The checked input: its shards in reading order, and the rows in them as streams."""

    def __init__(
        self,
        shards: Sequence[Shard],
        schema: pa.Schema,
        *,
        document_column: str,
        summary_column: str,
        is_folder: bool,
    ) -> None:
        self.shards = tuple(shards)
        self.schema = schema
        self.document_column = document_column
        self.summary_column = summary_column
        self.is_folder = is_folder

    @property
    def num_rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Size of the files, as compressed as they are."""
        return sum(shard.bytes for shard in self.shards)

    @property
    def text_bytes(self) -> int:
        """Size of documents and summaries in the files, as compressed as they are."""
        return sum(shard.text_bytes for shard in self.shards)

    @property
    def plain_text_bytes(self) -> int:
        """The same uncompressed, at least: what a dictionary page holds once for many rows counts once."""
        return sum(shard.plain_text_bytes for shard in self.shards)

    def fingerprint(self) -> dict[str, Any]:
        """What tells this input from another, for the run's identity; where it lies does not count."""
        return {shard.name: {"rows": shard.rows, "bytes": shard.bytes, "footer": shard.footer} for shard in self.shards}

    def pairs(self, start: int = 0, stop: int | None = None) -> Iterator[Pair | Rejected]:
        """Rows `start` to `stop` (excluded) in input order, numbered over all shards.

        Raises: RunFailedError where a file cannot be read after all.
        """
        stop = self.num_rows if stop is None else min(stop, self.num_rows)
        columns = [self.document_column, self.summary_column]
        for shard in self.shards:
            low, high = max(start - shard.first_row, 0), min(stop - shard.first_row, shard.rows)
            if low < high:
                yield from _number(
                    (
                        texts
                        for batch in _read_batches(shard, columns, low, high)
                        for texts in zip(*self.texts(batch), strict=True)
                    ),
                    shard.first_row + low,
                )

    def batches(self, shard: Shard) -> Iterator[pa.RecordBatch]:
        """All columns of one shard in their own types, a bounded batch at a time, for the merge.

        Raises: RunFailedError where the file cannot be read after all.
        """
        return _read_batches(shard, None, 0, shard.rows)

    def texts(self, batch: pa.RecordBatch) -> tuple[list[bytes | None], list[bytes | None]]:
        """The raw bytes of a batch's documents and summaries."""
        return _raw(batch, self.document_column), _raw(batch, self.summary_column)

    def documents_among(self, documents: Collection[str]) -> frozenset[str]:
        """Those of `documents` that are in the input, byte for byte.

        One pass over the document column, compared inside Arrow; it ends early where all of them are found.
        Raises: RunFailedError where a file cannot be read after all.
        """
        wanted = pa.array([document.encode() for document in documents], pa.large_binary())
        found: set[str] = set()
        for shard in self.shards:
            for batch in _read_batches(shard, [self.document_column], 0, shard.rows):
                column = batch.column(0).cast(pa.large_binary())
                found |= {each.decode() for each in column.filter(pc.is_in(column, value_set=wanted)).to_pylist()}
                if len(found) == len(documents):
                    return frozenset(found)
        return frozenset(found)

    def schema_of(self, shard: Shard) -> pa.Schema:
        """One shard's own schema with its metadata."""
        with _open_parquet(shard) as file:
            return file.schema_arrow


def open_source(inputs: Sequence[str], *, document_column: str = "document", summary_column: str = "summary") -> Source:
    """Find the input files and check them by their footers; no text is read.

    Args:
        inputs: files, folders of `*.parquet` shards, globs, or URIs that pyarrow's file systems open.
    Raises: UsageError for a missing, cut or foreign file, shards of different schemas, and a column that is missing,
        doubled or holds no text.
    """
    if not inputs:
        raise UsageError("no input was given; name a Parquet file, a folder of shards or a glob")
    if document_column == summary_column:
        raise UsageError(
            f"--document-column and --summary-column both name {document_column!r}; they must be two columns"
        )
    found = find_inputs(inputs, document_column=document_column, summary_column=summary_column)
    return Source(
        found.shards,
        found.schema,
        document_column=document_column,
        summary_column=summary_column,
        is_folder=found.is_folder,
    )


def rows_of(texts: Iterable[tuple[str | None, str | None]], first_row: int = 0) -> Iterator[Pair | Rejected]:
    """Rows from (document, summary) texts already in memory, with the checks and hashes that a file's rows get."""
    return _number(((_encode(document), _encode(summary)) for document, summary in texts), first_row)


def row_hashes(documents: Sequence[bytes | None], summaries: Sequence[bytes | None]) -> list[int]:
    """The text_hash of each row, from its raw bytes."""
    hashes, previous, digest = [], None, _digest(None)
    for document, summary in zip(documents, summaries, strict=True):
        if document != previous:
            previous, digest = document, _digest(document)
        hashes.append(_text_hash(digest, summary))
    return hashes


# Rows


class _Document(NamedTuple):
    """A document's text, decoded and hashed once for a run of rows that share it."""

    content: bytes | None
    text: str
    digest: bytes
    hash: int
    fault: tuple[PairStatus, str] | None


def _number(texts: Iterable[tuple[bytes | None, bytes | None]], first_row: int) -> Iterator[Pair | Rejected]:
    document = _read_document(None)
    for row, (content, summary) in enumerate(texts, first_row):
        if content != document.content:
            document = _read_document(content)
        text_hash = _text_hash(document.digest, summary)
        text, fault = _decode("summary", summary)
        fault = document.fault or fault
        if fault is None:
            yield Pair(row=row, document=document.text, summary=text, document_hash=document.hash, text_hash=text_hash)
        else:
            yield Rejected(
                row=row,
                document_hash=document.hash,
                text_hash=text_hash,
                status=fault[0],
                message=fault[1],
            )


def _read_document(content: bytes | None) -> _Document:
    text, fault = _decode("document", content)
    digest = _digest(content)
    return _Document(content, text, digest, int.from_bytes(digest, "little"), fault)


def _decode(column: str, content: bytes | None) -> tuple[str, tuple[PairStatus, str] | None]:
    """The text, or why there is none. NUL and other control characters are legal text; lone surrogates are not."""
    empty: PairStatus = "empty_document" if column == "document" else "empty_summary"
    if content is None:
        return "", (empty, f"The {column} is null.")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        return "", ("invalid_text", f"The {column} is not valid UTF-8 at byte {error.start}.")
    if not text or text.isspace():
        return "", (empty, f"The {column} is {'blank' if text else 'empty'}.")
    return text, None


def _encode(text: str | None) -> bytes | None:
    # A lone surrogate becomes the bytes that a careless writer would have put into the file: refused alike.
    return None if text is None else text.encode("utf-8", "surrogatepass")


def _digest(content: bytes | None) -> bytes:
    return blake2b(content, digest_size=8).digest() if content is not None else b"\0" * 8


def _text_hash(document_digest: bytes, summary: bytes | None) -> int:
    """Hash of both texts; the document stands in it by its digest, which a run of rows shares."""
    marked = document_digest if summary is None else document_digest + b"\x01" + summary
    return int.from_bytes(blake2b(marked, digest_size=8).digest(), "little")


# Reading


def _raw(batch: pa.RecordBatch, column: str) -> list[bytes | None]:
    # large_binary: no check of the bytes' encoding yet, and offsets that a batch of long texts cannot overflow.
    array = batch.column(batch.schema.get_field_index(column)).cast(pa.large_binary())
    values: list[bytes | None] = array.to_numpy(zero_copy_only=False).tolist()
    return values


def _read_batches(shard: Shard, columns: list[str] | None, low: int, high: int) -> Iterator[pa.RecordBatch]:
    """Rows `low` to `high` of a shard. Only row groups that hold some of them are touched."""
    try:
        with _open_parquet(shard) as file:
            _refuse_another(file, shard)
            first = 0
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if first < high and first + rows > low:
                    yield from _read_group(file, group, columns, max(low - first, 0), min(high - first, rows))
                first += rows
    except (OSError, pa.ArrowException) as error:
        raise RunFailedError(
            f"{shard.path} cannot be read any more: {reason(error)}; finished rows are kept, restore the file and run "
            "again"
        ) from error


def _refuse_another(file: pq.ParquetFile, shard: Shard) -> None:
    # Fewer rows than were promised would end the stream early, and the output with it.
    if file.metadata.num_rows != shard.rows:
        raise RunFailedError(
            f"{shard.path} was replaced during the run: it had {shard.rows:,} rows and has {file.metadata.num_rows:,}; "
            "finished rows are kept, put the first file back and run again"
        )


def _read_group(
    file: pq.ParquetFile, group: int, columns: list[str] | None, low: int, high: int
) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in file.iter_batches(_batch_rows(file, group, columns), row_groups=[group], columns=columns):
        if first + batch.num_rows > low and first < high:
            start = max(low - first, 0)
            yield batch.slice(start, min(high - first, batch.num_rows) - start)
        first += batch.num_rows
        if first >= high:
            return


def _batch_rows(file: pq.ParquetFile, group: int, columns: list[str] | None) -> int:
    """Rows that make about BATCH_BYTES.

    The footer's sizes tell, except for values that repeat: a dictionary page holds a long document once for many rows.
    There the first few rows are read as a sample.
    """
    meta = file.metadata.row_group(group)
    chunks = [meta.column(index) for index in range(meta.num_columns)]
    chosen = [chunk for chunk in chunks if columns is None or chunk.path_in_schema.partition(".")[0] in columns]
    row_bytes = sum(chunk.total_uncompressed_size for chunk in chosen) / max(meta.num_rows, 1)
    if any(chunk.has_dictionary_page for chunk in chosen) and meta.num_rows > _PROBE_ROWS:
        for sample in file.iter_batches(_PROBE_ROWS, row_groups=[group], columns=columns):
            row_bytes = max(row_bytes, sample.nbytes / _PROBE_ROWS)
            break
    return int(min(MAX_BATCH_ROWS, max(1, BATCH_BYTES // max(row_bytes, 1))))


def _open_parquet(shard: Shard) -> pq.ParquetFile:
    local = isinstance(shard.filesystem, pafs.LocalFileSystem)
    # Without pre_buffer and with a buffer, a column of a 2 GiB row group is read piece by piece, not at once.
    return pq.ParquetFile(
        shard.path,
        filesystem=shard.filesystem,
        pre_buffer=False,
        buffer_size=_LOCAL_BUFFER_BYTES if local else _REMOTE_BUFFER_BYTES,
        page_checksum_verification=True,
    )
