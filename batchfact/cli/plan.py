"""`batchfact plan`: what a run over an input will have to do, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batchfact.cli import options as shared
from batchfact.durations import duration
from batchfact.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from batchfact.cost.devices import Device
    from batchfact.cost.roofline import Prediction
    from batchfact.planning import InputPlan


def plan(
    paths: Annotated[list[str], typer.Argument(metavar="INPUT...", help="Parquet files, folders, globs or URIs.")],
    model: shared.Model = None,
    paradigm: shared.Paradigm = None,
    document_column: shared.DocumentColumn = None,
    summary_column: shared.SummaryColumn = None,
    reasoning: shared.Reasoning = None,
    reasoning_tokens: shared.ReasoningTokens = None,
    window_sentences: shared.WindowSentences = None,
    long_documents: shared.LongDocuments = None,
    context_tokens: shared.ContextTokens = None,
    align_sentences: shared.AlignSentences = None,
    max_model_len: shared.MaxModelLen = None,
    limit: Annotated[int | None, typer.Option(help="Only the first rows.")] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Predict FLOPs, hours and memory there: A100-40, A100-80, H100, H200, L4, L40S, 4090 and others, or "
            "cpu, which is measured within seconds.",
        ),
    ] = None,
    devices: Annotated[int, typer.Option(min=1, metavar="N", help="So many of them.")] = 1,
    measured: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What `python -m kernels_bench --json FILE` measured on the device."),
    ] = None,
    price_in: Annotated[
        float | None, typer.Option(min=0, help="Price of a million prompt tokens, to tell what a server will charge.")
    ] = None,
    price_out: Annotated[float | None, typer.Option(min=0, help="Price of a million generated tokens.")] = None,
    config: shared.Config = None,
) -> None:
    """Count rows, documents, windows, requests and tokens, and recommend how to group them; no weights are loaded.

    With --model the model's own tokenizer counts a sample. With --device the time and memory of a run are predicted.
    """
    from rich.console import Console

    from batchfact.prediction import count_tokens, find_planned_device, predict_run
    from batchfact.settings import make_config, read_options
    from batchfact.source import open_source

    options = {
        "model": model,
        "paradigm": paradigm,
        "document-column": document_column,
        "summary-column": summary_column,
        "reasoning": reasoning,
        "reasoning-tokens": reasoning_tokens,
        "window-sentences": window_sentences,
        "long-documents": long_documents,
        "context-tokens": context_tokens,
        "align-sentences": align_sentences,
        "max-model-len": max_model_len,
        "limit": limit,
    }
    settings = make_config(tuple(paths), "", options, file=config)
    if measured is not None and device is None:
        raise UsageError("--measured goes with --device")
    planned = None if device is None else find_planned_device(device, measured)
    source = open_source(
        paths,
        document_column=settings.identity.document_column,
        summary_column=settings.identity.summary_column,
    )
    is_meant = model is not None or (config is not None and "model" in read_options(config))
    found: InputPlan = count_tokens(source, settings, planned, has_model=is_meant or planned is not None)
    table = _table(", ".join(paths))
    _add_input(table, found, is_guess=settings.identity.paradigm == "qg-qa")
    if price_in is not None or price_out is not None:
        price = found.price(per_million_in=price_in or 0.0, per_million_out=price_out or 0.0)
        table.add_row("price, without a discount for cached tokens", f"at most about {price:,.2f}")
    notes = list(found.notes)
    if planned is not None:
        prediction = predict_run(found, settings, planned, devices=devices)
        _add_cost(table, prediction, planned, devices)
        notes += cost_notes(prediction, planned, devices)
    Console().print(table)
    print(f"recommended: {found.advice}")
    for note in notes:
        print(f"note: {note}")


def _table(title: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    return table


def _add_input(table: Table, found: InputPlan, *, is_guess: bool) -> None:
    table.add_row("rows", f"{found.rows:,}")
    for status, rows in sorted(found.rejected.items()):
        table.add_row(f"rows that are {status}", f"{rows:,}")
    table.add_row("documents", f"{found.documents:,}")
    if found.documents:
        table.add_row("pairs a document", f"{found.scored_rows / found.documents:.2f} (most {found.largest_group:,})")
        table.add_row(
            "further pairs right behind / in the look-ahead",
            f"{found.adjacent_share:.0%} / {found.look_ahead_share:.0%}",
        )
    table.add_row("pairs with the same text as another", f"{found.duplicate_pairs:,}")
    about = "about " if found.sampled else ""
    table.add_row("windows", f"{about}{found.windows:,}")
    table.add_row("requests", f"{'about ' if found.sampled or is_guess else ''}{found.requests:,}")
    table.add_row("requests that are not equal to another", f"about {found.distinct_requests:,}")
    table.add_row("tokens of distinct documents", f"about {found.document_tokens:,}")
    table.add_row("pairs whose document does not fit the model", f"about {found.long_pairs:,}")
    table.add_row("prompt tokens", f"about {found.prompt_tokens:,}")
    table.add_row("prompt tokens to compute, with shared prefixes", f"about {found.computed_tokens:,}")
    table.add_row("prompt tokens found in the prefix cache", f"about {found.cached_tokens:,}")
    table.add_row("generated tokens", f"at most {found.output_tokens:,}")


def _add_cost(table: Table, prediction: Prediction, device: Device, devices: int) -> None:
    table.add_row(f"FLOPs on {devices} {device.name}", f"about {prediction.flops:.3g}")
    table.add_row("prefill, bound by " + prediction.prefill.bound, f"about {duration(prediction.prefill.seconds)}")
    if prediction.decode.flops:
        table.add_row("decoding, bound by " + prediction.decode.bound, f"at most {duration(prediction.decode.seconds)}")
    table.add_row("time without the engine's start", f"about {duration(prediction.seconds)}")
    if memory := prediction.memory:
        kind = "memory" if device.is_cpu else "GPU memory"
        table.add_row(f"{kind}: weights", f"{memory.weights / 1e9:.1f} GB")
        if not device.is_cpu:
            table.add_row(f"{kind}: activations", f"about {memory.activations / 1e9:.1f} GB")
            table.add_row(
                f"{kind}: left for the KV cache", f"{memory.kv_cache / 1e9:.1f} GB, {memory.kv_tokens:,} tokens"
            )


def cost_notes(prediction: Prediction, device: Device, devices: int) -> list[str]:
    """What a person should know of a predicted time."""
    peak = f"{device.flops_per_s / 1e12:,.3g} TFLOP/s and {device.bytes_per_s / 1e9:,.0f} GB/s ({device.source})"
    notes = [f"peak of {device.name}: {peak}; prefill is taken at {device.prefill_share:.0%} of it"]
    if prediction.memory is None:
        notes.append(f"the model does not fit {devices} {device.name}: raise --devices, or take another --device")
    elif prediction.memory.shards > 1:
        notes.append(f"the model needs {prediction.memory.shards} of them: run with --tensor-parallel-size")
    return notes
