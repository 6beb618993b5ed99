"""The user's input files: found by path, folder, glob or URI, and checked by their footers.

What the user named flows in; open file systems, paths and checked footers flow out. No text is read here. Whatever can
be wrong with a file as a whole is found before anything slow starts.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from msgspec import Struct

from batchfact.errors import UsageError, nearest
from batchfact.object_stores import IS_URI, open_store, reason

_MAGIC = b"PAR1"
_GLOB = re.compile(r"[*?\[]")


class Shard(Struct, frozen=True, kw_only=True):
    """One input file: `name` is its path below what the shards have in common, `first_row` counts over all shards."""

    filesystem: Any
    path: str
    name: str
    rows: int
    first_row: int
    bytes: int
    text_bytes: int
    """Size of the two text columns, compressed as they are."""
    plain_text_bytes: int
    """The same uncompressed; a text that a dictionary page holds once for many rows counts once."""
    footer: str
    """Hex digest of the Parquet footer: it changes with any rewriting of the file."""


class Inputs(NamedTuple):
    """The checked files in reading order; `schema` is the first one's."""

    shards: list[Shard]
    schema: pa.Schema
    is_folder: bool


def find_inputs(given: Sequence[str], *, document_column: str, summary_column: str) -> Inputs:
    """Find the files and check them by their footers.

    Raises: UsageError for a missing, cut or foreign file, shards of different schemas, and a column that is missing,
        doubled or holds no text.
    """
    files, is_folder = _list(given)
    footers = _read_footers(files, {document_column, summary_column})
    _check_schemas(files, [footer.schema for footer in footers], document_column, summary_column)
    return Inputs(_shards(files, footers), footers[0].schema, is_folder)


def find_files(given: Sequence[str]) -> list[tuple[Shard, pa.Schema]]:
    """The files behind some paths, folders, globs and URIs, checked by their footers, each with its own schema.

    Raises: UsageError for a missing, cut or foreign file, and one that is there twice.
    """
    files, _ = _list(given)
    footers = _read_footers(files, set())
    return list(zip(_shards(files, footers), [footer.schema for footer in footers], strict=True))


def _list(given: Sequence[str]) -> tuple[list[tuple[pafs.FileSystem, str]], bool]:
    """The files in reading order, and whether they count as a folder."""
    found = [_find(each) for each in given]
    files = [(each.filesystem, path) for each in found for path in each.paths]
    _refuse_doubles(files)
    return files, len(files) > 1 or any(each.is_folder for each in found)


def _shards(files: list[tuple[pafs.FileSystem, str]], footers: Sequence[_Footer]) -> list[Shard]:
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
                text_bytes=footer.text_bytes,
                plain_text_bytes=footer.plain_text_bytes,
                footer=footer.digest,
            )
        )
        first_row += footer.rows
    return shards


def list_files(given: str) -> tuple[pafs.FileSystem, list[str]]:
    """The files of a path, folder, glob or URI in reading order, with their file system; no file is opened.

    Raises: UsageError where there are none.
    """
    found = _find(given)
    return found.filesystem, found.paths


def content_digest(given: str) -> str:
    """Hex digest over all bytes of the files, in reading order: a footer may stay the same where values change.

    Raises: UsageError where one cannot be read.
    """
    filesystem, paths = list_files(given)
    digest = blake2b(digest_size=16)
    try:
        for path in paths:
            with filesystem.open_input_file(path) as file:
                digest.update(file.size().to_bytes(8, "little"))
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
    except OSError as error:
        raise UsageError(f"{given} cannot be read: {error}") from error
    return digest.hexdigest()


def open_filesystem(given: str) -> tuple[pafs.FileSystem, str]:
    """The file system and the path in it of a path or URI.

    Raises: UsageError where no file system answers to the URI, or it holds a password.
    """
    if IS_URI.match(given):
        return open_store(given)
    return pafs.LocalFileSystem(), os.path.normpath(Path(given).expanduser().absolute())


# Finding


class _Found(NamedTuple):
    filesystem: pafs.FileSystem
    paths: list[str]
    is_folder: bool


def _find(given: str) -> _Found:
    before, pattern, query = _split_glob(given)
    filesystem, path = open_filesystem(given if not pattern or _exists_here(given) else before + query)
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
        raise UsageError(f"input {given} cannot be opened: {reason(error)}") from error
    return _Found(filesystem, [path], False)


def _exists_here(given: str) -> bool:
    return not IS_URI.match(given) and Path(given).expanduser().exists()


def _split_glob(given: str) -> tuple[str, str, str]:
    """The folder before the first part with a wildcard, the pattern from there on, and a URI's query."""
    place, mark, query = given.partition("?") if IS_URI.match(given) else (given, "", "")
    magic = _GLOB.search(place)
    if magic is None:
        return place, "", mark + query
    before, slash, _ = place[: magic.start()].rpartition("/")
    return (before or slash or "."), place[len(before) + len(slash) :], mark + query


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


# Checking


class _Footer(NamedTuple):
    schema: pa.Schema
    rows: int
    bytes: int
    text_bytes: int
    plain_text_bytes: int
    digest: str


def _read_footers(files: list[tuple[pafs.FileSystem, str]], columns: set[str]) -> list[_Footer]:
    with ThreadPoolExecutor(max_workers=8) as threads:
        return list(threads.map(lambda file: _read_footer(file[0], file[1], columns), files))


def _read_footer(filesystem: pafs.FileSystem, path: str, columns: set[str]) -> _Footer:
    try:
        with filesystem.open_input_file(path) as file:
            size = file.size()
            footer = _footer_bytes(file, size, path)
        with pq.ParquetFile(path, filesystem=filesystem, pre_buffer=False) as parquet:
            _check_extent(parquet.metadata, size, path)
            compressed, plain = _column_bytes(parquet.metadata, columns)
            return _Footer(
                schema=parquet.schema_arrow,
                rows=parquet.metadata.num_rows,
                bytes=size,
                text_bytes=compressed,
                plain_text_bytes=plain,
                digest=blake2b(footer, digest_size=8).hexdigest(),
            )
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"{path} cannot be read as Parquet: {reason(error)}") from error


def _column_bytes(metadata: pq.FileMetaData, columns: set[str]) -> tuple[int, int]:
    """Size of some columns, compressed as they are and uncompressed."""
    compressed = plain = 0
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for index in range(row_group.num_columns):
            chunk = row_group.column(index)
            if chunk.path_in_schema in columns:
                compressed += chunk.total_compressed_size
                plain += chunk.total_uncompressed_size
    return compressed, plain


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
        check_text_column(path, schema, document_column, "--document-column")
        check_text_column(path, schema, summary_column, "--summary-column")
        difference = _difference(schemas[0], schema, {document_column, summary_column})
        if difference:
            raise UsageError(f"{path} differs from {files[0][1]}: {difference}; all shards need one schema")


def check_text_column(path: str, schema: pa.Schema, column: str, option: str) -> None:
    """Raises: UsageError for a column that is missing, doubled or holds no text."""
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
