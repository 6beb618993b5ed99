"""`run.json`: what a journal was made for, and whether another run may go on with it.

Sections of settings flow in and come back as they were; a change of what decides the answers is refused with the
difference named. It knows nothing of parts or rows.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from batchfact.durable import durable_file
from batchfact.errors import UsageError

FORMAT = 1
NAME = "run.json"

_MAX_DIFFERENCES = 10


class RunFile(Struct, frozen=True, kw_only=True):
    """`run.json`: what decides the answers, what decides how they become rows, and the rest."""

    identity: dict[str, Any]
    fold: dict[str, Any]
    runtime: dict[str, Any]
    format: int = FORMAT


def make_run(identity: Mapping[str, Any], fold: Mapping[str, Any], runtime: Mapping[str, Any]) -> RunFile:
    """The sections as they come back from JSON, so that a tuple does not differ from the list it is read as."""
    return RunFile(identity=_plain(identity), fold=_plain(fold), runtime=_plain(runtime))


def read_run(folder: Path) -> RunFile | None:
    """What the journal in `folder` was made for; None where there is no journal.

    Raises: UsageError where run.json is damaged, of another version, or may not be read.
    """
    path = folder / NAME
    try:
        run = msgspec.json.decode(path.read_bytes(), type=RunFile)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}; correct its permissions, or name another journal"
        ) from error
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


def write_run(folder: Path, run: RunFile) -> None:
    """Raises: UsageError where it cannot be written."""
    path = folder / NAME
    try:
        with durable_file(path) as file:
            file.write(msgspec.json.format(msgspec.json.encode(run)))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error}") from error


def refuse_change(folder: Path, was: RunFile, wanted: RunFile) -> None:
    """Raises: UsageError where the identity differs, with the first differences."""
    found = differences(was.identity, wanted.identity)
    if found:
        raise UsageError(
            f"{folder} was made with other settings: {found}. Set them back to go on, name another output, or drop "
            "the finished rows with --restart"
        )


def differences(was: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The first settings in which two sections differ, as words; empty where they do not.

    They are compared as JSON has them: a tuple does not differ from a list.
    """
    found = list(itertools.islice(_differences(_plain(was), _plain(wanted)), _MAX_DIFFERENCES + 1))
    more = ["and more"] if len(found) > _MAX_DIFFERENCES else []
    return "; ".join(found[:_MAX_DIFFERENCES] + more)


def _plain(section: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(msgspec.json.encode(section, enc_hook=str))
    return plain


def _differences(was: Any, wanted: Any, path: str = "") -> Iterator[str]:
    """What differs between two trees of plain values, such as `dtype: "float32" -> "bfloat16"`."""
    if isinstance(was, dict) and isinstance(wanted, dict):
        for key in was | wanted:
            yield from _differences(was.get(key), wanted.get(key), f"{path}.{key}" if path else key)
    elif was != wanted:
        yield f"{path}: {json.dumps(was, ensure_ascii=False)} -> {json.dumps(wanted, ensure_ascii=False)}"
