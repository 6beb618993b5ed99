"""A model's identity: one hash over the files that decide its answers.

A folder flows in, a hash flows out. Hashing 14 GB takes long, so each file's hash of a large model is remembered in the
cache with the size and time of change that it was taken at.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

import msgspec
from msgspec import Struct

from batchfact.models.folder import model_files
from batchfact.models.paths import cache_folder

REMEMBERED_BYTES = 64 << 20
"""A smaller model is hashed in the time that it takes to look: no reason to leave a file behind for each."""


class _Hashed(Struct, frozen=True, array_like=True):
    size: int
    mtime_ns: int
    sha256: str


def model_digest(folder: Path) -> str:
    """SHA-256 (64 hex digits) over names and contents of the configuration, the weights and the tokenizer.

    It does not depend on where the folder lies.

    Raises: OSError if the folder or a file of it cannot be read.
    """
    path = cache_folder() / "digests" / f"{hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]}.json"
    known = _read(path)
    hashed = {file.name: _hash_of(file, known.get(file.name)) for file in model_files(folder)}
    if hashed != known and sum(each.size for each in hashed.values()) >= REMEMBERED_BYTES:
        _write(path, hashed)
    lines = "".join(f"{each.sha256}  {name}\n" for name, each in sorted(hashed.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash_of(file: Path, known: _Hashed | None) -> _Hashed:
    state = file.stat()
    if known and (known.size, known.mtime_ns) == (state.st_size, state.st_mtime_ns):
        return known
    return _Hashed(state.st_size, state.st_mtime_ns, file_sha256(file))


def _read(path: Path) -> dict[str, _Hashed]:
    # A memory that is absent or damaged only costs the time to hash again.
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(path.read_bytes(), type=dict[str, _Hashed])
    return {}


def _write(path: Path, hashed: dict[str, _Hashed]) -> None:
    # Likewise a cache that cannot be written: the digest itself is right.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as draft:
            draft.write(msgspec.json.encode(hashed))
        Path(draft.name).replace(path)
