"""The options that several commands share, in the groups of `--help`. None always means: not given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

METHOD = "Method (a change asks the model again)"
FOLD = "Verdict and columns (a change only merges again)"
SPEED = "Speed and memory (free to change)"
RECOVERY = "Recovery and display (free to change)"

Model = Annotated[
    str | None,
    typer.Option(help="A name from `batchfact models list`, a folder or a Hugging Face id.", rich_help_panel=METHOD),
]
Paradigm = Annotated[
    Literal["summ-nli", "sent-nli", "qg-qa"] | None,
    typer.Option(
        help="Whole summary, windows of it, or questions about its entities [sent-nli].", rich_help_panel=METHOD
    ),
]
DocumentColumn = Annotated[str | None, typer.Option(help="[document]", rich_help_panel=METHOD)]
SummaryColumn = Annotated[str | None, typer.Option(help="[summary]", rich_help_panel=METHOD)]
Reasoning = Annotated[
    bool | None,
    typer.Option(
        "--reasoning/--label-only",
        help="Let the model reason before its label, or ask for the label alone [the model's own].",
        rich_help_panel=METHOD,
    ),
]
WindowSentences = Annotated[int | None, typer.Option(help="Summary sentences in a window [1].", rich_help_panel=METHOD)]
WindowContext = Annotated[
    Literal["none", "preceding", "summary"] | None,
    typer.Option(help="What of the summary is shown beside a window, as context [none].", rich_help_panel=METHOD),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(help="Longest prompt with its answer, in tokens [the model's, at most 8192].", rich_help_panel=METHOD),
]
Dtype = Annotated[
    str | None, typer.Option(help="bfloat16, float16, float32 [what suits the device].", rich_help_panel=METHOD)
]
Quantization = Annotated[
    str | None, typer.Option(help="A quantisation the engine knows, such as fp8.", rich_help_panel=METHOD)
]

Threshold = Annotated[
    float | None, typer.Option(help="A score at or above it counts as consistent [0.5].", rich_help_panel=FOLD)
]
Aggregation = Annotated[
    Literal["any", "mean"] | None,
    typer.Option(help="Any inconsistent finding decides, or the mean of scores [any].", rich_help_panel=FOLD),
]
MinLabelMass = Annotated[
    float | None,
    typer.Option(
        help="A finding whose labels have less probability than this is unknown [0.01].", rich_help_panel=FOLD
    ),
]
ColumnPrefix = Annotated[
    str | None, typer.Option(help="Put before the output's own columns [batchfact_].", rich_help_panel=FOLD)
]
KeepColumns = Annotated[
    str | None, typer.Option(help="Input columns to keep, comma-separated [all].", rich_help_panel=FOLD)
]
DropDocument = Annotated[
    bool | None, typer.Option("--drop-document", help="Leave the document column out.", rich_help_panel=FOLD)
]

Engine = Annotated[
    str | None, typer.Option(help="auto, vllm, transformers, openai or one of your own [auto].", rich_help_panel=SPEED)
]
BaseUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Where --engine openai finds its server, up to /v1.", rich_help_panel=SPEED),
]
ApiKeyEnv = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The environment variable with the server's key.", rich_help_panel=SPEED),
]
Config = Annotated[Path | None, typer.Option(help="A TOML file with options by these names.", rich_help_panel=RECOVERY)]
