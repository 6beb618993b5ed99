"""The command line in a process that kills itself with SIGKILL at a chosen moment.

`python killing.py MOMENT COUNT WORDS...` runs `batchfact WORDS...`. The kill comes at the COUNTth time of MOMENT, or,
for `seconds`, COUNT seconds after the first request. Nothing of the program is replaced: it is watched through
Python's audit events, and through a wrapper that tells when rows were written to a file that is not finished yet.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from batchfact.cli import main

_ONE = r"part-(\d+)-\1\.parquet"
_MANY = r"part-(\d+)-(?!\1\b)\d+\.parquet"
MOMENTS = {
    "request": ("open", r"requests\.log"),
    "part is begun": ("open", _ONE + r"\.tmp"),
    "part is half written": ("rows written", "part"),
    "part is written": ("os.rename", _ONE + r"\.tmp"),
    "compaction is begun": ("open", _MANY + r"\.tmp"),
    "compacted part is written": ("os.rename", _MANY + r"\.tmp"),
    "compacted parts are deleted": ("os.remove", _ONE),
    "output is half written": ("rows written", "output"),
    "output is written": ("os.rename", r"\.out\.parquet\.tmp"),
}
"""For each the audit event and the name of its file."""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def watch(moment: str, count: float) -> Callable[[str, tuple[Any, ...]], None]:
    event, name = MOMENTS["request" if moment == "seconds" else moment]
    pattern = re.compile(name)
    seen = 0

    def hook(happened: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        if happened != event or not isinstance(args[0], str | os.PathLike):
            return
        if pattern.fullmatch(Path(args[0]).name):
            seen += 1
            if moment == "seconds" and seen == 1:
                threading.Timer(count, kill).start()
            elif moment != "seconds" and seen == count:
                kill()

    return hook


def tell_of_rows() -> None:
    write_table = pq.ParquetWriter.write_table

    def wrapped(writer: Any, table: Any, *args: Any, **more: Any) -> None:
        write_table(writer, table, *args, **more)
        sys.audit("rows written", "part" if "payload" in table.schema.names else "output")

    pq.ParquetWriter.write_table = wrapped


if __name__ == "__main__":
    moment, count = sys.argv.pop(1), float(sys.argv.pop(1))
    tell_of_rows()
    sys.addaudithook(watch(moment, count))
    main()
