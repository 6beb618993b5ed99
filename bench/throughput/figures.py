"""From what arms did to the figures that are compared: pure arithmetic over records."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from batchfact.models.tensor_files import TensorFile
from bench.agreement import compare
from bench.throughput.running import Done
from bench.throughput.task import ArmRecord, Calls, FindingRow

MIB = 1 << 20
AGREEMENT = ("findings", "judged_by_both", "clear_findings", "clear_agreement", "agreement", "kappa")
OUTSIDE_LAYERS = ("embed", "lm_head", "wte", "wpe")
"""Parts of the names of weights that are looked up, or only used for a prompt's last token."""


class ModelSize(Struct, frozen=True, kw_only=True):
    """What decides a model's arithmetic. `weights`: of the layers' matrices; `attention`: heads times their size."""

    weights: int
    layers: int
    attention: int
    hidden: int
    vocabulary: int


def model_size(folder: Path) -> ModelSize:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config") or config
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    shapes = [
        file.shape_of(name)
        for file in map(TensorFile, sorted(folder.glob("*.safetensors")))
        for name in file
        if not any(part in name for part in OUTSIDE_LAYERS)
    ]
    return ModelSize(
        weights=sum(math.prod(shape) for shape in shapes if len(shape) == 2),
        layers=config["num_hidden_layers"],
        attention=heads * head_dim,
        hidden=config["hidden_size"],
        vocabulary=config["vocab_size"],
    )


def flops(calls: Calls, size: ModelSize) -> float:
    """Floating-point operations of the tokens that were computed, causal attention and the label head included."""
    total = 0.0
    for prompt, cached, output in calls:
        end = prompt + max(output - 1, 0)  # the last token that is written is not read again
        total += 2 * size.weights * (end - cached)
        total += 2 * size.layers * size.attention * (end**2 - cached**2)
        total += 2 * size.hidden * size.vocabulary * max(output, 1)
    return total


def unique_tokens(prompts: Iterable[Sequence[int]]) -> int:
    """The fewest tokens that any order could compute: a token is the same where it and all before it are."""
    seen: set[int] = set()
    for ids in prompts:
        state = 0
        for each in ids:
            state = hash((state, each))
            seen.add(state)
    return len(seen)


def figures(
    done: Done, *, rows: int, logical_tokens: int, unique: int, size: ModelSize, ceiling: float
) -> dict[str, Any]:
    """One run's figures.

    Args:
        rows, logical_tokens, unique: of the input as the arm got it: pairs, tokens of all their prompts, and those of
            them that differ.
        ceiling: FLOP/s of the machine's best matrix product.
    """
    told = {"status": done.status, "reason": done.reason, "wall_s": round(done.wall_s, 1)}
    record = done.record
    if record is None:
        return told
    scoring_s = record.finished_at - record.ready_at
    prompt, cached = (sum(call[place] for call in record.calls) for place in (0, 1))
    known = bool(record.calls)
    return {
        **told,
        "pairs": rows,
        "requests": len(record.calls) or None,
        "scoring_s": round(scoring_s, 2),
        "pairs_per_s": rows / scoring_s,
        "logical_tokens_per_s": logical_tokens / scoring_s,
        "unique_tokens_per_s": unique / scoring_s,
        "computed_tokens_per_s": (prompt - cached) / scoring_s if known else None,
        "prompt_tokens": prompt if known else None,
        "computed_tokens": prompt - cached if known else None,
        "cached_share": cached / prompt if known else None,
        "matrix_share": flops(record.calls, size) / scoring_s / ceiling if known else None,
        "start_s": round(record.ready_at - done.started_at - record.probe_s, 1),
        "first_row_s": round(record.first_row_at - done.started_at - record.probe_s, 1),
        "prepare_s": round(record.prepare_s, 2),
        "output_s": None if record.output_s is None else round(record.output_s, 2),
        "engine_idle_share": None if record.idle_s is None else record.idle_s / scoring_s,
        "peak_memory_mib": round(done.peak_bytes / MIB),
        "cpu_s": round(done.cpu_s, 1),
        "same_prompts": record.same_prompts,
    }


def agreement(record: ArmRecord, reference: ArmRecord, threshold: float) -> dict[str, Any] | None:
    """How far an arm's findings are batchfact's, over the pairs that both had; None where they had none in common.

    `pairs_left_out` are those of the arm that batchfact has with another number of findings, or not at all.
    """
    numbers = sorted(record.findings.keys() & reference.findings.keys())
    numbers = [each for each in numbers if len(record.findings[each]) == len(reference.findings[each])]
    if not numbers:
        return None
    mine, theirs = ([_named(row) for each in numbers for row in of.findings[each]] for of in (record, reference))
    if any(row["label"] and row["score"] is None for row in (*mine, *theirs)):
        compared = {**_agreement_of_labels(mine, theirs), "clear_findings": None, "clear_agreement": None}
    else:
        compared = compare(mine, theirs, threshold)
    return {"pairs_left_out": len(record.findings) - len(numbers), **{name: compared[name] for name in AGREEMENT}}


def _agreement_of_labels(mine: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where an arm tells labels without scores: nothing says which of them are clear."""
    scored = [{**row, "score": 1.0 if row["label"] == "consistent" else 0.0} for row in mine]
    others = [{**row, "score": 1.0 if row["label"] == "consistent" else 0.0} for row in theirs]
    return compare(scored, others, 0.5)


def _named(row: FindingRow) -> dict[str, Any]:
    label, score, status = row
    return {"label": label, "score": score, "status": status}


def summarise(runs: Sequence[Mapping[str, Any]], reference: str) -> list[dict[str, Any]]:
    """One line an input and arm: means over its finished runs, and batchfact's speed over its own.

    The ratio is of logical tokens a second. For equal rows that is the ratio of pairs a second, and an arm that got
    only a part of the rows is compared by what its rows cost.
    """
    lines: list[dict[str, Any]] = []
    cells = list(dict.fromkeys((run["input"], run["arm"]) for run in runs))
    for input_name, arm in cells:
        mine = [run for run in runs if (run["input"], run["arm"]) == (input_name, arm)]
        finished = [run for run in mine if run["status"] == "ok"]
        line: dict[str, Any] = {"input": input_name, "arm": arm, "runs": len(finished)}
        if not finished:
            lines.append({**line, "status": mine[-1]["status"], "reason": mine[-1]["reason"]})
            continue
        base = _speed([run for run in runs if (run["input"], run["arm"]) == (input_name, reference)])
        own = _speed(finished)
        line |= {"status": "ok", "reason": None, "ratio": base / own if base and own and arm != reference else None}
        for name in MEANS:
            values = [run[name] for run in finished if run.get(name) is not None]
            line[name] = sum(values) / len(values) if values else None
        line |= {"agreement": next((run["agreement"] for run in reversed(finished) if run.get("agreement")), None)}
        line |= {"slowest_to_fastest": _spread(finished)}
        lines.append(line)
    return lines


MEANS = (
    "pairs",
    "pairs_per_s",
    "logical_tokens_per_s",
    "unique_tokens_per_s",
    "computed_tokens_per_s",
    "cached_share",
    "matrix_share",
    "start_s",
    "first_row_s",
    "output_s",
    "engine_idle_share",
    "peak_memory_mib",
    "same_prompts",
)


def _speed(runs: Sequence[Mapping[str, Any]]) -> float | None:
    """Logical tokens a second over all finished runs: all their tokens by all their time."""
    finished = [run for run in runs if run["status"] == "ok"]
    seconds = sum(run["scoring_s"] for run in finished)
    return sum(run["logical_tokens_per_s"] * run["scoring_s"] for run in finished) / seconds if seconds else None


def _spread(runs: Sequence[Mapping[str, Any]]) -> float:
    speeds = [run["pairs_per_s"] for run in runs]
    return min(speeds) / max(speeds)
