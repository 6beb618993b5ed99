"""`batchfact explain`: the windows, requests and exact prompts of one row."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from batchfact.cli import options as shared


def explain(
    paths: Annotated[list[str], typer.Argument(metavar="INPUT...", help="Parquet files, folders, globs or URIs.")],
    row: Annotated[int, typer.Option(help="Which row, counted from 0 over all files.")],
    model: shared.Model = None,
    paradigm: shared.Paradigm = None,
    document_column: shared.DocumentColumn = None,
    summary_column: shared.SummaryColumn = None,
    reasoning: shared.Reasoning = None,
    reasoning_tokens: shared.ReasoningTokens = None,
    window_sentences: shared.WindowSentences = None,
    window_context: shared.WindowContext = None,
    long_documents: shared.LongDocuments = None,
    context_tokens: shared.ContextTokens = None,
    align_sentences: shared.AlignSentences = None,
    align_objective: shared.AlignObjective = None,
    label_mode: shared.LabelMode = None,
    rating: shared.Rating = None,
    instruction: shared.Instruction = None,
    shots: shared.Shots = None,
    demonstrations: shared.Demonstrations = None,
    seed: shared.Seed = None,
    temperature: shared.Temperature = None,
    max_model_len: shared.MaxModelLen = None,
    engine: shared.Engine = None,
    base_url: shared.BaseUrl = None,
    api_key_env: shared.ApiKeyEnv = None,
    config: shared.Config = None,
) -> None:
    """Show what a run would ask about one row, byte for byte. What a model would write is stood in for."""
    from batchfact.explaining import explain_pair, find_row, open_input
    from batchfact.preparation import prepare_method
    from batchfact.settings import make_config

    options = {
        "model": model,
        "paradigm": paradigm,
        "document-column": document_column,
        "summary-column": summary_column,
        "reasoning": reasoning,
        "reasoning-tokens": reasoning_tokens,
        "window-sentences": window_sentences,
        "window-context": window_context,
        "long-documents": long_documents,
        "context-tokens": context_tokens,
        "align-sentences": align_sentences,
        "align-objective": align_objective,
        "label-mode": label_mode,
        "rating": rating,
        "instruction": instruction,
        "shots": shots,
        "demonstrations": demonstrations,
        "seed": seed,
        "temperature": temperature,
        "max-model-len": max_model_len,
        "engine": engine,
        "base-url": base_url,
        "api-key-env": api_key_env,
    }
    settings = make_config(tuple(paths), "", options, file=config)
    source = open_input(settings)
    pair = find_row(source, row)
    method = prepare_method(settings, log_file=None, compiles=False, source=source)
    for note in method.notes:
        sys.stdout.write(f"note: {note}\n")
    sys.stdout.write(explain_pair(pair, method, settings))
