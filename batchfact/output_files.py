"""The user's output: whether it may be written, and its writing, complete under its name or not there.

A path or URI flows in; a name to write to flows out, which becomes the output at the end. It knows nothing of what is
written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow.fs as pafs

from batchfact.disk_space import nearest_folder
from batchfact.durable import sync
from batchfact.errors import UsageError
from batchfact.object_stores import publish, reason
from batchfact.source import Source


def output_kind(filesystem: pafs.FileSystem, path: str, output: str) -> pafs.FileType:
    try:
        return filesystem.get_file_info(path).type
    except OSError as error:
        raise UsageError(f"output {output} cannot be reached: {reason(error)}") from error


def refuse_input(source: Source, filesystem: pafs.FileSystem, path: str, output: str) -> None:
    for shard in source.shards:
        if shard.filesystem != filesystem:
            continue
        local = isinstance(filesystem, pafs.LocalFileSystem)
        ours, theirs = (os.path.realpath(each) if local else each for each in (path, shard.path))
        if ours == theirs:
            raise UsageError(f"output {output} is the input; name another output")
        if source.is_folder and theirs.startswith(ours.rstrip("/") + "/"):
            raise UsageError(f"output folder {output} holds the input {shard.path}; name another output")


def refuse_overwriting(output: Path, inputs: Iterable[Path]) -> None:
    """Raises: UsageError where a file that is read, or a file in a folder that is read, would be written over."""
    ours = output.resolve()
    for each in inputs:
        theirs = each.resolve()
        if ours == theirs or (theirs in ours.parents and ours.exists()):
            raise UsageError(f"output {output} is an input; name another output")


def check_folder(folder: Path, output: str) -> None:
    """The folder may be missing, with its parents: it is made when the output is written."""
    there = nearest_folder(folder)
    if not there.is_dir():
        raise UsageError(f"output {output} cannot be written: {there} is not a folder")
    try:  # permissions do not tell: not those of a read-only file system, nor root's on a network's
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise UsageError(f"output {output} cannot be written: {there}: {error.strerror}; name another place") from error


@contextlib.contextmanager
def whole_output(filesystem: pafs.FileSystem, path: str, spool: Path | None = None) -> Iterator[Path]:
    """A local path to write to, which becomes `path` at the end of the block and vanishes on an error.

    Object stores have no rename, and pyarrow closes what it has begun to write even after an error, which would publish
    a cut file. So what goes there lies in the local folder `spool` (by default that for temporary files) until it is
    whole.
    """
    if not isinstance(filesystem, pafs.LocalFileSystem):
        if spool is not None:
            spool.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=spool) as folder:
            written = Path(folder) / "output"
            yield written
            publish(written, filesystem, path)
        return
    final = Path(path).resolve()  # what a link names is replaced, not the link
    temporary = final.with_name(f".{final.name}.tmp")
    final.parent.mkdir(parents=True, exist_ok=True)
    _remove(temporary)
    try:
        yield temporary
        _replace(temporary, final)
    except BaseException:
        _remove(temporary)
        raise


def _replace(temporary: Path, final: Path) -> None:
    former = final.with_name(f".{final.name}.old")
    if final.is_dir():
        # A folder cannot be renamed over another: the old one steps aside first.
        _remove(former)
        final.rename(former)
    temporary.replace(final)
    sync(final.parent)
    _remove(former)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
