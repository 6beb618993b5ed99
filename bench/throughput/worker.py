"""One arm in a process of its own: `python -m bench.throughput.worker TASK.json RECORD.json`."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from bench.throughput.arms import ARMS
from bench.throughput.task import ArmRecord, ArmUnavailableError, Task


class Result(msgspec.Struct, kw_only=True):
    """What the process leaves: a record, or why this arm is not for here."""

    record: ArmRecord | None = None
    not_run: str | None = None


def main() -> None:
    task_file, result_file = map(Path, sys.argv[1:])
    task = msgspec.json.decode(task_file.read_bytes(), type=Task)
    try:
        result = Result(record=ARMS[task.arm].load()(task))
    except ArmUnavailableError as error:
        result = Result(not_run=str(error))
    result_file.write_bytes(msgspec.json.encode(result))


if __name__ == "__main__":  # vLLM's processes import this file again
    main()
