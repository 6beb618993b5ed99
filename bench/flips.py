"""How many labels change with the order of rows, the batch and the prefix cache, and how near the threshold."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from batchfact.config import Identity
from batchfact.pipeline import run
from batchfact.settings import make_config
from bench.facts import command_line, without_place, write_result

BANDS = (0.001, 0.005, 0.01, 0.02, 0.05)
"""Distances from the threshold."""
ROW = "bench_row"

Scores = dict[int, tuple[float | None, ...]]
"""For each row its findings' scores, in their order; None for one that was not judged."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", type=Path, help="a Parquet file with document and summary; its first rows are taken")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--model", default=Identity().model)
    parser.add_argument("--paradigm", default="sent-nli")
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--kv-cache-memory", default=None)
    parser.add_argument("--threshold", type=float, default=0.5)
    parser.add_argument("--deterministic", action="store_true")


def measure(args: argparse.Namespace) -> None:
    table = pq.read_table(args.input, columns=["document", "summary"])[: args.rows]
    table = table.append_column(ROW, pa.array(range(table.num_rows)))
    shuffled = table.take(np.random.default_rng(1).permutation(table.num_rows))
    narrow = {"engine-arg": {"max_num_seqs": "8"}}
    variants: dict[str, tuple[pa.Table, dict[str, Any]]] = {
        "the same again": (table, {}),
        "rows shuffled": (shuffled, {}),
        "rows shuffled, not brought together": (shuffled, {"group": "none"}),
        "at most 8 sequences at once": (table, narrow),
    }
    if args.engine == "vllm":
        variants["without the prefix cache"] = table, {"engine-arg": {"enable_prefix_caching": "false"}}
    with tempfile.TemporaryDirectory(prefix="batchfact-bench-") as name:
        base = _score(args, table, {}, Path(name) / "base")
        found = {
            variant: compare(base, _score(args, rows, options, Path(name) / str(place)), args.threshold)
            for place, (variant, (rows, options)) in enumerate(variants.items())
        }
    result: dict[str, Any] = {
        "command": command_line("bench", sys.argv[1:]),
        "input": args.input.name,
        "model": without_place(args.model),
        "paradigm": args.paradigm,
        "engine": args.engine,
        "rows": table.num_rows,
        "threshold": args.threshold,
        "deterministic": args.deterministic,
        "variants": found,
    }
    print(result)
    write_result(f"flips-{args.paradigm}{'-deterministic' * args.deterministic}", result)


def compare(base: Scores, other: Scores, threshold: float) -> dict[str, Any]:
    """Differences of two runs on the same rows.

    Returns: counts over findings that both judged, and over rows. `flips_within` counts, for each distance from the
    threshold, findings that lie so near in the first run, and those of them whose label is another in the second.
    """
    pairs = [
        (one, two)
        for row, scores in base.items()
        for one, two in zip(scores, other[row], strict=True)
        if one is not None and two is not None
    ]
    flips = [(one, two) for one, two in pairs if (one >= threshold) != (two >= threshold)]
    differences = [abs(one - two) for one, two in pairs]
    return {
        "findings": len(pairs),
        "judged_by_one_alone": sum(
            (one is None) != (two is None)
            for row, scores in base.items()
            for one, two in zip(scores, other[row], strict=True)
        ),
        "equal_bits": sum(one == two for one, two in pairs),
        "mean_difference": sum(differences) / len(differences) if differences else None,
        "largest_difference": max(differences, default=None),
        "flipped_findings": len(flips),
        "flipped_share": len(flips) / len(pairs) if pairs else None,
        "farthest_flip": max((abs(one - threshold) for one, _ in flips), default=None),
        "rows_with_another_label": sum(
            _label(scores, threshold) != _label(other[row], threshold) for row, scores in base.items()
        ),
        "flips_within": {
            str(band): {
                "findings": sum(abs(one - threshold) <= band for one, _ in pairs),
                "flips": sum(abs(one - threshold) <= band for one, _ in flips),
            }
            for band in BANDS
        },
    }


def _label(scores: Sequence[float | None], threshold: float) -> bool | None:
    """The row's label under the fold `any`; None where it has none."""
    judged = [score for score in scores if score is not None]
    if any(score < threshold for score in judged):
        return False
    return True if judged and len(judged) == len(scores) else None


def _score(args: argparse.Namespace, table: pa.Table, options: dict[str, Any], folder: Path) -> Scores:
    folder.mkdir()
    pq.write_table(table, folder / "in.parquet")
    given = {
        "engine": args.engine,
        "model": args.model,
        "paradigm": args.paradigm,
        "threshold": args.threshold,
        "dtype": args.dtype,
        "kv-cache-memory": args.kv_cache_memory,
        "reasoning": False,  # a text that parts at a near-tie would hide what the label's own numbers do
        "deterministic": args.deterministic,
        **options,
    }
    config = make_config((str(folder / "in.parquet"),), str(folder / "out.parquet"), given)
    anyio.run(run, config)
    scored = pq.read_table(folder / "out.parquet", columns=[ROW, "batchfact_findings"]).to_pylist()
    return {row[ROW]: tuple(each["score"] for each in row["batchfact_findings"] or ()) for row in scored}
