"""Host memory and stage speed over simulated inputs of growing length, with an engine that answers at once."""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from bench.facts import ROOT, write_result

FAKE_ENGINE = ROOT / "tests" / "fake_engine"
ROWS_A_GROUP = 20_000
PAIRS_A_DOCUMENT = 4
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
            "command": "python -m bench " + " ".join(sys.argv[1:]),
            "input": {"document_bytes": args.document_bytes, "pairs_a_document": PAIRS_A_DOCUMENT},
            "paradigm": args.paradigm,
            "runs": runs,
        },
    )


def _measure_run(folder: Path, rows: int, args: argparse.Namespace) -> dict[str, Any]:
    source = folder / f"{rows}.parquet"
    _write_input(source, rows, args.document_bytes)
    command = [sys.executable, "-m", "batchfact", "run", str(source), str(folder / f"{rows}-out.parquet"), "--quiet"]
    command += ["--engine", "fake", "--model", str(_fake_model(folder))]
    command += ["--group", args.group, "--paradigm", args.paradigm]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(FAKE_ENGINE), str(ROOT)])}
    started = time.monotonic()
    process = subprocess.Popen(command, env=environment)
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


def _fake_model(folder: Path) -> Path:
    """A folder that looks like a model to everything but a real engine."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (model / "tokenizer.json").write_text("{}")
    return model


def _write_input(path: Path, rows: int, document_bytes: int) -> None:
    schema = pa.schema([("document", pa.string()), ("summary", pa.string())])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for first in range(0, rows, ROWS_A_GROUP):
            pairs = list(_pairs(first, min(rows, first + ROWS_A_GROUP), document_bytes))
            documents, summaries = zip(*pairs, strict=True)
            writer.write_table(pa.table({"document": documents, "summary": summaries}, schema=schema))


def _pairs(first: int, stop: int, document_bytes: int) -> Iterator[tuple[str, str]]:
    """Documents of made-up words; each summary has three sentences, one of them from the document."""
    document, sentences = "", [""]
    for row in range(first, stop):
        if row % PAIRS_A_DOCUMENT == 0 or not document:
            draw = random.Random(row // PAIRS_A_DOCUMENT)
            words = [f"w{draw.getrandbits(16):x}" for _ in range(document_bytes // 5)]
            sentences = [" ".join(words[start : start + 12]).capitalize() + "." for start in range(0, len(words), 12)]
            document = " ".join(sentences)[:document_bytes]
        yield document, f"{sentences[row % len(sentences)]} Row {row} has a fact. It was sold on day {row % 365}."
