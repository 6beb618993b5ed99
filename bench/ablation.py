"""One lever at a time: batchfact with and without it, on the same rows, each run in a process of its own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from batchfact.errors import UsageError
from bench.ceiling import ceiling_of
from bench.facts import command_line, facts, write_result
from bench.tables import ablation_table
from bench.throughput import measuring
from bench.throughput.arms import REFERENCE
from bench.throughput.figures import model_size, summarise
from bench.throughput.grid import REASONING, interleaved
from bench.throughput.inputs import read_pool
from bench.throughput.prompts import prepare
from bench.throughput.running import RunKey, code_digest, run_once

ALL = "all"


class Setting(Struct, frozen=True, kw_only=True):
    """One arm of an ablation; `options` are batchfact's, `engine-arg.NAME` among them."""

    title: str
    input: str | None = None
    options: Mapping[str, str | bool | int] = {}
    overrides: Mapping[str, float] = {}
    environment: Mapping[str, str] = {}
    compile: bool = False


class Ablation(Struct, frozen=True, kw_only=True):
    """Settings that are compared; the first one is what the others are measured against."""

    input: str
    settings: tuple[Setting, ...]


def _by_option(name: str, values: Sequence[str | int], first: str = "default") -> tuple[Setting, ...]:
    """The default, then one setting for each value of an option."""
    return (Setting(title=first), *(Setting(title=f"{name} {value}", options={name: value}) for value in values))


ABLATIONS: Mapping[str, Ablation] = {
    "grouping": Ablation(input="shuffled", settings=_by_option("group", ["none", "global"], first="group window")),
    "admission": Ablation(
        input="long",
        settings=(
            Setting(title="by the KV cache's tokens"),
            Setting(title="only twice max_num_seqs in flight", overrides={"admission.KV_SHARE": 1e6}),
        ),
    ),
    "priority": Ablation(
        input=REASONING,
        settings=(
            Setting(title="follow-ups before newer documents"),
            Setting(title="first come, first served", options={"engine-arg.scheduling_policy": "fcfs"}),
        ),
    ),
    "block-size": Ablation(
        input="adjacent", settings=_by_option("engine-arg.block_size", [64, 128], first="blocks of 32 tokens (default)")
    ),
    "batch-tokens": Ablation(
        input="adjacent",
        settings=_by_option("engine-arg.max_num_batched_tokens", [1024, 2048, 8192], first="4096 (default on a CPU)"),
    ),
    "batch-requests": Ablation(
        input="adjacent", settings=_by_option("engine-arg.max_num_seqs", [32, 256], first="128 (default on a CPU)")
    ),
    "cores": Ablation(
        input="adjacent",
        settings=(
            Setting(title="bound to every core (default below four)"),
            Setting(title="vLLM's own: one core kept free", environment={"VLLM_CPU_OMP_THREADS_BIND": "auto"}),
            Setting(title="not bound", environment={"VLLM_CPU_OMP_THREADS_BIND": "nobind"}),
            Setting(title="threads sleep while they wait", environment={"OMP_WAIT_POLICY": "PASSIVE"}),
        ),
    ),
    "compile": Ablation(input="adjacent", settings=(Setting(title="eager"), Setting(title="compiled", compile=True))),
    "duplicates": Ablation(
        input="duplicates",
        settings=(
            Setting(title="30 % of the rows are copies"),
            Setting(title="no copies", input="shuffled"),
        ),
    ),
    "early-exit": Ablation(
        input="adjacent",
        settings=(Setting(title="every window"), Setting(title="early exit", options={"early-exit": True})),
    ),
    "early-exit-reasoning": Ablation(
        input=REASONING,
        settings=(Setting(title="every window"), Setting(title="early exit", options={"early-exit": True})),
    ),
}
NOT_MEASURED: Mapping[str, str] = {
    "submission-order": "there is no setting: requests of a document are submitted together",
    "classification-head": "not built: it would save the label head alone",
    "qg-beside-qa": "there is no setting: windows never wait for each other's questions",
    "tokenise-once": "there is no setting: `python -m bench host` has what tokenising costs",
    "int8": "vLLM 0.32 quantises no dense layers to INT8 while it loads; a folder that is stored so is a --model",
    "fp8": "needs a GPU",
}
"""Levers without an arm, and why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", choices=[*ABLATIONS, *NOT_MEASURED, ALL], help="the lever; `all` takes one after the other"
    )
    measuring.add_arguments(parser)
    parser.set_defaults(pairs=96, passes=1, work=Path("build/ablation"))


def measure(args: argparse.Namespace) -> None:
    for name in [*ABLATIONS, *NOT_MEASURED] if args.name == ALL else [args.name]:
        if name in NOT_MEASURED:
            print(f"{name}: not measured: {NOT_MEASURED[name]}")
            continue
        try:
            _measure(name, args)
        except UsageError as error:
            print(f"{name}: not measured: {error}", file=sys.stderr)
            if args.name != ALL:
                raise SystemExit(2) from error


def _measure(name: str, args: argparse.Namespace) -> None:
    ablation = ABLATIONS[name]
    args.work.mkdir(parents=True, exist_ok=True)
    pool = read_pool(args.input)
    names = list(dict.fromkeys(setting.input or ablation.input for setting in ablation.settings))
    inputs = {each: measuring.make_input(args, pool, each) for each in names}
    example = prepare(measuring.task_for(args, names[0], REFERENCE, inputs[names[0]]))
    size, ceiling = model_size(example.method.spec.model), ceiling_of(example.dtype, args.device)
    code, made_with = code_digest(), facts()
    result: dict[str, Any] = {
        "kind": "ablation",
        "command": command_line("bench", sys.argv[1:]),
        "settings": measuring.settings(args, example, args.passes),
        "ceiling": ceiling,
        "inputs": {each: inputs[each].facts for each in names},
        "runs": [],
    }
    by_title = {setting.title: setting for setting in ablation.settings}
    reference = None
    for title, turn in interleaved(list(by_title), args.passes):
        setting = by_title[title]
        input_name = setting.input or ablation.input
        key = with_setting(measuring.run_key(args, input_name, REFERENCE, turn, inputs[input_name], code), setting)
        done = run_once(key, args.work, args.limit_s)
        reference = reference or done.record
        of = inputs[input_name].facts
        line = measuring.line_of(done, input_name, title, turn, of, size, ceiling["flop_per_s"])
        is_same_input = input_name == names[0]
        line["agreement"] = measuring.agreement_with(reference, done, example) if is_same_input else None
        print(f"{name}: {title}: {measuring.told(line)}", flush=True)
        result["runs"].append(line)
        result["summary"] = compare_with_first(result["runs"])
        path = write_result(f"ablation-{name}", result, made_with)
        path.with_suffix(".md").write_text(ablation_table(result | made_with), encoding="utf-8")


def with_setting(key: RunKey, setting: Setting) -> RunKey:
    """The key of batchfact's own run, with one lever moved."""
    task = msgspec.structs.replace(
        key.task,
        options=dict(setting.options),
        overrides=dict(setting.overrides),
        compile=key.task.compile or setting.compile,
    )
    return msgspec.structs.replace(key, task=task, environment=key.environment | dict(setting.environment))


def compare_with_first(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One line a setting; `against_first` is its pairs a second over the first setting's."""
    first = runs[0]["arm"]
    lines = summarise(runs, first)
    base = next((line.get("pairs_per_s") for line in lines if line["arm"] == first), None)
    for line in lines:
        own = line.get("pairs_per_s")
        line |= {"title": line["arm"], "against_first": own / base if own and base else None}
    return lines
