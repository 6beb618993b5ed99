"""The real command line with the fake engine behind its entry point."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

PAIRS = [(f"Document {i // 2}. It is about item {i // 2}.", f"Item {i}. Sold {i}.") for i in range(40)]


class CommandLine:
    """Runs `python -m batchfact` with the fake engine and model unless told otherwise."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model = model
        self.folder = folder

    def args(self, *words: object) -> list[str]:
        return [sys.executable, "-m", "batchfact", *map(str, words)]

    def run_args(self, *words: object) -> list[str]:
        return self.args("run", *words, "--engine", "fake", "--model", self.model)

    def __call__(self, *words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.args(*words), cwd=self.folder, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def run(self, *words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        return self(*self.run_args(*words)[3:], code=code)


def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def verdicts(path: Path) -> list[tuple[Any, ...]]:
    return [
        (row["summary"], row["batchfact_label"], row["batchfact_score"], row["batchfact_status"]) for row in rows(path)
    ]
