"""Pairs a second of workers with one core each, one and several, beside one process on all cores: on a Ray cluster."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import pyarrow.parquet as pq
from msgspec import Struct

from batchfact.config import Identity
from batchfact.metadata import read_description
from batchfact.settings import default_model
from bench.facts import command_line, without_place, write_result


class Arm(Struct, frozen=True):
    """One way to run: the cores it may use, and its workers; 0 is one process without Ray."""

    name: str
    cores: frozenset[int]
    workers: int


class Run(Struct, frozen=True):
    """What one run took, start-up left out, and the label of each row."""

    pairs_per_s: float
    scoring_s: float
    labels: list[str | None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", type=Path, help="a Parquet file with document and summary; its first rows are taken")
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--model", default=default_model(Identity()))
    parser.add_argument("--rounds", type=int, default=2, help="each in the order of the one before, turned round")


def measure(args: argparse.Namespace) -> None:
    arms = arms_of(sorted(os.sched_getaffinity(0)))
    found: dict[str, list[Run]] = {arm.name: [] for arm in arms}
    with tempfile.TemporaryDirectory(prefix="batchfact-bench-") as name:
        folder = Path(name)
        pq.write_table(pq.read_table(args.input, columns=["document", "summary"])[: args.rows], folder / "in.parquet")
        for number in range(args.rounds):
            for arm in arms if number % 2 == 0 else reversed(arms):
                found[arm.name].append(_run(arm, args.model, folder, number))
    result = {
        "command": command_line("bench", sys.argv[1:]),
        "input": args.input.name,
        "model": without_place(args.model),
        "rows": args.rows,
        "arms": [
            {"arm": arm.name, "cores": len(arm.cores), "workers": arm.workers, **told(found, arm)} for arm in arms
        ],
    }
    write_result("workers", result)
    for arm in result["arms"]:
        print(arm)


def arms_of(cores: Sequence[int]) -> list[Arm]:
    """One worker on one core is what the others are measured against, so it comes first."""
    return [
        Arm("one worker, one core", frozenset(cores[:1]), 1),
        Arm(f"{len(cores)} workers, a core each", frozenset(cores), len(cores)),
        Arm("one process, all cores", frozenset(cores), 0),
    ]


def told(found: dict[str, list[Run]], arm: Arm) -> dict[str, Any]:
    """Mean pace, its ratio to the first arm's, and how many labels are other than the first arm's in its first run."""
    runs, first = found[arm.name], next(iter(found.values()))
    pace = mean(run.pairs_per_s for run in runs)
    return {
        "pairs_per_s": [run.pairs_per_s for run in runs],
        "times_the_first": round(pace / mean(run.pairs_per_s for run in first), 3),
        "scoring_s": [run.scoring_s for run in runs],
        "other_labels": max(sum(a != b for a, b in zip(first[0].labels, run.labels, strict=True)) for run in runs),
    }


def _run(arm: Arm, model: str, folder: Path, number: int) -> Run:
    output = folder / f"{arm.workers}-{len(arm.cores)}-{number}.parquet"
    command = [sys.executable, "-m", "batchfact", "run", str(folder / "in.parquet"), str(output), "--quiet"]
    command += ["--model", model]
    command += ["--executor", "ray", "--workers", str(arm.workers)] if arm.workers else []
    subprocess.run(command, check=True, preexec_fn=lambda: os.sched_setaffinity(0, arm.cores))
    table = pq.read_table(output)
    throughput = read_description(table.schema.metadata)["throughput"]
    return Run(throughput["pairs_per_s"], throughput["scoring_s"], table["batchfact_label"].to_pylist())
