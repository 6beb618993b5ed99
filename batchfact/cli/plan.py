"""`batchfact plan`: what a run over an input will have to do, without a model."""

from __future__ import annotations

from typing import Annotated

import typer

from batchfact.cli import options as shared


def plan(
    paths: Annotated[list[str], typer.Argument(metavar="INPUT...", help="Parquet files, folders, globs or URIs.")],
    paradigm: shared.Paradigm = None,
    document_column: shared.DocumentColumn = None,
    summary_column: shared.SummaryColumn = None,
    reasoning: shared.Reasoning = None,
    window_sentences: shared.WindowSentences = None,
    long_documents: shared.LongDocuments = None,
    context_tokens: shared.ContextTokens = None,
    align_sentences: shared.AlignSentences = None,
    max_model_len: shared.MaxModelLen = None,
    limit: Annotated[int | None, typer.Option(help="Only the first rows.")] = None,
    price_in: Annotated[
        float | None, typer.Option(min=0, help="Price of a million prompt tokens, to tell what a server will charge.")
    ] = None,
    price_out: Annotated[float | None, typer.Option(min=0, help="Price of a million generated tokens.")] = None,
    config: shared.Config = None,
) -> None:
    """Count rows, documents, windows, requests and tokens, and recommend how to group them; no model is loaded."""
    from rich.console import Console
    from rich.table import Table

    from batchfact.planning import InputPlan, plan_input
    from batchfact.settings import make_config
    from batchfact.source import open_source

    options = {
        "paradigm": paradigm,
        "document-column": document_column,
        "summary-column": summary_column,
        "reasoning": reasoning,
        "window-sentences": window_sentences,
        "long-documents": long_documents,
        "context-tokens": context_tokens,
        "align-sentences": align_sentences,
        "max-model-len": max_model_len,
        "limit": limit,
    }
    settings = make_config(tuple(paths), "", options, file=config)
    source = open_source(
        paths,
        document_column=settings.identity.document_column,
        summary_column=settings.identity.summary_column,
    )
    found: InputPlan = plan_input(source, settings)
    table = Table(title=", ".join(paths), title_justify="left", show_header=False, box=None, padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
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
    is_guess = settings.identity.paradigm == "qg-qa"
    table.add_row("requests", f"{'about ' if found.sampled or is_guess else ''}{found.requests:,}")
    table.add_row("tokens of distinct documents", f"about {found.document_tokens:,}")
    table.add_row("pairs whose document does not fit the model", f"about {found.long_pairs:,}")
    table.add_row("prompt tokens", f"about {found.prompt_tokens:,}")
    table.add_row("prompt tokens to compute, with shared prefixes", f"about {found.computed_tokens:,}")
    table.add_row("generated tokens", f"at most {found.output_tokens:,}")
    if price_in is not None or price_out is not None:
        price = found.price(per_million_in=price_in or 0.0, per_million_out=price_out or 0.0)
        table.add_row("price, without a discount for cached tokens", f"at most about {price:,.2f}")
    Console().print(table)
    print(f"recommended: {found.advice}")
    for note in found.notes:
        print(f"note: {note}")
