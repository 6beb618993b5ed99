"""Which documents one run of a job array scores: `--shard i/n`.

Text such as `2/8` flows in, a `JobShard` flows out. A hash of the document decides, so that all rows of a document,
also those that cannot be scored, are on one shard, whatever order they come in. Files of an input folder are called
shards too; a job shard has nothing to do with them.
"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from batchfact.errors import UsageError

MAX_COUNT = 256
"""So many journals, and their locks, can be open at once where a process may have 1,024 files."""

_HASH_BITS = 64
FOLDER_NAME = re.compile(r"shard-(\d+)-of-(\d+)")


class JobShard(Struct, frozen=True):
    """Shard `index` of `count`, counted from 1."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_COUNT:
            raise UsageError(f"--shard {self}: an array may have 1 to {MAX_COUNT} shards")
        if not 1 <= self.index <= self.count:
            way_out = "; where the array counts from 0, add 1" if self.index == 0 else ""
            raise UsageError(
                f"--shard {self}: there are the shards 1/{self.count} to {self.count}/{self.count}{way_out}"
            )

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @property
    def folder(self) -> str:
        """Name of its journal, below the journal's folder that all shards share."""
        return f"shard-{self.index}-of-{self.count}"

    def holds(self, document_hash: int) -> bool:
        """Whether the document is scored on this shard.

        The hash's highest bits decide: its lowest ones spread documents over spill files.
        """
        return (document_hash * self.count) >> _HASH_BITS == self.index - 1


def shard_folders(folder: Path) -> list[Path]:
    """What lies in the folder that shards share, by their names; each may be a journal."""
    if not folder.is_dir():
        return []
    named = [(FOLDER_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    return [path for _, _, path in sorted((int(match[2]), int(match[1]), path) for match, path in named if match)]


def parse_shard(text: object) -> JobShard:
    """`2/8` as a shard.

    Raises: UsageError for anything else, also for a shard that the array does not have.
    """
    match = re.fullmatch(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", text) if isinstance(text, str) else None
    if match is None:
        raise UsageError(f"--shard takes i/n, such as 1/4 for the first of four, got {text!r}")
    return JobShard(int(match[1]), int(match[2]))
