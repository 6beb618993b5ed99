"""Training on a tiny model: what it learns, what it refuses, and what comes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from batchfact.distill.building import build
from batchfact.distill.exporting import _read_metrics, export
from batchfact.distill.measures import best_evaluation
from batchfact.distill.recipe import read_recipe
from batchfact.distill.training import train
from batchfact.errors import UsageError
from batchfact.models import find_model, locate, model_digest
from batchfact.models.folder import problem_with
from batchfact.models.registry import AdapterFolder, Folder
from tests.distill_samples import QUICK, write_labelled, write_recipe
from tests.tiny_models import save_llama

FULL = """
[build]
reasoning = true
test_share = 0

[trees]
max_tokens = 3000

[train]
max_steps = 12
learning_rate = 0.01
trees_a_step = 2
warmup = 1
bf16 = false
eval_steps = 12
log_steps = 1
"""
HUMAN = '[[data]]\nname = "notes"\npath = "notes.parquet"\nunits = ["summary"]\nreason = "why"\n'


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHFACT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BATCHFACT_CONFIG_DIR", str(tmp_path / "config"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("base"))


def silent(_: str) -> None:
    """Tell nobody."""


def recipe_and_examples(folder: Path, base: Path, extra: str, data: str = "", numbers: range = range(12)) -> Any:
    write_labelled(folder / "notes.parquet", numbers, why="The notes say so.")
    recipe = read_recipe(write_recipe(folder / "recipe.toml", base, extra, data=data))
    build(recipe, folder / "examples.parquet", data=folder)
    return recipe, folder / "examples.parquet"


def test_all_weights_learn_reasons_and_labels_and_are_exported_in_bfloat16(tmp_path: Path, base: Path):
    recipe, examples = recipe_and_examples(tmp_path, base, FULL, HUMAN)
    done = train(recipe, examples, tmp_path / "out", tell=silent)
    losses = [entry["loss"] for entry in json.loads((tmp_path / "out" / "log.json").read_text()) if "loss" in entry]
    assert len(losses) == 12 and min(losses[-3:]) < 0.7 * losses[0]
    assert done.metrics == {}  # there is nothing to test with
    exported = export(tmp_path / "out", tmp_path / "model", recipe, tell=silent)
    assert exported.entry.source == Folder(path=tmp_path / "model")
    assert [(mode.paradigm, mode.reasoning) for mode in exported.entry.trained] == [
        ("summ-nli", True),
        ("summ-nli", False),
    ]
    weights = load_file(tmp_path / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert "bfloat16" in (tmp_path / "model" / "config.json").read_text()
    assert problem_with(locate(find_model("tiny-scorer"))) is None
    with pytest.raises(UsageError, match="holds all weights, not an adapter"):
        export(tmp_path / "out", tmp_path / "again", recipe, form="adapter", tell=silent)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("max_tokens = 900", "max_tokens = 9000"), r"trees\.max_tokens \(9,000\) exceeds the context of .* \(4,096\)"),
        (
            ("max_tokens = 900\ndocument_words = [30, 60]", "max_tokens = 100"),
            r"24 summaries do not fit",
        ),
    ],
)
def test_examples_that_do_not_fit_are_refused_before_training(
    tmp_path: Path, base: Path, change: tuple[str, str], message: str
):
    recipe, examples = recipe_and_examples(tmp_path, base, QUICK.replace(*change).replace("0.3", "0"))
    with pytest.raises(UsageError, match=message):
        train(recipe, examples, tmp_path / "out", tell=silent)


def test_test_examples_of_one_label_cannot_be_measured(tmp_path: Path, base: Path):
    write_labelled(tmp_path / "other.parquet", range(30, 34))
    data = (
        '[[data]]\nname = "notes"\npath = "notes.parquet"\nside = "train"\n'
        '[[data]]\nname = "other"\npath = "other.parquet"\nside = "test"\nwhere = ["label = 1"]\n'
    )
    recipe, examples = recipe_and_examples(tmp_path, base, QUICK, data)
    with pytest.raises(UsageError, match="all test summaries are consistent"):
        train(recipe, examples, tmp_path / "out", tell=silent)


def test_one_label_in_the_documents_that_are_evaluated_is_refused_before_training(tmp_path: Path, base: Path):
    write_labelled(tmp_path / "other.parquet", range(30, 40))
    rows = pq.read_table(tmp_path / "other.parquet").to_pylist()
    # A document has one of its two pairs, so that the first document alone has one label.
    pq.write_table(pa.Table.from_pylist([rows[4 * pair + pair % 2] for pair in range(5)]), tmp_path / "other.parquet")
    data = (
        '[[data]]\nname = "notes"\npath = "notes.parquet"\nside = "train"\n'
        '[[data]]\nname = "other"\npath = "other.parquet"\nside = "test"\n'
    )
    extra = QUICK.replace("eval_steps = 2", "eval_steps = 2\neval_documents = 1")
    recipe, examples = recipe_and_examples(tmp_path, base, extra, data)
    with pytest.raises(UsageError, match=r"all test summaries are .*raise train.eval_documents"):
        train(recipe, examples, tmp_path / "out", tell=silent)


def another_base(base: Path, folder: Path) -> Path:
    """The same shapes with other numbers."""
    save_llama(folder)
    weights = load_file(folder / "model.safetensors")
    save_file({name: tensor + 0.5 for name, tensor in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    assert model_digest(folder) != model_digest(base)
    return folder


def test_examples_and_adapters_of_another_base_are_refused(tmp_path: Path, base: Path):
    recipe, examples = recipe_and_examples(tmp_path, base, QUICK)
    other = read_recipe(write_recipe(tmp_path / "other.toml", another_base(base, tmp_path / "other"), QUICK))
    with pytest.raises(UsageError, match="the examples were made with another base"):
        train(other, examples, tmp_path / "out", tell=silent)

    train(recipe, examples, tmp_path / "out", tell=silent)
    with pytest.raises(UsageError, match=r"was trained on another base"):
        export(tmp_path / "out", tmp_path / "model", other, tell=silent)
    build(other, tmp_path / "others.parquet", data=tmp_path)
    with pytest.raises(UsageError, match=r"--start .* is an adapter of another base"):
        train(other, tmp_path / "others.parquet", tmp_path / "next", start=tmp_path / "out" / "model", tell=silent)

    # A checkpoint is a model too, and training can begin from an adapter of the right base.
    exported = export(tmp_path / "out" / "checkpoint-2", tmp_path / "model", recipe, registers=False, tell=silent)
    assert isinstance(exported.entry.source, AdapterFolder) and not exported.is_registered
    assert train(recipe, examples, tmp_path / "next", start=tmp_path / "out" / "model", tell=silent).steps == 4
    merged = export(tmp_path / "out", tmp_path / "merged", recipe, form="merged", name="whole", tell=silent)
    assert isinstance(merged.entry.source, Folder) and locate(find_model("whole")) == tmp_path / "merged"
    with pytest.raises(UsageError, match="exists and is no earlier export"):
        export(tmp_path / "out", base, recipe, tell=silent)
    with pytest.raises(UsageError, match="holds no trained model"):
        export(tmp_path / "cache", tmp_path / "none", recipe, tell=silent)


def test_a_card_has_the_evaluation_of_the_checkpoint_that_became_the_model():
    history = [
        {"step": 20, "eval_roc_auc": 0.81, "loss": 0.4},
        {"step": 30, "loss": 0.3},
        {"step": 40, "eval_roc_auc": 0.62},
    ]
    assert best_evaluation(history)["step"] == 20
    assert best_evaluation(history[1:2]) == {}


def test_a_card_takes_a_few_numbers_of_an_evaluation(tmp_path: Path):
    measured = {"type": "measured", "value": 0.7, "low": 0.6, "high": 0.8}
    absent = {"type": "absent", "reason": "there are no human ratings"}
    measures = dict.fromkeys(("balanced_accuracy", "roc_auc", "f1", "calibration_error"), measured)
    cell = {
        "dataset": "notes",
        "runs": [{"repeat": "a", "measures": {"rows": 9, "scored": 8, "pearson": absent, **measures}}],
    }
    (tmp_path / "m.json").write_text(json.dumps({"cells": [cell]}), "utf-8")
    assert _read_metrics(tmp_path / "m.json") == {
        "notes": {"rows": 9, "scored": 8, "balanced_accuracy": 0.7, "roc_auc": 0.7, "f1": 0.7, "calibration_error": 0.7}
    }
