"""Runs of the real command line in forks of one process, each with something that goes wrong: see `killing.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import msgspec

KILLING = Path(__file__).with_name("killing.py")


class Ended(msgspec.Struct, frozen=True):
    """`code` is negative for a signal."""

    code: int
    said: str


class CrashServer:
    """One process that has imported everything; a run in a fork of it takes a tenth of a run by itself."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self._process = subprocess.Popen(
            [sys.executable, str(KILLING)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, folder: Path, *words: object, **faults: Any) -> Ended:
        """`batchfact run WORDS...` in `folder`, with the fake engine; waits for its end."""
        said = folder / "said.txt"
        said.unlink(missing_ok=True)
        command = ["run", *map(str, words), "--engine", "fake", "--model", str(self.model), "--quiet"]
        request = {"words": command, "folder": str(folder), "stderr": str(said), **faults}
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Ended(int(self._process.stdout.readline()), said.read_text(errors="replace"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)
