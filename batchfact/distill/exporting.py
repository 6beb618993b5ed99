"""`batchfact distill export`: a trained model becomes a folder that `run` takes by name.

A training's folder (or a plain PEFT adapter with its recipe) flows in; a folder with weights, `batchfact.json` and a
model card flows out, and an entry in the user's registry.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from batchfact import __version__
from batchfact.distill.building import base_entry, trained_modes, trained_templates
from batchfact.distill.card import model_card
from batchfact.distill.example_files import Made, Origin, read_made
from batchfact.distill.measures import best_evaluation
from batchfact.distill.recipe import Recipe
from batchfact.distill.training import MODEL, read_record
from batchfact.errors import UsageError
from batchfact.models import ModelEntry, locate, model_digest
from batchfact.models.adapter import CONFIG as ADAPTER_CONFIG
from batchfact.models.adapter import Adapter, check_fit, merge
from batchfact.models.folder import WEIGHTS, model_files, problem_with
from batchfact.models.registry import EXPORTED, AdapterFolder, Folder, refuse_pinned, register
from batchfact.models.tensor_files import TensorFile, TensorWriter, to_bfloat16, to_float32
from batchfact.prompts.loader import PromptBook, shipped_texts

CARD_MEASURES = ("balanced_accuracy", "roc_auc", "f1", "calibration_error", "pearson")
"""Of an evaluation, what a model card has."""

Form = Literal["adapter", "merged"]
Tell = Callable[[str], None]


class Exported(Struct, frozen=True, kw_only=True):
    """Where the model is, its entry, and whether the user's registry has it."""

    folder: Path
    entry: ModelEntry
    is_registered: bool


def export(
    trained: Path,
    output: Path,
    recipe: Recipe,
    *,
    form: Form | None = None,
    name: str | None = None,
    examples: Path | None = None,
    metrics: Path | None = None,
    registers: bool = True,
    tell: Tell,
) -> Exported:
    """Write the model in `trained` to `output`, and register it under `name` (by default the recipe's).

    Args:
        form: an adapter alone, which is small, or all weights; None keeps what training made.
        examples: what a folder was trained on that does not say so itself, such as a plain PEFT adapter.
        metrics: a JSON file for the card, such as `batchfact eval` writes.
    Raises: UsageError for a folder without a model, an adapter of another base, or an output that is something else.
    """
    name = name or recipe.name
    if registers:
        refuse_pinned(name)
    model = _model_folder(trained)
    is_adapter = (model / ADAPTER_CONFIG).is_file()
    form = form or ("adapter" if is_adapter else "merged")
    if form == "adapter" and not is_adapter:
        raise UsageError(f"{model} holds all weights, not an adapter; export it with --form merged")
    _check_output(output)
    base = base_entry(recipe)
    base_folder = locate(base, tell=tell)
    made = _made(model, recipe, base, base_folder, examples)
    entry = _entry(name, recipe, base, made, form, output)
    draft = output.with_name(f"{output.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        if is_adapter:
            adapter = Adapter(model)
            check_fit(base_folder, adapter)
            if form == "adapter":
                adapter.write(draft, base=recipe.base)
            else:
                merge(base_folder, adapter, draft)
        else:
            _copy_in_bfloat16(model, draft)
        (draft / EXPORTED).write_bytes(_portable(entry))
        measured = _read_metrics(metrics) if metrics else _training_metrics(trained)
        card = model_card(entry, recipe, made, measured, form)
        (draft / "README.md").write_text(card, encoding="utf-8")
        shutil.rmtree(output, ignore_errors=True)
        draft.rename(output)
    except OSError as error:
        raise UsageError(f"{output} cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    if registers:
        register(entry)
    return Exported(folder=output, entry=entry, is_registered=registers)


def _model_folder(trained: Path) -> Path:
    """The training's finished model, or the folder itself where it is a model or an adapter (a checkpoint).

    Raises: UsageError where there is neither.
    """
    for folder in (trained / MODEL, trained):
        if (folder / ADAPTER_CONFIG).is_file() or problem_with(folder) is None:
            return folder
    has_checkpoint = next(trained.glob("checkpoint-*"), None)
    hint = f"; training is not finished, export {has_checkpoint} or go on" if has_checkpoint else ""
    raise UsageError(f"{trained} holds no trained model{hint}")


def _check_output(output: Path) -> None:
    if output.exists() and not (output / EXPORTED).is_file() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"{output} exists and is no earlier export; choose another folder")


def _made(model: Path, recipe: Recipe, base: ModelEntry, base_folder: Path, examples: Path | None) -> Made:
    """What the model was trained with: its record says it, else its examples, else the recipe.

    Raises: UsageError where that was another base.
    """
    digest = model_digest(base_folder)
    record = read_record(model)
    if record is None and examples is None:
        return _made_by_recipe(recipe, base, digest)
    made = record.made if record else read_made(Path(str(examples)))
    if made.base_digest != digest:
        raise UsageError(
            f"{model} was trained on another base ({made.base}, {made.base_digest[:12]}...) than {recipe.base} "
            f"({digest[:12]}...)"
        )
    return made


def _made_by_recipe(recipe: Recipe, base: ModelEntry, digest: str) -> Made:
    prompts = PromptBook(lambda _: None, texts=shipped_texts(recipe.prompts))
    return Made(
        recipe=recipe.name,
        base=recipe.base,
        base_digest=digest,
        prompts=recipe.prompts,
        prompt_style=base.prompt_style,
        prompt_digests={name: prompts.digests[name] for name in trained_templates(recipe)},
        modes=trained_modes(recipe),
        origins=tuple(Origin(name=entry.name, licence=entry.licence, rows=0) for entry in recipe.data),
        batchfact_version=__version__,
    )


def _entry(name: str, recipe: Recipe, base: ModelEntry, made: Made, form: Form, output: Path) -> ModelEntry:
    folder = output.resolve()
    source: Folder | AdapterFolder = Folder(path=folder)
    if form == "adapter":
        source = AdapterFolder(base=recipe.base, base_digest=made.base_digest, path=folder)
    return ModelEntry(
        name=name,
        source=source,
        prompt_style=made.prompt_style,
        prompts=made.prompts,
        labels=base.labels,
        trained=made.modes,
        prompt_digests=dict(made.prompt_digests),
        excerpts=recipe.excerpts,
        parameters=base.parameters,
        context=base.context,
        licence=recipe.card.licence or base.licence,
        note=recipe.card.note,
    )


def _portable(entry: ModelEntry) -> bytes:
    """The entry as JSON, its source being wherever the file lies."""
    here = msgspec.structs.replace(entry.source, path=Path())
    return msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(entry, source=here), enc_hook=str)) + b"\n"


def _copy_in_bfloat16(model: Path, folder: Path) -> None:
    """All weights in bfloat16, in which models are run, with a configuration that says so."""
    for file in model_files(model):
        if file.match(WEIGHTS):
            source = TensorFile(file)
            with TensorWriter(folder / file.name, {name: ("BF16", source.shape_of(name)) for name in source}) as writer:
                for name in source:
                    writer.write(to_bfloat16(to_float32(source.read(name), source.dtype_of(name))))
        else:
            shutil.copyfile(file, folder / file.name)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config["torch_dtype" if "torch_dtype" in config else "dtype"] = "bfloat16"
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _read_metrics(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--metrics {path} is no readable JSON ({error})") from error
    if not isinstance(found, dict):
        raise UsageError(f"--metrics {path} must hold an object with names and numbers")
    return _headlines(found) if isinstance(found.get("cells"), list) else found


def _headlines(evaluation: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `batchfact eval --json` wrote, as a few numbers for each data set."""
    found: dict[str, Any] = {}
    for cell in evaluation["cells"]:
        for run in cell["runs"]:
            measures = run["measures"]
            name = cell["dataset"] if len(cell["runs"]) == 1 else f"{cell['dataset']}, {run['repeat']}"
            found[name] = {
                "rows": measures["rows"],
                "scored": measures["scored"],
                **{each: measures[each]["value"] for each in CARD_MEASURES if measures[each]["type"] == "measured"},
            }
    return found


def _training_metrics(trained: Path) -> Mapping[str, Any]:
    """The evaluation of the model's checkpoint, from the training's log."""
    try:
        history = json.loads((trained / "log.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {name: value for name, value in best_evaluation(history).items() if name.startswith("eval_")}
