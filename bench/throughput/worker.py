"""One arm in a process of its own: `python -m bench.throughput.worker TASK.json RECORD.json`."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from bench.throughput.arms import ARMS
from bench.throughput.task import ArmUnavailableError, Result, decode_task


def main() -> None:
    task_file, result_file = map(Path, sys.argv[1:])
    task = decode_task(task_file.read_bytes())
    try:
        result = Result(record=ARMS[task.arm].load()(task))
    except ArmUnavailableError as error:
        result = Result(not_run=str(error))
    result_file.write_bytes(msgspec.json.encode(result))


if __name__ == "__main__":  # vLLM's processes import this file again
    main()
