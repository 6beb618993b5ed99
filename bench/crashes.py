"""Kills a real run with SIGKILL several times, resumes it, and compares with a run that was left alone."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from batchfact.config import Identity
from batchfact.errors import BatchfactError
from bench.facts import command_line, write_result

POLL_SECONDS = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", type=Path)
    parser.add_argument("--model", default=Identity().model)
    parser.add_argument("--paradigm", default="sent-nli")
    parser.add_argument("--reference", type=Path, help="an output of a run that was left alone; else one is made")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--part-seconds", type=float, default=5, help="how often finished rows are committed")


def measure(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="batchfact-bench-") as name:
        folder = Path(name)
        options = folder / "options.toml"
        options.write_text(f"part_seconds = {args.part_seconds}\n")
        words = ["--model", args.model, "--paradigm", args.paradigm, "--config", str(options), "--quiet"]
        command = [sys.executable, "-m", "batchfact", "run", str(args.input)]
        whole = args.reference or folder / "whole.parquet"
        if not args.reference:
            subprocess.run([*command, str(whole), *words], check=True)
        kills = [_kill_midway([*command, str(folder / "out.parquet"), *words], folder) for _ in range(args.kills)]
        subprocess.run([*command, str(folder / "out.parquet"), *words], check=True)
        result = {
            "command": command_line("bench", sys.argv[1:]),
            "input": args.input.name,
            "paradigm": args.paradigm,
            "parts_in_the_journal_at_each_kill": kills,
            **_compare(whole, folder / "out.parquet"),
            "files_left": sorted(path.name for path in folder.iterdir() if "tmp" in path.name),
        }
    print(result)
    write_result(f"crashes-{args.paradigm}", result)


def _kill_midway(command: list[str], folder: Path) -> int:
    """Start the run, wait for two new parts, kill it; gives the number of parts it left."""
    journal = folder / "out.parquet.journal"
    before = _num_parts(journal)
    process = subprocess.Popen(command)
    while _num_parts(journal) < before + 2:
        if process.poll() is not None:
            raise BatchfactError("the run ended before it could be killed; lower --part-seconds or take more rows")
        time.sleep(POLL_SECONDS)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return _num_parts(journal)


def _num_parts(journal: Path) -> int:
    return len(list(journal.glob("part-*.parquet")))


def _compare(whole: Path, resumed: Path) -> dict[str, Any]:
    left, right = pq.read_table(whole), pq.read_table(resumed)
    own = [name for name in left.column_names if name.startswith("batchfact_")]
    inputs = [name for name in left.column_names if name not in own]
    scores = zip(left["batchfact_score"].to_pylist(), right["batchfact_score"].to_pylist(), strict=True)
    return {
        "rows": [left.num_rows, right.num_rows],
        "input_columns_equal": left.select(inputs) == right.select(inputs),
        "labels_equal": left["batchfact_label"] == right["batchfact_label"],
        "statuses_equal": left["batchfact_status"] == right["batchfact_status"],
        "largest_score_difference": max((abs(a - b) for a, b in scores if a is not None and b is not None), default=0),
    }
