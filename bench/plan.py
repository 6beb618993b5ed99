"""What `batchfact plan` predicts, against a real run on this machine: tokens, cached share, seconds."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio

from batchfact.config import Identity, RunConfig, Runtime
from batchfact.pipeline import RunReport, run
from batchfact.planning import InputPlan
from batchfact.prediction import count_tokens, find_planned_device, predict_run
from batchfact.settings import default_model
from batchfact.source import open_source
from bench.facts import command_line, without_folders, without_place, write_result

TOLERANCE = 0.25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", type=Path, help="a Parquet file with document and summary")
    parser.add_argument("--model", help="default: the embedded one for the paradigm")
    # Decoding is predicted at its longest, so only label-only runs can be compared.
    parser.add_argument("--paradigm", choices=["summ-nli", "sent-nli"], default="sent-nli")
    parser.add_argument("--limit", type=int, default=100, help="rows")
    parser.add_argument("--device", default="cpu", help="what this machine has, by `batchfact plan --device`")
    parser.add_argument("--measured", type=Path, help="a result of kernels_bench; else a CPU is measured first")
    parser.add_argument("--note", default="", help="kept in the result: what else the machine was doing")


def measure(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="batchfact-bench-") as folder:
        config = _config(args, Path(folder) / "out.parquet")
        source = open_source(config.inputs)
        device = find_planned_device(args.device, args.measured)
        plan = count_tokens(source, config, device, has_model=True)
        prediction = predict_run(plan, config, device)
        report = anyio.run(run, config)
    seconds = report.progress.scoring_s
    result: dict[str, Any] = {
        "command": command_line("bench", sys.argv[1:]),
        "note": args.note,
        "input": args.input.name,
        "model": without_place(config.identity.model),
        "rows": report.totals.rows,
        "statuses": report.totals.statuses,
        "device": device.name,
        "ceilings": {
            "flops_per_s": device.flops_per_s,
            "bytes_per_s": device.bytes_per_s,
            "source": without_folders(device.source),
        },
        "prefill_share": {
            "assumed": device.prefill_share,
            "reached": round(prediction.prefill.flops / (device.flops_per_s * seconds), 3),
        },
        "flops": prediction.flops,
        "compared": compare(plan, prediction.seconds, report, seconds),
    }
    print(result)
    write_result(f"plan-{args.paradigm}", result)


def compare(plan: InputPlan, predicted_s: float, report: RunReport, seconds: float) -> dict[str, dict[str, Any]]:
    """Each predicted number beside the measured one; seconds are without the engine's start."""
    usage = report.totals.usage
    return {
        "prompt_tokens": beside(plan.prompt_tokens, usage.prompt),
        "cached_tokens": beside(plan.cached_tokens, usage.cached),
        "computed_tokens": beside(plan.computed_tokens, usage.prompt - usage.cached),
        "seconds": beside(round(predicted_s, 1), round(seconds, 1)),
    }


def beside(predicted: float, measured: float) -> dict[str, Any]:
    ratio = predicted / measured if measured else None
    return {
        "predicted": predicted,
        "measured": measured,
        "ratio": None if ratio is None else round(ratio, 3),
        "within_25_percent": ratio is not None and abs(ratio - 1) <= TOLERANCE,
    }


def _config(args: argparse.Namespace, output: Path) -> RunConfig:
    identity = Identity(paradigm=args.paradigm)
    return RunConfig(
        inputs=(str(args.input),),
        output=str(output),
        identity=Identity(paradigm=args.paradigm, model=args.model or default_model(identity)),
        runtime=Runtime(limit=args.limit),
    )
