"""The options that several commands share, in the groups of `--help`. None always means: not given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

METHOD = "Method (a change asks the model again)"
PROMPTING = "Prompting and sampling (a change asks the model again)"
FOLD = "Verdict and columns (a change only merges again)"
SPEED = "Speed and memory (free to change)"
RECOVERY = "Recovery and display (free to change)"

Model = Annotated[
    str | None,
    typer.Option(
        help=(
            "A name from `batchfact models list`, a folder or a Hugging Face id (default: smollm2-135m-factual for "
            "labels by sent-nli and summ-nli, its base smollm2-135m for all else)."
        ),
        rich_help_panel=METHOD,
    ),
]
Paradigm = Annotated[
    Literal["summ-nli", "sent-nli", "qg-qa", "vanilla", "cot", "sbs"] | None,
    typer.Option(
        help=(
            "Xu 2024: the whole summary, windows of it, or questions about its entities. Chen 2023: vanilla, "
            "chain-of-thought or sentence-by-sentence prompting (default: sent-nli)."
        ),
        rich_help_panel=METHOD,
    ),
]
DocumentColumn = Annotated[str | None, typer.Option(help="Default: document.", rich_help_panel=METHOD)]
SummaryColumn = Annotated[str | None, typer.Option(help="Default: summary.", rich_help_panel=METHOD)]
Reasoning = Annotated[
    bool | None,
    typer.Option(
        "--reasoning/--label-only",
        help="Let the model reason before its label, or ask for the label alone (default: the model's own).",
        rich_help_panel=METHOD,
    ),
]
ReasoningTokens = Annotated[
    int | None, typer.Option(help="Longest reasoning before a label, in tokens (default: 200).", rich_help_panel=METHOD)
]
WindowSentences = Annotated[
    int | None, typer.Option(help="Summary sentences in a window (default: 1).", rich_help_panel=METHOD)
]
WindowContext = Annotated[
    Literal["none", "preceding", "summary"] | None,
    typer.Option(
        help="What of the summary is shown beside a window, as context (default: none).", rich_help_panel=METHOD
    ),
]
LongDocuments = Annotated[
    Literal["auto", "align", "chunk", "fail"] | None,
    typer.Option(
        help="Show a document's nearest sentences (align), or all of it in turn (chunk), where it does not fit: auto "
        "aligns only then, fail leaves the row unscored (default: the model's own, else auto).",
        rich_help_panel=METHOD,
    ),
]
ContextTokens = Annotated[
    int | None,
    typer.Option(
        help="Most tokens aligned with a whole summary, for summ-nli (default: the model's own, else 1024).",
        rich_help_panel=METHOD,
    ),
]
AlignSentences = Annotated[
    int | None,
    typer.Option(
        help="Document sentences aligned with a window (default: the model's own, else 5).", rich_help_panel=METHOD
    ),
]
AlignObjective = Annotated[
    Literal["greedy", "independent"] | None,
    typer.Option(
        help="Take the sentence that adds most to the recall so far, or rank each alone (default: greedy).",
        rich_help_panel=METHOD,
    ),
]
LabelMode = Annotated[
    Literal["probability", "parse"] | None,
    typer.Option(
        help="Labels from the probabilities of Yes and No, or read from free text (default: probability).",
        rich_help_panel=PROMPTING,
    ),
]
Rating = Annotated[
    bool | None,
    typer.Option(
        "--rating",
        help=(
            "Ask for a consistency rating from 1 to 5, scaled to [0, 1]; the summary's is the mean of its windows "
            "(qg-qa: the share of consistent claims)."
        ),
        rich_help_panel=PROMPTING,
    ),
]
Instruction = Annotated[
    int | None,
    typer.Option(
        metavar="1|2|3",
        help="Wording of the question for vanilla, cot and sbs (default: 1).",
        rich_help_panel=PROMPTING,
    ),
]
Shots = Annotated[
    int | None,
    typer.Option(
        metavar="K",
        help="Few-shot examples, half of each label, for vanilla, cot and sbs (default: 0).",
        rich_help_panel=PROMPTING,
    ),
]
Demonstrations = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help=(
            "Labelled Parquet that --shots draws from: document, summary, label (1 or 0), and reasoning for cot, "
            "sentence_labels for sbs. Documents that are scored are never shown."
        ),
        rich_help_panel=PROMPTING,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(help="Of --shots and of --temperature (default: 0).", rich_help_panel=PROMPTING),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        metavar="T",
        help="Of written text; above 0 nothing is shared between equal requests (default: 0).",
        rich_help_panel=PROMPTING,
    ),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        help="Longest prompt with its answer, in tokens (default: the model's, at most 8192).", rich_help_panel=METHOD
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(help="bfloat16, float16, float32 (default: what suits the device).", rich_help_panel=METHOD),
]
Quantization = Annotated[
    str | None, typer.Option(help="A quantisation the engine knows, such as fp8.", rich_help_panel=METHOD)
]

Deterministic = Annotated[
    bool | None,
    typer.Option(
        "--deterministic",
        help="Answers that do not depend on what else is asked, as far as the engine can; slower.",
        rich_help_panel=METHOD,
    ),
]

Threshold = Annotated[
    float | None,
    typer.Option(
        help="A score at or above it counts as consistent (default: the calibration's, or 0.5).", rich_help_panel=FOLD
    ),
]
Aggregation = Annotated[
    Literal["any", "mean", "share"] | None,
    typer.Option(
        help=(
            "Any inconsistent finding decides, the mean of scores, or the share of consistent findings (default: what "
            "the calibration was fitted with; without one any; with --rating mean, for qg-qa share)."
        ),
        rich_help_panel=FOLD,
    ),
]
MinLabelMass = Annotated[
    float | None,
    typer.Option(
        help="A finding whose labels have less probability than this is unknown (default: 0.01).", rich_help_panel=FOLD
    ),
]
Calibration = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="A file of `batchfact calibrate`, whose threshold is then the default; none for none (default: the "
        "model's own, if it has one for this method).",
        rich_help_panel=FOLD,
    ),
]
ColumnPrefix = Annotated[
    str | None, typer.Option(help="Put before the output's own columns (default: batchfact_).", rich_help_panel=FOLD)
]
KeepColumns = Annotated[
    str | None, typer.Option(help="Input columns to keep, comma-separated (default: all).", rich_help_panel=FOLD)
]
DropDocument = Annotated[
    bool | None, typer.Option("--drop-document", help="Leave the document column out.", rich_help_panel=FOLD)
]

Engine = Annotated[
    str | None,
    typer.Option(help="auto, vllm, transformers, openai or one of your own (default: auto).", rich_help_panel=SPEED),
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


def split_words(text: str | None) -> list[str] | None:
    """The words of a comma-separated option, without blanks around them; None where it was not given."""
    return [word.strip() for word in text.split(",") if word.strip()] if text is not None else None
