"""A model's folder that is made on this machine once: by the first process that needs it, while others wait.

The folder appears by one rename, complete or not at all. What is made, and how, is the caller's.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from batchfact.durable import sync
from batchfact.errors import UsageError
from batchfact.models.folder import problem_with


def made_once(name: str, folder: Path, make: Callable[[Path], None]) -> Path:
    """The folder, made first where it is missing or unusable.

    Args:
        make: fills `model/`, which is there, of the scratch folder that it gets.
    Raises: UsageError if the cache cannot be written, and whatever `make` raises.
    """
    if problem_with(folder) is None:
        return folder
    from filelock import FileLock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f"{folder.name}.lock")):
            if problem_with(folder) is not None:
                _make(folder, make)
    except OSError as error:
        raise UsageError(
            f"{name} cannot be written to {folder.parent} ({error.strerror or error}); "
            "make room there, or name another folder with BATCHFACT_CACHE"
        ) from error
    return folder


def _make(folder: Path, make: Callable[[Path], None]) -> None:
    with _draft_of(folder) as draft:
        model = draft / "model"
        model.mkdir()
        make(draft)
        for file in model.iterdir():
            sync(file)  # else a power cut after the rename could leave a complete name with incomplete content
        shutil.rmtree(folder, ignore_errors=True)  # what stood here before was unusable
        model.rename(folder)


@contextlib.contextmanager
def _draft_of(folder: Path) -> Iterator[Path]:
    # One fixed name is enough under the lock, and clears what a killed process left behind.
    draft = folder.with_name(f"{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)
