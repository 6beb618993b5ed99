"""A long run, watched from outside: memory, open files and speed must be flat from the first tenth to the last.

Speed is counted by CPU time where the engine is the fake one: then it is what the run costs, whatever else the machine
does meanwhile.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
from msgspec import Struct

from batchfact.config import Identity
from batchfact.run_log import Event, read_log
from bench.facts import command_line, write_result
from bench.inputs import fake_engine_environment, make_fake_model, write_input

SAMPLE_SECONDS = 2.0
TENTHS = 10
FLAT = 1.1
"""Memory and files may grow so much from the third tenth of the scoring to the last; speed may fall so much."""


class Sample(Struct, frozen=True):
    """One look at the run: seconds since its start; of its own process, and of the engine's."""

    at_s: float
    rss_mib: int
    engine_rss_mib: int
    open_files: int
    threads: int
    cpu_s: float
    """Of the run's own process, since its start."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=5_000_000, help="one request each")
    parser.add_argument("--document-bytes", type=int, default=100)
    parser.add_argument("--engine", choices=["fake", "vllm", "transformers"], default="fake")
    parser.add_argument("--model", default=Identity().model, help="of a real engine")
    parser.add_argument("--kv-cache-memory", default=None)
    parser.add_argument("--group", choices=["window", "global", "none"], default="window")


def measure(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="batchfact-soak-") as name:
        folder = Path(name)
        write_input(folder / "in.parquet", args.rows, args.document_bytes)
        started = time.monotonic()
        process = subprocess.Popen(_command(args, folder), cwd=folder, env=fake_engine_environment())
        samples = watch(process, started)
        seconds = time.monotonic() - started
        if process.returncode:
            raise SystemExit(f"the run ended with exit code {process.returncode}")
        events = list(read_log(folder / "out.parquet.journal"))
        rows_written = pq.ParquetFile(folder / "out.parquet").metadata.num_rows
        journal_files = len(list((folder / "out.parquet.journal").iterdir()))
    result: dict[str, Any] = {
        "command": command_line("bench", sys.argv[1:]),
        "engine": args.engine,
        "rows": args.rows,
        "rows_written": rows_written,
        "document_bytes": args.document_bytes,
        "seconds": round(seconds, 1),
        "journal_files": journal_files,
        **describe(samples, events, by_cpu=args.engine == "fake"),
    }
    print(result)
    write_result(f"soak-{args.engine}", result)
    if not result["is_flat"]:
        sys.exit(1)


def describe(samples: Sequence[Sample], events: Sequence[Event], *, by_cpu: bool) -> dict[str, Any]:
    """Tenths of the time of scoring: the highest memory and files, and rows a second; and whether they are flat.

    Args:
        by_cpu: whether flat speed is that by CPU seconds of the run's own process, or by the clock.
    """
    commits = [(event.elapsed_s, event.committed) for event in events if event.event == "committed"]
    began = next(event.elapsed_s for event in events if event.event == "engine_ready")
    ended = commits[-1][0]
    # The log's clock begins when the run has been prepared; both end together, so count from the end.
    offset = samples[-1].at_s - events[-1].elapsed_s
    tenths: list[list[Sample]] = [[] for _ in range(TENTHS)]
    for sample in samples:
        place = (sample.at_s - offset - began) / max(ended - began, 1e-9) * TENTHS
        if 0 <= place < TENTHS:
            tenths[int(place)].append(sample)
    span = (ended - began) / TENTHS
    speeds = [_speed(commits, began + span * tenth, span) for tenth in range(TENTHS)]
    shares = [_cpu_share(tenth) for tenth in tenths]
    by_cpu_s = [speed / share if share else 0.0 for speed, share in zip(speeds, shares, strict=True)]
    judged = by_cpu_s if by_cpu else speeds
    by_tenth: dict[str, list[float]] = {
        name: [max((getattr(each, name) for each in tenth), default=0) for tenth in tenths]
        for name in ("rss_mib", "engine_rss_mib", "open_files", "threads")
    }
    return {
        "scoring_s": round(ended - began, 1),
        "rows_per_s": round(commits[-1][1] / max(ended - began, 1e-9), 1),
        "rows_per_s_by_tenth": [round(speed, 1) for speed in speeds],
        "rows_per_cpu_s_by_tenth": [round(speed, 1) for speed in by_cpu_s],
        **{f"{name}_by_tenth": values for name, values in by_tenth.items()},
        "engine_restarts": sum(event.event == "engine_restarting" for event in events),
        "is_flat": all(is_flat(values) for values in by_tenth.values()) and judged[-1] * FLAT >= judged[2],
    }


def is_flat(values: Sequence[float]) -> bool:
    """Whether the last of ten values is not above the third, but for FLAT: the first two warm up caches and buffers."""
    return values[-1] <= values[2] * FLAT


def _cpu_share(samples: Sequence[Sample]) -> float:
    """How many cores' time the run's own process had, on average."""
    if len(samples) < 2:
        return 0.0
    return (samples[-1].cpu_s - samples[0].cpu_s) / (samples[-1].at_s - samples[0].at_s)


def _speed(commits: Sequence[tuple[float, int]], start: float, span: float) -> float:
    """Rows a second in a span, between commits, which come in parts of thousands."""
    return (_rows_at(commits, start + span) - _rows_at(commits, start)) / max(span, 1e-9)


def _rows_at(commits: Sequence[tuple[float, int]], at: float) -> float:
    """Rows committed at a time, drawn as a line between the commits."""
    before = (0.0, 0)
    for commit in commits:
        if commit[0] >= at:
            share = (at - before[0]) / max(commit[0] - before[0], 1e-9)
            return before[1] + share * (commit[1] - before[1])
        before = commit
    return commits[-1][1]


def watch(process: subprocess.Popen[bytes], started: float) -> list[Sample]:
    """Samples until the process ends."""
    watched = psutil.Process(process.pid)
    samples: list[Sample] = []
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            samples.append(_look(watched, time.monotonic() - started))
        time.sleep(SAMPLE_SECONDS)
    return samples


def _look(watched: psutil.Process, at_s: float) -> Sample:
    engine_rss = 0
    for child in watched.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            engine_rss += child.memory_info().rss
    with watched.oneshot():
        return Sample(
            round(at_s, 1),
            watched.memory_info().rss >> 20,
            engine_rss >> 20,
            watched.num_fds(),
            watched.num_threads(),
            sum(watched.cpu_times()[:2]),
        )


def _command(args: argparse.Namespace, folder: Path) -> list[str]:
    model = make_fake_model(folder) if args.engine == "fake" else args.model
    command = [sys.executable, "-m", "batchfact", "run", "in.parquet", "out.parquet", "--quiet"]
    command += ["--engine", args.engine, "--model", str(model), "--paradigm", "summ-nli", "--group", args.group]
    return command + (["--kv-cache-memory", args.kv_cache_memory] if args.kv_cache_memory else [])
