"""Prompt tokens that the engine computed, against the fewest that any order could: unique blocks of all prompts."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pyarrow.parquet as pq

from batchfact import preparation
from batchfact.assembly import Assembler
from batchfact.config import Identity, RunConfig, Runtime
from batchfact.paradigms.program import Running
from batchfact.pipeline import run
from batchfact.records import Pair
from bench.facts import command_line, write_result

BLOCK_TOKENS = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", type=Path, help="a Parquet file with document and summary; it is shuffled first")
    parser.add_argument("--model", default=Identity().model)
    # The bound knows first requests only, so paradigms with follow-ups are left out.
    parser.add_argument("--paradigm", choices=["summ-nli", "sent-nli"], default="sent-nli")
    parser.add_argument("--kv-share", type=float, default=0.25, help="KV cache as a share of the unique prompt tokens")
    parser.add_argument("--kv-bytes-a-token", type=int, default=46_080, help="of the model at its dtype")
    parser.add_argument("--group", choices=["window", "global", "none"], default="window")
    parser.add_argument("--seed", type=int, default=0)


def measure(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="batchfact-bench-") as name:
        folder = Path(name)
        table = pq.read_table(args.input)
        order = np.random.default_rng(args.seed).permutation(table.num_rows)
        pq.write_table(table.take(order), folder / "shuffled.parquet")
        config = _config(args, folder)
        prepared = preparation.prepare(config)
        requests, unique_tokens, bound = _lower_bound(prepared)
        kv_tokens = max(int(unique_tokens * args.kv_share), prepared.method.spec.max_model_len or 0)
        kv_bytes = kv_tokens * args.kv_bytes_a_token
        report = anyio.run(run, _config(args, folder, kv_bytes))
    usage = report.totals.usage
    computed = usage.prompt - usage.cached
    result: dict[str, Any] = {
        "command": command_line("bench", sys.argv[1:]),
        "input": args.input.name,
        "rows": report.totals.rows,
        "statuses": report.totals.statuses,
        "requests": requests,
        "kv_tokens": kv_tokens,
        "unique_tokens": unique_tokens,
        "lower_bound_tokens": bound,
        "prompt_tokens": usage.prompt,
        "computed_tokens": computed,
        "computed_to_lower_bound": round(computed / bound, 4),
        "scoring_seconds": round(report.progress.scoring_s, 1),
    }
    print(result)
    write_result(f"sharing-{args.paradigm}-{args.group}", result)


def _config(args: argparse.Namespace, folder: Path, kv_cache_bytes: int | None = None) -> RunConfig:
    return RunConfig(
        inputs=(str(folder / "shuffled.parquet"),),
        output=str(folder / "out.parquet"),
        identity=Identity(model=args.model, paradigm=args.paradigm, max_model_len=4096),
        runtime=Runtime(group=args.group, kv_cache_bytes=kv_cache_bytes),
    )


def _lower_bound(prepared: preparation.Prepared) -> tuple[int, int, int]:
    """Distinct first requests, their unique tokens, and the same with every prompt's last block rounded up.

    A token is unique by itself and all tokens before it; an equal request of another pair costs nothing.
    """
    assembler = Assembler(prepared.method.tokenizer)
    prompts: set[tuple[int, ...]] = set()
    for pair in prepared.source.pairs():
        if isinstance(pair, Pair):
            prompts |= {
                tuple(assembler.assemble(request.prompt)) for request in Running(prepared.method.paradigm(pair)).wanted
            }
    blocks = {ids[: start + BLOCK_TOKENS] for ids in prompts for start in range(0, len(ids), BLOCK_TOKENS)}
    unique_tokens = sum((len(block) - 1) % BLOCK_TOKENS + 1 for block in blocks)
    return len(prompts), unique_tokens, len(blocks) * BLOCK_TOKENS
