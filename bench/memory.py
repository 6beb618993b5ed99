"""Host memory and stage speed over simulated inputs of growing length, with an engine that answers at once."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from bench.facts import command_line, write_result
from bench.inputs import PAIRS_A_DOCUMENT, fake_engine_environment, make_fake_model, write_input

SAMPLE_SECONDS = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--document-bytes", type=int, default=2048)
    parser.add_argument("--group", choices=["window", "global", "none"], default="window")
    parser.add_argument("--paradigm", default="sent-nli")


def measure(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="batchfact-bench-") as folder:
        runs = [_measure_run(Path(folder), rows, args) for rows in args.rows]
    write_result(
        f"memory-{args.group}",
        {
            "command": command_line("bench", sys.argv[1:]),
            "input": {"document_bytes": args.document_bytes, "pairs_a_document": PAIRS_A_DOCUMENT},
            "paradigm": args.paradigm,
            "runs": runs,
        },
    )


def _measure_run(folder: Path, rows: int, args: argparse.Namespace) -> dict[str, Any]:
    source = folder / f"{rows}.parquet"
    write_input(source, rows, args.document_bytes)
    command = [sys.executable, "-m", "batchfact", "run", str(source), str(folder / f"{rows}-out.parquet"), "--quiet"]
    command += ["--engine", "fake", "--model", str(make_fake_model(folder))]
    command += ["--group", args.group, "--paradigm", args.paradigm]
    started = time.monotonic()
    process = subprocess.Popen(command, env=fake_engine_environment())
    samples = _sample(process)
    elapsed = time.monotonic() - started
    if process.returncode:
        raise SystemExit(f"the run over {rows} rows ended with exit code {process.returncode}")
    written = pq.ParquetFile(folder / f"{rows}-out.parquet").metadata.num_rows
    run = {
        "rows": rows,
        "rows_written": written,
        "peak_rss_mib": round(max(samples) / 2**20),
        "rss_mib_by_tenth": [round(samples[len(samples) * tenth // 10] / 2**20) for tenth in range(10)],
        "seconds": round(elapsed, 1),
        "rows_per_s": round(rows / elapsed, 1),
        "input_mib": round(source.stat().st_size / 2**20),
    }
    print(run, flush=True)
    return run


def _sample(process: subprocess.Popen[bytes]) -> list[int]:
    """Resident memory of the process, in bytes, until it ends."""
    watched, samples = psutil.Process(process.pid), [0]
    while process.poll() is None:
        try:
            samples.append(watched.memory_info().rss)
        except psutil.NoSuchProcess:
            break
        time.sleep(SAMPLE_SECONDS)
    process.wait()
    return samples
