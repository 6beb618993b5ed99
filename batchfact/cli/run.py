"""`batchfact run`: score a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from batchfact.cli import options as shared
from batchfact.cli.options import RECOVERY, SPEED, split_words
from batchfact.config import RunConfig
from batchfact.errors import UsageError
from batchfact.settings import make_config, parse_pairs


def run(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT... OUTPUT", help="Parquet files, folders, globs or URIs; the last one is the output."
        ),
    ],
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
    dtype: shared.Dtype = None,
    quantization: shared.Quantization = None,
    deterministic: shared.Deterministic = None,
    threshold: shared.Threshold = None,
    aggregation: shared.Aggregation = None,
    min_label_mass: shared.MinLabelMass = None,
    calibration: shared.Calibration = None,
    column_prefix: shared.ColumnPrefix = None,
    keep_columns: shared.KeepColumns = None,
    drop_document: shared.DropDocument = None,
    group: Annotated[
        Literal["window", "global", "none"] | None,
        typer.Option(
            help="Bring a document's pairs together in a look-ahead, over the whole input, or not (default: window).",
            rich_help_panel=SPEED,
        ),
    ] = None,
    look_ahead_rows: Annotated[
        int | None, typer.Option(help="Rows of --group window (default: 65536).", rich_help_panel=SPEED)
    ] = None,
    early_exit: Annotated[
        bool | None,
        typer.Option(
            "--early-exit",
            help="Stop asking about a summary once its verdict is sure; its score is then an upper bound.",
            rich_help_panel=SPEED,
        ),
    ] = None,
    engine: shared.Engine = None,
    base_url: shared.BaseUrl = None,
    api_key_env: shared.ApiKeyEnv = None,
    engine_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Any argument of the engine; may be repeated.", rich_help_panel=SPEED),
    ] = None,
    compile: Annotated[
        Literal["auto", "on", "off"] | None,
        typer.Option(
            help="Compile the model: slower to start, faster afterwards (default: auto, for long runs).",
            rich_help_panel=SPEED,
        ),
    ] = None,
    tensor_parallel_size: Annotated[
        int | None, typer.Option(help="GPUs that share one copy of the model (default: 1).", rich_help_panel=SPEED)
    ] = None,
    data_parallel_size: Annotated[
        int | None, typer.Option(help="Copies of the model (default: 1).", rich_help_panel=SPEED)
    ] = None,
    gpu_memory_utilization: Annotated[
        float | None, typer.Option(help="Share of GPU memory to use.", rich_help_panel=SPEED)
    ] = None,
    kv_cache_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of the KV cache, such as 4GiB.", rich_help_panel=SPEED)
    ] = None,
    executor: Annotated[
        Literal["local", "ray"] | None,
        typer.Option(
            help="Score in this process, or with workers on a Ray cluster (default: local).", rich_help_panel=SPEED
        ),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="auto|HOST:PORT",
            help="A Ray cluster that is there (default: one is started on this machine).",
            rich_help_panel=SPEED,
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Engines, with --executor ray (default: 1).", rich_help_panel=SPEED)
    ] = None,
    gpus_per_worker: Annotated[
        float | None,
        typer.Option(
            help="GPUs of each worker (default: --tensor-parallel-size, or none on CPUs).", rich_help_panel=SPEED
        ),
    ] = None,
    journal: Annotated[
        Path | None, typer.Option(help="Folder of finished work (default: OUTPUT.journal).", rich_help_panel=RECOVERY)
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Score only the I-th of N shares of the documents, counted from 1, into a journal of its own; "
            "`batchfact merge` then writes the output.",
            rich_help_panel=RECOVERY,
        ),
    ] = None,
    restart: Annotated[
        bool | None,
        typer.Option("--restart", help="Throw the journal away and start afresh.", rich_help_panel=RECOVERY),
    ] = None,
    retry_status: Annotated[
        str | None, typer.Option(help="Ask rows with these statuses again, comma-separated.", rich_help_panel=RECOVERY)
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first rows.", rich_help_panel=RECOVERY)] = None,
    max_unscored: Annotated[
        float | None,
        typer.Option(help="Exit with 3 when a larger share of rows is unscored.", rich_help_panel=RECOVERY),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(help="Answer Prometheus at this port of this machine.", rich_help_panel=RECOVERY),
    ] = None,
    config: shared.Config = None,
    quiet: Annotated[
        bool | None, typer.Option("--quiet", help="No progress and no closing table.", rich_help_panel=RECOVERY)
    ] = None,
    verbose: Annotated[
        bool | None, typer.Option("--verbose", help="The engine's log on the terminal.", rich_help_panel=RECOVERY)
    ] = None,
) -> None:
    """Score every pair of INPUT and write OUTPUT: the input's columns and a verdict for each row.

    Killed or stopped, the same command goes on where it was. Exit codes: 0 all rows written, 1 failed, 2 usage,
    3 more unscored rows than --max-unscored, 130 stopped.
    """
    given: dict[str, Any] = dict(locals())  # the options, by the names of the parameters
    inputs, output = _split_paths(given.pop("paths"))
    file = given.pop("config")
    given["engine_arg"] = parse_pairs(engine_arg, "--engine-arg") if engine_arg else None
    given["keep_columns"] = split_words(keep_columns)
    given["retry_status"] = split_words(retry_status)
    given["journal"] = str(journal) if journal else None
    settings = make_config(inputs, output, {name.replace("_", "-"): value for name, value in given.items()}, file=file)
    _execute(settings)


def _execute(config: RunConfig) -> None:
    import anyio
    from rich.console import Console

    from batchfact import pipeline
    from batchfact.cli.display import closing_table, shown

    with shown(quiet=config.runtime.quiet) as watch:
        report = anyio.run(lambda: pipeline.run(config, watch=watch))
    if not config.runtime.quiet:
        Console().print(closing_table(report))


def _split_paths(paths: list[str]) -> tuple[tuple[str, ...], str]:
    if len(paths) < 2:
        raise UsageError(f"run takes at least an input and an output, got {paths[0]!r} alone")
    return tuple(paths[:-1]), paths[-1]
