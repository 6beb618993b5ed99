"""What object stores need that folders do not: waits that end, a test write, and publishing instead of renaming.

A URI flows in, a file system of pyarrow's flows out; a finished local file or folder becomes objects. It knows nothing
of Parquet. S3 and its like (MinIO, Ceph, R2) are tested; other stores go through pyarrow as they are.
"""

from __future__ import annotations

import os
import posixpath
import re
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pafs

from batchfact.errors import UsageError, nearest

IS_URI = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")

TRIES = 4
CONNECT_TIMEOUT_S = 10
SILENCE_TIMEOUT_S = 30
"""A request that moves no byte for so long is given up; so is one that failed TRIES times."""

_FLAT = frozenset({"s3", "gcs", "abfs"})
_S3_QUERY = ("endpoint_override", "region", "scheme")
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def open_store(uri: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a URI, and the path in it.

    Raises: UsageError where no file system answers to it, and for a URI with a password or key: run.json, logs and the
        output's metadata hold URIs as they are.
    """
    parts = urlsplit(uri, allow_fragments=False)  # a key may hold a #
    if parts.password is not None or (parts.scheme == "s3" and parts.username is not None):
        raise UsageError(
            f"a {parts.scheme}:// URI holds a key or password, which would be written into logs and metadata; leave it "
            "out, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials"
        )
    try:
        if parts.scheme != "s3":
            filesystem, path = pafs.FileSystem.from_uri(uri)
            return filesystem, path
        settings = _s3_settings(uri, parts.query)
        if "region" not in settings and "endpoint_override" not in settings:
            settings["region"] = pafs.resolve_s3_region(parts.netloc)
        return _s3(tuple(sorted(settings.items()))), (parts.netloc + unquote(parts.path)).rstrip("/")
    except (OSError, ValueError, ImportError, pa.ArrowException) as error:
        raise UsageError(f"{uri} cannot be opened: {error}") from error


def _s3_settings(uri: str, query: str) -> dict[str, str]:
    """The URI's settings; a server that it does not name may be named by the variables that all S3 clients know."""
    settings = dict(parse_qsl(query))
    for name in settings:
        if name not in _S3_QUERY:
            raise UsageError(f"{uri}: an s3:// URI has no setting {name!r}{nearest(name, _S3_QUERY)}")
    endpoint = next(filter(None, map(os.environ.get, _ENDPOINT_VARIABLES)), None)
    if endpoint and "endpoint_override" not in settings:
        server = urlsplit(endpoint)
        settings |= {"endpoint_override": server.netloc, "scheme": server.scheme}
    return settings


@lru_cache(maxsize=16)
def _s3(settings: tuple[tuple[str, str], ...]) -> pafs.S3FileSystem:
    """One for all files of a server, so that they share its connections and compare as equal."""
    return pafs.S3FileSystem(
        **dict(settings),
        connect_timeout=CONNECT_TIMEOUT_S,
        request_timeout=SILENCE_TIMEOUT_S,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=TRIES),
    )


def reason(error: BaseException) -> str:
    """A store's error as one line, with what to look at."""
    line = str(error).splitlines()[0] if str(error) else type(error).__name__
    hints = {
        "NO_SUCH_BUCKET": "create the bucket first",
        "ACCESS_DENIED": "check the credentials and their rights",
        "INVALID_ACCESS_KEY": "check the credentials",
        "INVALID_CLIENT_TOKEN_ID": "check the credentials",
        "SIGNATURE_DOES_NOT_MATCH": "check the credentials",
        "NETWORK_CONNECTION": "check the server's address",
    }
    return line + "".join(f"; {hint}" for name, hint in hints.items() if f"AWS Error {name}" in line)


def refuse_unwritable(filesystem: pafs.FileSystem, path: str, output: str) -> None:
    """Write a small object beside `path` and delete it: no other question tells whether that is allowed.

    Raises: UsageError where it fails.
    """
    if filesystem.type_name not in _FLAT:
        return
    probe = posixpath.join(posixpath.dirname(path), f".batchfact-probe-{uuid4().hex}")
    try:
        with filesystem.open_output_stream(probe) as stream:
            stream.write(b"batchfact tests whether it may write here")
        filesystem.delete_file(probe)
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"output {output} cannot be written: {reason(error)}") from error


def publish(local: Path, filesystem: pafs.FileSystem, path: str) -> None:
    """Make a finished local file or folder appear in a store; what was under its name is replaced.

    An object shows when its last byte is there, so a file is whole or not there; a folder's files show one after the
    other, and those of a former output that it does not have go last, so that a failure deletes nothing.
    Raises: OSError where the store fails.
    """
    if filesystem.type_name not in _FLAT:
        filesystem.create_dir(posixpath.dirname(path))
    local_files: Any = pafs.LocalFileSystem()
    pafs.copy_files(str(local), path, source_filesystem=local_files, destination_filesystem=filesystem)
    if local.is_dir():
        _delete_others(filesystem, path, {each.relative_to(local).as_posix() for each in local.rglob("*")})


def _delete_others(filesystem: pafs.FileSystem, folder: str, names: set[str]) -> None:
    """Delete the folder's files that have other names than these, which are paths below it."""
    for info in filesystem.get_file_info(pafs.FileSelector(folder, recursive=True)):
        if info.type == pafs.FileType.File and posixpath.relpath(info.path, folder) not in names:
            filesystem.delete_file(info.path)
