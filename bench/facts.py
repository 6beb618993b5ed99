"""What a result needs to be compared with another: its command, versions, machine, commit."""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from batchfact.metadata import versions

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[1]
FOLDERS = re.compile(r"(?<![\w:/.])/(?:[^\s/'\"]+/)+")
MEASURED = (":/", ":(top,exclude)bench/results", ":(top,exclude)*.md")
"""What of the repository can change a figure: results and documents, which measurements write, do not."""


def command_line(module: str, words: Sequence[str]) -> str:
    """The command of a result, `python -m MODULE WORDS`, with no path of this machine in it.

    All files of one kind in a folder are told as the pattern that a shell made them of.
    """
    told: list[str] = []
    for folder, same in itertools.groupby(words, _folder_of):
        run = list(same)
        kind = Path(run[0]).suffix
        is_all = folder is not None and {Path(word).resolve() for word in run} == set(folder.glob(f"*{kind}"))
        told += (
            [f"{without_place(str(folder))}/*{kind}"]
            if len(run) > 1 and is_all
            else map(shlex.quote, map(without_place, run))
        )
    return " ".join(["python -m", module, *told])


def _folder_of(word: str) -> Path | None:
    """Where a file lies; None for a word that names none."""
    return Path(word).resolve().parent if word and os.path.isfile(word) else None  # noqa: PTH113  # as above


def without_place(word: str) -> str:
    """An argument as results have it: a path relative to the repository's root, or its name alone if it lies outside.

    Paths are what is absolute, or a file or folder that exists; the value of --option=PATH too. All else stays.
    """
    option, equals, value = word.partition("=")
    if equals and option.startswith("--"):
        return f"{option}={without_place(value)}"
    path = Path(word)
    if not (path.is_absolute() or (word and os.path.exists(word))):  # noqa: PTH110  # Path raises for long notes
        return word
    path, root = path.resolve(), ROOT.resolve()
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name


def without_folders(text: str) -> str:
    """A message as results have it: of absolute paths in it, the last names alone."""
    return FOLDERS.sub("", text)


def facts() -> dict[str, Any]:
    """Date, commit, versions and machine, as they are now."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no", "--", *MEASURED)),
        "versions": versions(),
        "machine": {
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "gpus": _gpu_names(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "system": platform.platform(),
        },
    }


def write_result(name: str, result: dict[str, Any], made_with: dict[str, Any] | None = None) -> Path:
    """Write one measurement; prints where. `made_with` are the `facts` of its beginning, where it is written often."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**result, **(made_with or facts())}, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path.relative_to(ROOT)}")
    return path


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False).stdout.strip()


def _gpu_names() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
