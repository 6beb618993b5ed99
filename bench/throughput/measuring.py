"""Runs the arms of a grid and writes what came out, after every run: JSON, a Markdown table and plots."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import Struct

from batchfact.errors import UsageError
from batchfact.settings import parse_bytes
from bench.ceiling import ceiling_of
from bench.facts import RESULTS, command_line, facts, without_folders, without_place, write_result
from bench.tables import throughput_table
from bench.throughput.arms import ARMS, REFERENCE
from bench.throughput.figures import ModelSize, agreement, figures, model_size, summarise, unique_tokens
from bench.throughput.grid import FULL, QUICK, REASONING, REASONING_SHARE, Block, interleaved, target
from bench.throughput.inputs import LAYOUTS, Row, lay_out, read_pool, whole_documents, write_rows
from bench.throughput.plots import draw
from bench.throughput.prompts import Prompts, prepare
from bench.throughput.running import Done, RunKey, code_digest, run_once
from bench.throughput.task import ArmRecord, Task

DEFAULT_MODEL = "smollm2-135m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="the dozen cells that README shows, in one pass")
    parser.add_argument("--input", type=Path, nargs="+", required=True, help="Parquet files with document and summary")
    parser.add_argument("--work", type=Path, default=Path("build/throughput"), help="finished runs are kept here")
    parser.add_argument("--name", default=None, help="of the result file [throughput, or throughput-quick]")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--pairs", type=int, default=384)
    parser.add_argument("--slow-pairs", type=int, default=48, help="for arms without a prefix cache [%(default)s]")
    parser.add_argument("--inputs", nargs="+", choices=[*LAYOUTS, REASONING], default=None)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=None)
    parser.add_argument("--passes", type=int, default=None, help="1 with --quick, else 2 (A B C C B A)")
    parser.add_argument("--kv-cache-memory", default="256Mi")
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--dtype", default=None, help="of all arms [what batchfact takes on this device]")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--compile", action="store_true", help="all vLLM arms compiled, not eager")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=1800, help="seconds after which a run is ended")


class Prepared(Struct, frozen=True, kw_only=True):
    """An input as files, and what is known of it: `subset` for slow arms."""

    path: Path
    subset: Path
    facts: Mapping[str, Any]
    subset_facts: Mapping[str, Any]


def measure(args: argparse.Namespace) -> None:
    name = args.name or ("throughput-quick" if args.quick else "throughput")
    passes = args.passes or (1 if args.quick else 2)
    blocks = chosen_blocks(QUICK if args.quick else FULL, args.inputs, args.arms)
    args.work.mkdir(parents=True, exist_ok=True)
    pool = read_pool(args.input)
    prepared: dict[str, Prepared] = {}
    left_out: dict[str, str] = {}
    for block in blocks:
        try:
            prepared[block.input] = make_input(args, pool, block.input)
        except UsageError as error:
            left_out[block.input] = without_folders(str(error))
    blocks = [block for block in blocks if block.input in prepared]
    if not blocks:
        raise SystemExit("; ".join(left_out.values()))
    example = prepare(task_for(args, blocks[0].input, REFERENCE, prepared[blocks[0].input]))
    size = model_size(example.method.spec.model)
    ceiling = ceiling_of(example.dtype, args.device)
    result: dict[str, Any] = {
        "kind": "throughput",
        "command": command_line("bench", sys.argv[1:]),
        "settings": settings(args, example, passes),
        "ceiling": ceiling,
        "inputs": {block.input: prepared[block.input].facts for block in blocks},
        "inputs_left_out": left_out,
        "runs": [],
        "summary": [],
    }
    code, made_with = code_digest(), facts()
    turns = [(block, arm, turn) for block in blocks for arm, turn in interleaved(block.arms, passes)]
    references: dict[str, ArmRecord] = {}
    for number, (block, arm, turn) in enumerate(turns, 1):
        there = prepared[block.input]
        print(f"{number}/{len(turns)} {block.input}: {ARMS[arm].title}", flush=True)
        done = run_once(run_key(args, block.input, arm, turn, there, code), args.work, args.limit_s)
        if arm == REFERENCE and done.record is not None:
            references.setdefault(block.input, done.record)
        of = there.subset_facts if ARMS[arm].is_slow else there.facts
        line = line_of(done, block.input, arm, turn, of, size, ceiling["flop_per_s"])
        line["agreement"] = agreement_with(references.get(block.input), done, example)
        print(f"    {told(line)}", flush=True)
        result["runs"].append(line)
        result["summary"] = [
            {**each, "title": ARMS[each["arm"]].title, "target": target(each["arm"], each["input"])}
            for each in summarise(result["runs"], REFERENCE)
        ]
        write(name, result, made_with)


def write(name: str, result: dict[str, Any], made_with: dict[str, Any]) -> None:
    path = write_result(name, result, made_with)
    path.with_suffix(".md").write_text(throughput_table(result | made_with), encoding="utf-8")
    draw(result, RESULTS / f"{name}.svg")


def chosen_blocks(blocks: Sequence[Block], inputs: list[str] | None, arms: list[str] | None) -> list[Block]:
    """The grid, narrowed to what was asked for; batchfact stays, as the others are compared with it."""
    return [
        Block(input=block.input, arms=tuple(arm for arm in block.arms if not arms or arm in arms or arm == REFERENCE))
        for block in blocks
        if not inputs or block.input in inputs
    ]


def make_input(args: argparse.Namespace, pool: Mapping[str, Sequence[str]], name: str) -> Prepared:
    """Lay the rows out, and count what their prompts hold."""
    is_reasoning = name == REASONING
    layout = LAYOUTS["adjacent" if is_reasoning else name]
    pairs = round(args.pairs * REASONING_SHARE) if is_reasoning else args.pairs
    rows = lay_out(pool, layout, pairs, args.seed)
    part = whole_documents(rows, args.slow_pairs)
    folder = args.work / "inputs"
    folder.mkdir(exist_ok=True)
    path, subset = folder / f"{name}.parquet", folder / f"{name}-part.parquet"
    write_rows(path, rows)
    write_rows(subset, part)
    what = (
        f"{layout.what}; reasoning before each label; counted are the first requests" if is_reasoning else layout.what
    )
    paths = {"path": path, "subset": subset}
    tasks = {each: task_of(args, name, REFERENCE, place) for each, place in paths.items()}
    return Prepared(
        **paths,
        facts={"what": what, **count(rows, prepare(tasks["path"]))},
        subset_facts=count(part, prepare(tasks["subset"])),
    )


def count(rows: Sequence[Row], prompts: Prompts) -> dict[str, Any]:
    """Sizes of an input; tokens are those of its first requests' prompts."""
    ids = [prompts.ids(request) for running in prompts.programs for request in running.wanted]
    documents = {row[1] for row in rows}
    encode = prompts.method.tokenizer.encode
    return {
        "pairs": len(rows),
        "documents": len(documents),
        "distinct_pairs": len({row[1:] for row in rows}),
        "document_tokens": sum(len(encode(document, special=False)) for document in documents),
        "requests": len(ids),
        "logical_tokens": sum(map(len, ids)),
        "unique_tokens": unique_tokens(ids),
    }


def task_of(args: argparse.Namespace, input_name: str, arm: str, path: Path) -> Task:
    return Task(
        arm=arm,
        input=path.resolve(),
        folder=args.work,
        model=args.model,
        reasoning=input_name == REASONING,
        dtype=args.dtype,
        device=args.device,
        kv_cache_bytes=parse_bytes(args.kv_cache_memory),
        max_model_len=args.max_model_len,
        compile=args.compile,
    )


def task_for(args: argparse.Namespace, input_name: str, arm: str, there: Prepared) -> Task:
    return task_of(args, input_name, arm, there.subset if ARMS[arm].is_slow else there.path)


def run_key(args: argparse.Namespace, input_name: str, arm: str, turn: int, there: Prepared, code: str) -> RunKey:
    task = task_for(args, input_name, arm, there)
    return RunKey(
        task=task,
        environment=shared_environment(args.device),
        turn=turn,
        code=code,
        input_digest=sha256(task.input.read_bytes()).hexdigest(),
    )


def shared_environment(device: str) -> dict[str, str]:
    """The same threads and switches for every arm."""
    shared = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    cores = sorted(os.sched_getaffinity(0))
    if device == "cpu" and len(cores) < 4:
        # By itself vLLM keeps one core free, which is half of a machine with two; batchfact binds to all of them.
        shared["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
    return shared


def line_of(
    done: Done,
    input_name: str,
    arm: str,
    turn: int,
    of: Mapping[str, Any],
    size: ModelSize,
    ceiling: float,
) -> dict[str, Any]:
    """One run's line; `of` are the facts of the rows that it got."""
    told_figures = figures(
        done,
        rows=of["pairs"],
        logical_tokens=of["logical_tokens"],
        unique=of["unique_tokens"],
        size=size,
        ceiling=ceiling,
    )
    return {"input": input_name, "arm": arm, "turn": turn, **told_figures}


def agreement_with(reference: ArmRecord | None, done: Done, prompts: Prompts) -> dict[str, Any] | None:
    if reference is None or done.record is None or done.record is reference:
        return None
    return agreement(done.record, reference, prompts.config.fold.threshold)


def settings(args: argparse.Namespace, prompts: Prompts, passes: int) -> dict[str, Any]:
    return {
        "model": without_place(args.model),
        "paradigm": prompts.config.identity.paradigm,
        "dtype": prompts.dtype,
        "head_dtype": prompts.head_dtype,
        "device": args.device,
        "mode": "compiled" if args.compile else "eager",
        "kv_cache_bytes": parse_bytes(args.kv_cache_memory),
        "max_model_len": args.max_model_len,
        "passes": passes,
        "seed": args.seed,
        "files": [file.name for file in args.input],
        "environment": shared_environment(args.device),
    }


def told(line: Mapping[str, Any]) -> str:
    if line["status"] != "ok":
        return f"{line['status']}: {line['reason']}"
    cached = "" if line["cached_share"] is None else f", {line['cached_share']:.0%} cached"
    return f"{line['pairs_per_s']:.2f} pairs/s{cached}, {line['wall_s']:,.0f} s in all"
