"""The command line in processes that kill themselves with SIGKILL at a chosen moment, or have a disk that is full.

`python killing.py`: for each line on standard input, a JSON object as `serve` describes it, the command line is run in
a fork of this process, which has imported everything; its exit status goes out. Nothing of the program is replaced: it
is watched through Python's audit events, and through wrappers that tell when rows are read from the input, and when
they were written to a file that is not finished yet.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from batchfact.cli import main
from batchfact.text.sentences import sentences

_ONE = r"part-(\d+)-\1\.parquet"
_MANY = r"part-(\d+)-(?!\1\b)\d+\.parquet"
MOMENTS = {
    "request": ("open", r"requests\.log"),
    "run.json is written": ("os.rename", r"run\.json\.tmp"),
    "input is read": ("rows read", "input"),
    "spill file is opened": ("open", r"segment-\d+|.+-\d{3}"),
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
PRELOADED = (
    *("anyio._backends._asyncio", "batchfact.cli.display", "batchfact.pipeline", "batchfact_fake", "rich.console"),
    *("pandas", "platformdirs", "pyarrow.pandas_compat", "typer._adapters"),
)
"""What a run imports when it begins: in a fork it is there already."""


def watch(moment: str, count: float) -> Callable[[str, tuple[Any, ...]], None]:
    event, name = MOMENTS[moment]
    pattern = re.compile(name)
    seen = 0

    def hook(happened: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        if happened != event or not isinstance(args[0], str | os.PathLike):
            return
        if pattern.fullmatch(Path(args[0]).name):
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


def tell_of_rows() -> None:
    write_table = pq.ParquetWriter.write_table

    def wrapped(writer: Any, table: Any, *args: Any, **more: Any) -> None:
        write_table(writer, table, *args, **more)
        sys.audit("rows written", "part" if "payload" in table.schema.names else "output")

    pq.ParquetWriter.write_table = wrapped
    iter_batches = pq.ParquetFile.iter_batches

    def watched(file: Any, *args: Any, **more: Any) -> Iterator[Any]:
        for batch in iter_batches(file, *args, **more):
            sys.audit("rows read", "journal" if "payload" in file.schema_arrow.names else "input")
            yield batch

    pq.ParquetFile.iter_batches = watched


def serve() -> None:
    """Fork for each line: `words` of the command line, `folder`, `stderr` (a file), and what is to go wrong.

    `moment` and `count`: killed at the COUNTth time of MOMENT; `after_s`: so many seconds after the start;
    `max_file_bytes`: the longest file that the system lets it write, as on a full disk.
    """
    for name in PRELOADED:
        importlib.import_module(name)
    sentences("Splitters load. Their tables, too.")
    tell_of_rows()
    for line in sys.stdin:
        run = json.loads(line)
        child = os.fork()
        if child == 0:
            be_run(run)
        timer = threading.Timer(run.get("after_s", 3600), os.kill, (child, signal.SIGKILL))
        timer.start()
        _, status = os.waitpid(child, 0)
        timer.cancel()
        print(os.waitstatus_to_exitcode(status), flush=True)


def be_run(run: dict[str, Any]) -> None:
    """The forked process: never returns."""
    code: Any = 1
    try:
        os.chdir(run["folder"])
        os.dup2(os.open(run["stderr"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        os.dup2(2, 1)
        if "max_file_bytes" in run:
            resource.setrlimit(resource.RLIMIT_FSIZE, (run["max_file_bytes"], resource.RLIM_INFINITY))
        if "moment" in run:
            sys.addaudithook(watch(run["moment"], run["count"]))
        sys.argv = ["batchfact", *run["words"]]
        main()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001  a fork must not go on where its parent was
        traceback.print_exc()
    os._exit(code or 0)


if __name__ == "__main__":
    serve()
