"""Files that are whole under their name or not there, also after a kill or a power cut.

A path flows in, a file to write to flows out; the name appears by one rename once the content is on the disk. It knows
nothing of what is written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".tmp"
"""What the name of an unfinished file ends with; a killed process leaves it behind."""


@contextlib.contextmanager
def durable_file(path: Path) -> Iterator[BinaryIO]:
    """A file that becomes `path` at the end of the block and vanishes on an error.

    Raises: OSError where the disk is full or fails.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync(path.parent)
    except Exception:  # whatever went wrong, it is raised again
        temporary.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Make what was written to a file, or renamed in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
