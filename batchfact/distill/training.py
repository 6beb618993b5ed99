"""`batchfact distill train`: examples and a base model become a tuned model, with checkpoints to go on from.

A recipe and the file of examples flow in; the output folder flows out: checkpoints, `model/` (an adapter, or all
weights of a full fine-tuning), `distil.json` (what it was made with), `log.json` and `curves.png`. The same command
goes on after a kill.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from batchfact.assembly import Assembler
from batchfact.distill.building import base_entry
from batchfact.distill.curves import draw_curves
from batchfact.distill.example_files import Made, Placed, read_examples, read_made
from batchfact.distill.measures import best_evaluation, check_measurable
from batchfact.distill.recipe import Recipe, Train
from batchfact.distill.visits import Document, Visits, gather, too_long
from batchfact.durable import durable_file
from batchfact.engines.tokenizer import load_tokenizer
from batchfact.errors import RunFailedError, UsageError
from batchfact.models import locate, model_digest
from batchfact.models.digest import file_sha256
from batchfact.models.folder import read_config

if TYPE_CHECKING:
    from batchfact.distill.trainer import TreeTrainer

Tell = Callable[[str], None]

RECORD = "distil.json"
MODEL = "model"


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a training folder was made with: a change of it is another training."""

    recipe: dict[str, Any]
    examples_sha256: str
    made: Made
    start: str | None = None
    """The digest of the adapter that training began from; None for a fresh one."""


class Trained(Struct, frozen=True, kw_only=True):
    """Where the model is, and what the evaluation of its checkpoint said; `metrics` is empty without test examples.

    `is_main` is false in all but one of several processes, so that one alone reports.
    """

    model: Path
    steps: int
    metrics: dict[str, float]
    is_main: bool


def train(
    recipe: Recipe,
    examples: Path,
    output: Path,
    *,
    start: Path | None = None,
    restart: bool = False,
    tell: Tell,
) -> Trained:
    """Train as the recipe says, or go on with the training that `output` holds.

    Args:
        start: an adapter folder to begin from, for the same base; None begins with a fresh adapter.
        restart: drop what `output` holds.
        tell: hears a line for each log entry.
    Raises: UsageError for anything that cannot be trained as it is; RunFailedError where memory runs out.
    """
    import torch
    from accelerate import PartialState

    made = read_made(examples)
    folder = locate(base_entry(recipe), tell=tell)
    _check_base(recipe, made, folder)
    record = Record(
        recipe=msgspec.json.decode(msgspec.json.encode(recipe)),
        examples_sha256=file_sha256(examples),
        made=made,
        start=_start_digest(start, made) if start else None,
    )
    process = PartialState(cpu=not torch.cuda.is_available())
    with process.main_process_first():
        checkpoint = _checkpoint(output, record, restart=restart and process.is_main_process)
        if process.is_main_process:
            _write(output / RECORD, msgspec.json.encode(record))
    tokenizer = load_tokenizer(folder)
    documents, tests = _documents(examples)
    tests = tests[: recipe.train.eval_documents]
    visits = Visits(Assembler(tokenizer), recipe.trees)
    _check_documents(recipe, documents, tests, visits, context=read_config(folder).max_position_embeddings)
    trainer = _trainer(recipe.train, output, folder, start, documents, tests, visits)
    if checkpoint:
        tell(f"going on from {checkpoint.name}")
    _report_to(trainer, tell)
    try:
        done = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except MemoryError as error:
        raise RunFailedError(f"training needs more memory than there is ({error}); lower trees.max_tokens") from error
    _save(trainer, tokenizer.pretrained, output, record)
    history: list[dict[str, float]] = trainer.state.log_history
    metrics = best_evaluation(history)
    return Trained(
        model=output / MODEL,
        steps=int(done.global_step),
        metrics={name: value for name, value in metrics.items() if name.startswith("eval_")},
        is_main=process.is_main_process,
    )


def read_record(folder: Path) -> Record | None:
    """What a training folder, or its `model/`, was made with; None where nothing says so.

    Raises: UsageError if it cannot be read.
    """
    for place in (folder, folder.parent):
        path = place / RECORD
        try:
            return msgspec.json.decode(path.read_bytes(), type=Record)
        except FileNotFoundError:
            continue
        except (OSError, msgspec.MsgspecError) as error:
            raise UsageError(f"{path} cannot be read ({error}); it is damaged or of another version") from error
    return None


def _check_base(recipe: Recipe, made: Made, folder: Path) -> None:
    if made.base_digest != model_digest(folder):
        raise UsageError(
            f"the examples were made with another base ({made.base}, {made.base_digest[:12]}...) than {recipe.base}; "
            "build them anew"
        )
    if (made.prompts, made.recipe) != (recipe.prompts, recipe.name):
        raise UsageError(
            f"the examples were made by the recipe {made.recipe!r} with prompts {made.prompts!r}, not by "
            f"{recipe.name!r} with {recipe.prompts!r}; build them anew"
        )


def _start_digest(start: Path, made: Made) -> str:
    """Raises: UsageError for a folder that holds no adapter, or one of another base."""
    weights = start / "adapter_model.safetensors"
    if not weights.is_file():
        raise UsageError(f"--start {start} holds no adapter (adapter_model.safetensors)")
    record = read_record(start)
    if record is not None and record.made.base_digest != made.base_digest:
        raise UsageError(
            f"--start {start} is an adapter of another base ({record.made.base}, {record.made.base_digest[:12]}...)"
        )
    return file_sha256(weights)


def _checkpoint(output: Path, record: Record, *, restart: bool) -> Path | None:
    """The newest whole checkpoint of this training; None for a new one.

    Raises: UsageError if the folder holds another training.
    """
    if restart:
        shutil.rmtree(output, ignore_errors=True)
    kept = read_record(output) if (output / RECORD).is_file() else None
    if kept is not None and kept != record:
        parts = [name for name in Record.__struct_fields__ if getattr(kept, name) != getattr(record, name)]
        raise UsageError(
            f"{output} holds a training with another {' and '.join(parts)}; choose another folder, or drop it with "
            "--restart"
        )
    output.mkdir(parents=True, exist_ok=True)
    found = sorted(output.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    # The Trainer writes its state last, so that a checkpoint without it was cut off by a kill.
    return next((path for path in reversed(found) if (path / "trainer_state.json").is_file()), None)


def _documents(examples: Path) -> tuple[list[Document], list[Document]]:
    """Training documents, and those to test with: by label alone, unless there is nothing but reasoning."""
    sides: dict[str, list[Placed]] = {"train": [], "test": []}
    for each in read_examples(examples):
        sides[each.split].append(each)
    label_only = [each for each in sides["test"] if each.example.source is None]
    return gather(sides["train"]), gather(label_only or sides["test"])


def _check_documents(
    recipe: Recipe, documents: list[Document], tests: list[Document], visits: Visits, *, context: int | None
) -> None:
    """Raises: UsageError for examples that do not fit, one label only, or a tree longer than the model's context."""
    most = recipe.trees.max_tokens
    if context is not None and most > context:
        raise UsageError(f"trees.max_tokens ({most:,}) exceeds the context of {recipe.base} ({context:,})")
    if not documents:
        raise UsageError("the examples have none for training")
    if recipe.trees.document_words is None:
        unfit = [group for document in documents for group in visits.unfit(document)]
        if unfit:
            raise UsageError(too_long(unfit, most))
    if tests:
        check_measurable([summary.label for document in tests for summary in document.summaries])


def _trainer(
    settings: Train,
    output: Path,
    base: Path,
    start: Path | None,
    documents: list[Document],
    tests: list[Document],
    visits: Visits,
) -> TreeTrainer:
    from transformers import EarlyStoppingCallback, PrinterCallback, ProgressCallback, set_seed

    from batchfact.distill.loading import load_model
    from batchfact.distill.trainer import TreeSet, TreeTrainer, arguments

    set_seed(settings.seed)
    stopping = [EarlyStoppingCallback(settings.patience)] if settings.patience and tests else []
    trainer = TreeTrainer(
        model=load_model(base, settings, start),
        args=arguments(settings, output, has_tests=bool(tests)),
        train_dataset=TreeSet(
            documents, visits, synthetic_share=visits.settings.synthetic_documents, seed=settings.seed
        ),
        eval_dataset=tests or None,
        callbacks=stopping,
        visits=visits,
        lowest_share=settings.lowest_window_share,
    )
    if settings.lora and settings.lora.merged and (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled):
        # A shard of a weight is another tensor than the one that the merged layer holds.
        raise UsageError("train.lora.merged goes with no sharded weights (FSDP, DeepSpeed); set it to false")
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    return trainer


def _report_to(trainer: TreeTrainer, tell: Tell) -> None:
    from transformers import TrainerCallback

    class Telling(TrainerCallback):  # type: ignore[misc]
        """Says each log entry in a line."""

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
            del args, control
            if state.is_world_process_zero and logs:
                told = ", ".join(f"{name.removeprefix('eval_')} {value:.4g}" for name, value in logs.items())
                tell(f"step {state.global_step}/{state.max_steps}: {told}")

    trainer.add_callback(Telling())


def _save(trainer: TreeTrainer, tokenizer: Any, output: Path, record: Record) -> None:
    """The final model (the best one, where there were evaluations) with its record, log and curves."""
    trainer.save_model(str(output / MODEL))
    if not trainer.is_world_process_zero():
        return
    tokenizer.save_pretrained(output / MODEL)
    history = trainer.state.log_history
    _write(output / MODEL / RECORD, msgspec.json.encode(record))
    _write(output / "log.json", msgspec.json.format(msgspec.json.encode(history)))
    draw_curves(history, output / "curves.png")


def _write(path: Path, content: bytes) -> None:
    with durable_file(path) as file:
        file.write(content)
