"""Parquet to pairs: the only reader of the user's input.

Paths, folders, globs and URIs flow in; numbered `Pair`s, and `Rejected` rows with their reason, flow out, a bounded
batch at a time. It knows nothing of documents' groups, models or outputs. Whatever can be wrong with a file as a whole
is found from the footers in `open_source`, before anything slow starts.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from msgspec import Struct

from batchfact.errors import RunFailedError, UsageError, nearest
from batchfact.records import Pair, PairStatus, Rejected

MAX_BATCH_ROWS = 1024
BATCH_BYTES = 16 << 20
"""A batch is cut to about this many bytes of decoded values, so that rows of megabytes stay bounded too."""

_PROBE_ROWS = 16
_LOCAL_BUFFER_BYTES = 1 << 20
_REMOTE_BUFFER_BYTES = 8 << 20
_MAGIC = b"PAR1"
_URI = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")
_GLOB = re.compile(r"[*?\[]")


class Shard(Struct, frozen=True, kw_only=True):
    """One input file: `name` is its path below what the shards have in common, `first_row` counts over all shards."""

    filesystem: Any
    path: str
    name: str
    rows: int
    first_row: int
    bytes: int
    footer: str
    """Hex digest of the Parquet footer: it changes with any rewriting of the file."""


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
    found = [_find(given) for given in inputs]
    files = [(each.filesystem, path) for each in found for path in each.paths]
    _refuse_doubles(files)
    with ThreadPoolExecutor(max_workers=8) as threads:
        footers = list(threads.map(lambda file: _read_footer(*file), files))
    _check_schemas(files, [footer.schema for footer in footers], document_column, summary_column)
    shards, first_row = [], 0
    for (filesystem, path), name, footer in zip(files, _names([path for _, path in files]), footers, strict=True):
        shards.append(
            Shard(
                filesystem=filesystem,
                path=path,
                name=name,
                rows=footer.rows,
                first_row=first_row,
                bytes=footer.bytes,
                footer=footer.digest,
            )
        )
        first_row += footer.rows
    return Source(
        shards,
        footers[0].schema,
        document_column=document_column,
        summary_column=summary_column,
        is_folder=len(files) > 1 or any(each.is_folder for each in found),
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
            yield Rejected(row=row, text_hash=text_hash, status=fault[0], message=fault[1])


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
            f"{shard.path} cannot be read any more: {error}; finished rows are kept, restore the file and run again"
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


# Finding files


class _Found(NamedTuple):
    filesystem: pafs.FileSystem
    paths: list[str]
    is_folder: bool


def open_filesystem(given: str) -> tuple[pafs.FileSystem, str]:
    """The file system and the path in it of a path or URI.

    Raises: UsageError where no file system answers to the URI.
    """
    if not _URI.match(given):
        return pafs.LocalFileSystem(), os.path.normpath(Path(given).expanduser().absolute())
    try:
        filesystem, path = pafs.FileSystem.from_uri(given)
    except (OSError, ValueError, ImportError, pa.ArrowException) as error:
        raise UsageError(f"{given} cannot be opened: {error}") from error
    return filesystem, path


def _find(given: str) -> _Found:
    before, _, pattern = _split_glob(given)
    filesystem, path = open_filesystem(given if not pattern or _exists_here(given) else before)
    try:
        if pattern and not _exists_here(given):
            paths = _match(filesystem, path, pattern)
            if not paths:
                raise UsageError(f"no file matches {given}")
            return _Found(filesystem, paths, True)
        kind = filesystem.get_file_info(path).type
        if kind == pafs.FileType.NotFound:
            raise UsageError(f"input {given} does not exist{_near_file(given)}")
        if kind == pafs.FileType.Directory:
            return _Found(filesystem, _shards_in(filesystem, path, given), True)
    except OSError as error:
        raise UsageError(f"input {given} cannot be opened: {error}") from error
    return _Found(filesystem, [path], False)


def _exists_here(given: str) -> bool:
    return not _URI.match(given) and Path(given).expanduser().exists()


def _split_glob(given: str) -> tuple[str, str, str]:
    """The folder before the first part with a wildcard, the slash, and the pattern from there on."""
    magic = _GLOB.search(given)
    if magic is None:
        return given, "", ""
    before, slash, _ = given[: magic.start()].rpartition("/")
    return (before or slash or "."), slash, given[len(before) + len(slash) :]


def _match(filesystem: pafs.FileSystem, folder: str, pattern: str) -> list[str]:
    parts = pattern.split("/")
    selector = pafs.FileSelector(folder, recursive=len(parts) > 1, allow_not_found=True)
    files = [info.path for info in filesystem.get_file_info(selector) if info.type == pafs.FileType.File]
    return sorted(path for path in files if _matches(posixpath.relpath(path, folder).split("/"), parts))


def _matches(names: list[str], parts: list[str]) -> bool:
    if not parts or not names:
        return not parts and not names
    if parts[0] == "**":
        return _matches(names, parts[1:]) or (_is_shown(names[0]) and _matches(names[1:], parts))
    if not _is_shown(names[0]) and _GLOB.match(parts[0]):
        return False
    return fnmatchcase(names[0], parts[0]) and _matches(names[1:], parts[1:])


def _is_shown(name: str) -> bool:
    """Hidden names and `_SUCCESS` and its like are no input, and no journal of ours that lies between the shards is."""
    return not name.startswith((".", "_")) and not name.endswith(".journal")


def _shards_in(filesystem: pafs.FileSystem, folder: str, given: str) -> list[str]:
    infos = filesystem.get_file_info(pafs.FileSelector(folder))
    shards = sorted(
        info.path
        for info in infos
        if info.type == pafs.FileType.File and _is_shown(info.base_name) and info.base_name.endswith(".parquet")
    )
    if not shards:
        nested = any(info.type == pafs.FileType.Directory and _is_shown(info.base_name) for info in infos)
        hint = f"; it has folders in it, for shards in those give '{given.rstrip('/')}/**/*.parquet'" if nested else ""
        raise UsageError(f"folder {given} holds no *.parquet file{hint}")
    return shards


def _near_file(given: str) -> str:
    path = Path(given).expanduser()
    return nearest(path.name, [other.name for other in path.parent.iterdir()]) if path.parent.is_dir() else ""


def _refuse_doubles(files: list[tuple[pafs.FileSystem, str]]) -> None:
    twice = [path for path, times in Counter(path for _, path in files).items() if times > 1]
    if twice:
        raise UsageError(f"{twice[0]} is given twice; each input file may be read once")


def _names(paths: list[str]) -> list[str]:
    """Each path below the folder that all share; files of different file systems may need a number to differ."""
    folder = posixpath.commonpath([posixpath.dirname(path) or "." for path in paths]) if _share_root(paths) else ""
    names = [posixpath.relpath(path, folder) if folder else posixpath.basename(path) for path in paths]
    if len(set(names)) < len(names):
        return [f"{index:05d}-{posixpath.basename(path)}" for index, path in enumerate(paths)]
    return names


def _share_root(paths: list[str]) -> bool:
    return len({posixpath.isabs(path) for path in paths}) == 1


# Checking files


class _Footer(NamedTuple):
    schema: pa.Schema
    rows: int
    bytes: int
    digest: str


def _read_footer(filesystem: pafs.FileSystem, path: str) -> _Footer:
    try:
        with filesystem.open_input_file(path) as file:
            size = file.size()
            footer = _footer_bytes(file, size, path)
        with pq.ParquetFile(path, filesystem=filesystem, pre_buffer=False) as parquet:
            _check_extent(parquet.metadata, size, path)
            return _Footer(
                parquet.schema_arrow, parquet.metadata.num_rows, size, blake2b(footer, digest_size=8).hexdigest()
            )
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"{path} cannot be read as Parquet: {error}") from error


def _footer_bytes(file: Any, size: int, path: str) -> bytes:
    head = file.read_at(4, 0) if size >= 4 else b""
    tail = file.read_at(8, size - 8) if size >= 12 else b""
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] == _MAGIC and length <= size - 12:
        footer: bytes = file.read_at(length, size - 8 - length)
        return footer
    if size == 0:
        raise UsageError(f"{path} is empty (0 bytes), not a Parquet file")
    if head == _MAGIC:
        raise UsageError(
            f"{path} is a Parquet file that was cut off ({size:,} bytes, no footer); copy or write it again"
        )
    if b"PARE" in (head, tail[4:]):
        raise UsageError(f"{path} is an encrypted Parquet file; decrypt it first")
    raise UsageError(f"{path} is not a Parquet file; convert it first, for example with pandas' to_parquet")


def _check_extent(metadata: pq.FileMetaData, size: int, path: str) -> None:
    """Pages that the footer places beyond the file's end: the file was cut and joined, or its head is lost."""
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for column in range(row_group.num_columns):
            chunk = row_group.column(column)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            if start + chunk.total_compressed_size > size:
                raise UsageError(f"{path} is damaged: row group {group} lies beyond the end of the file")


def _check_schemas(
    files: list[tuple[pafs.FileSystem, str]], schemas: list[pa.Schema], document_column: str, summary_column: str
) -> None:
    for (_, path), schema in zip(files, schemas, strict=True):
        _check_column(path, schema, document_column, "--document-column")
        _check_column(path, schema, summary_column, "--summary-column")
        difference = _difference(schemas[0], schema, {document_column, summary_column})
        if difference:
            raise UsageError(f"{path} differs from {files[0][1]}: {difference}; all shards need one schema")


def _check_column(path: str, schema: pa.Schema, column: str, option: str) -> None:
    times = schema.names.count(column)
    if times == 0:
        there = ", ".join(schema.names) or "none"
        raise UsageError(
            f"{path} has no column {column!r}; its columns are {there}{nearest(column, schema.names)} ({option})"
        )
    if times > 1:
        raise UsageError(f"{path} has {times} columns named {column!r}; rename all but one")
    kind = schema.field(column).type
    if not _is_text(kind):
        raise UsageError(f"column {column!r} of {path} is {kind}, not text; {_way_out(kind)} ({option})")


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_null(kind)
    )


def _way_out(kind: pa.DataType) -> str:
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "cast it to string"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "join each list into one string"
    if pa.types.is_struct(kind):
        return "move the field with the text into a column of its own"
    return "name a column that holds text"


def _difference(first: pa.Schema, other: pa.Schema, text_columns: set[str]) -> str:
    """What differs between two shards' columns, as words; a column that is all null in one shard does not."""
    if first.names != other.names:
        missing = [name for name in first.names if name not in other.names]
        added = [name for name in other.names if name not in first.names]
        if missing:
            return f"it has no column {missing[0]!r}"
        return f"it has a column {added[0]!r} too" if added else "its columns have another order"
    for left, right in zip(first, other, strict=True):
        both_text = left.name in text_columns
        some_null = pa.types.is_null(left.type) or pa.types.is_null(right.type)
        if left.type != right.type and not both_text and not some_null:
            return f"its column {left.name!r} is {right.type}, not {left.type}"
    return ""
