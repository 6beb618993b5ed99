"""How far vLLM's findings agree with those of the transformers engine, on the same pairs."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pyarrow.parquet as pq

from batchfact.pipeline import RunReport, run
from batchfact.settings import make_config
from bench.facts import command_line, without_place, write_result

ENGINES = ("vllm", "transformers")
MARGIN = 0.02
"""A score nearer to the threshold may fall on either side of it by rounding alone."""

Finding = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", type=Path, help="a Parquet file with document and summary; its first rows are taken")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--model", default=None)
    parser.add_argument("--paradigm", default="sent-nli")
    parser.add_argument("--threshold", type=float, default=0.5)
    parser.add_argument("--dtype", default=None, help="of both engines [what suits the device]")
    parser.add_argument("--kv-cache-memory", default=None, help="of vLLM")


def measure(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="batchfact-bench-") as folder:
        scored = {engine: _score(args, engine, Path(folder)) for engine in ENGINES}
    (first, _), (second, report) = scored.values()
    result: dict[str, Any] = {
        "command": command_line("bench", sys.argv[1:]),
        "input": args.input.name,
        "model": without_place(report.config.identity.model),
        "paradigm": args.paradigm,
        "rows": report.totals.rows,
        "threshold": args.threshold,
        "margin": MARGIN,
        **compare(first, second, args.threshold),
        "runs": {engine: _summary(report) for engine, (_, report) in scored.items()},
    }
    write_result("agreement", result)
    print(
        {name: result[name] for name in ("findings", "clear_findings", "clear_agreement", "kappa", "mean_difference")}
    )


def compare(first: Sequence[Finding], second: Sequence[Finding], threshold: float) -> dict[str, Any]:
    """Agreement of two runs' findings, in the same order; those that either run could not judge are only counted."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a["label"] and b["label"]]
    clear = [(a, b) for a, b in pairs if min(abs(each["score"] - threshold) for each in (a, b)) > MARGIN]
    differences = [abs(a["score"] - b["score"]) for a, b in pairs]
    return {
        "findings": len(first),
        "judged_by_both": len(pairs),
        "other_statuses": sum(a["status"] != b["status"] for a, b in zip(first, second, strict=True)),
        "clear_findings": len(clear),
        "clear_agreement": _share(a["label"] == b["label"] for a, b in clear),
        "agreement": _share(a["label"] == b["label"] for a, b in pairs),
        "kappa": kappa([(a["label"], b["label"]) for a, b in pairs]),
        "mean_difference": sum(differences) / len(differences) if differences else None,
        "largest_difference": max(differences, default=None),
    }


def kappa(labels: Sequence[tuple[str, str]]) -> float | None:
    """Cohen's kappa; None where chance alone would agree on everything."""
    if not labels:
        return None
    names = {name for pair in labels for name in pair}
    observed = sum(a == b for a, b in labels) / len(labels)
    by_chance = sum(
        (sum(a == name for a, _ in labels) / len(labels)) * (sum(b == name for _, b in labels) / len(labels))
        for name in names
    )
    return None if by_chance == 1 else (observed - by_chance) / (1 - by_chance)


def _share(holds: Any) -> float | None:
    found = list(holds)
    return sum(found) / len(found) if found else None


def _score(args: argparse.Namespace, engine: str, folder: Path) -> tuple[list[Finding], RunReport]:
    output = folder / f"{engine}.parquet"
    options = {
        "engine": engine,
        "model": args.model,
        "paradigm": args.paradigm,
        "threshold": args.threshold,
        "dtype": args.dtype,
        "limit": args.rows,
        "kv-cache-memory": args.kv_cache_memory if engine == "vllm" else None,
        "reasoning": False,  # two engines' texts part at the first near-tie, and labels after them say nothing
    }
    report = anyio.run(run, make_config((str(args.input),), str(output), options))
    column = pq.read_table(output, columns=["batchfact_findings"])["batchfact_findings"]
    return [finding for row in column.to_pylist() for finding in row or ()], report


def _summary(report: RunReport) -> dict[str, Any]:
    return {
        "statuses": report.totals.statuses,
        "labels": report.totals.labels,
        "pairs_per_s": report.progress.pairs_per_s,
        "scoring_s": round(report.progress.scoring_s, 1),
        "prompt_tokens": report.totals.usage.prompt,
        "cached_tokens": report.totals.usage.cached,
    }
