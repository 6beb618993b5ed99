"""The model card of a trained scorer, as Markdown.

A model's entry, its recipe and what was measured flow in; a text for people flows out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchfact.distill.example_files import Made
from batchfact.distill.recipe import Recipe
from batchfact.models.registry import ModelEntry


def model_card(entry: ModelEntry, recipe: Recipe, made: Made, metrics: Mapping[str, Any], form: str) -> str:
    """Args: `metrics` are numbers by name, nested at most once (a data set's); `form` is adapter or merged."""
    sections = [
        f"# {entry.name}",
        _about(entry, made, form),
        "## Use\n\n" + _use(entry),
        "## Trained for\n\n" + "\n".join(_modes(entry)),
        "## Data\n\n" + _data(made),
        "## Training\n\n" + _training(recipe),
        "## Measured\n\n" + _measured(metrics),
        "## Limits\n\n" + "\n".join(f"- {limit}" for limit in (*recipe.card.limits, *_common_limits(entry))),
    ]
    return "\n\n".join(sections) + "\n"


def _about(entry: ModelEntry, made: Made, form: str) -> str:
    what = "A low-rank adapter on" if form == "adapter" else "All weights of a model trained from"
    lines = [f"{what} {made.base} (digest {made.base_digest}), made with batchfact {made.batchfact_version}."]
    lines += [f"{entry.note[0].upper()}{entry.note[1:]}."] if entry.note else []
    lines += [f"Licence: {entry.licence}."] if entry.licence else []
    return "\n".join(lines)


def _use(entry: ModelEntry) -> str:
    paradigms = [mode.paradigm for mode in entry.trained]
    paradigm = "sent-nli" if "sent-nli" in paradigms or not paradigms else paradigms[0]
    return f"    batchfact run pairs.parquet scored.parquet --model {entry.name} --paradigm {paradigm}"


def _modes(entry: ModelEntry) -> list[str]:
    modes = [f"- {mode.paradigm}, {'with reasoning' if mode.reasoning else 'label only'}" for mode in entry.trained]
    return [*modes, "", "Prompts, by the SHA-256 of their template files:", ""] + [
        f"- `{name}` {digest}" for name, digest in entry.prompt_digests.items()
    ]


def _data(made: Made) -> str:
    rows = [f"| {each.name} | {each.rows or ''} | {each.licence or 'not stated'} |" for each in made.origins]
    return "\n".join(["| data set | summaries trained on | licence |", "|---|---|---|", *rows])


def _training(recipe: Recipe) -> str:
    train = recipe.train
    kind = f"LoRA of rank {train.lora.rank} on every linear layer" if train.lora else "All weights"
    strategy = "T-w-R (labels and reasoning)" if recipe.build.reasoning else "T-wo-R (labels only)"
    length = f"{train.max_steps:,} steps" if train.max_steps else f"{train.epochs:g} epochs"
    return (
        f"{kind}; {length} of {train.trees_a_step} document trees a device, learning rate {train.learning_rate:g}, "
        f"strategy {strategy}, seed {train.seed}. Method: Xu 2024, section 4."
    )


def _measured(metrics: Mapping[str, Any]) -> str:
    if not metrics:
        return "Nothing was measured when this card was written."
    flat = {
        f"{name}, {inner}" if inner else name: value
        for name, values in metrics.items()
        for inner, value in (values.items() if isinstance(values, dict) else (("", values),))
    }
    rows = [f"| {name} | {f'{value:.4g}' if isinstance(value, float) else value} |" for name, value in flat.items()]
    return "\n".join(["| measure | value |", "|---|---|", *rows])


def _common_limits(entry: ModelEntry) -> list[str]:
    limits = ["It judges whether the document supports a summary, not whether the summary is true."]
    if entry.context:
        limits.append(f"Its context is {entry.context:,} tokens; of longer documents only parts are shown at once.")
    return limits
