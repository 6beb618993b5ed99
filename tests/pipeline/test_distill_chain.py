"""The chain on a tiny random model: synthesize, build, train, go on after a kill, export, run, eval."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from batchfact.cli import app
from batchfact.errors import UsageError
from tests.distill_samples import QUICK, document, write_labelled, write_recipe
from tests.pipeline.command_line import rows
from tests.tiny_models import save_llama

DATA = """
[[data]]
name = "notes"
path = "notes.parquet"
units = ["summary", "window"]
licence = "CC0"

[[data]]
name = "made"
path = "made.parquet"
side = "train"
synthetic = true
example_weight = 0.6
"""


def call(*words: object) -> str:
    """The command line in this process, so that torch is imported once; a UsageError is raised as it is."""
    done = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert done.exit_code == 0, (done.exit_code, done.output)
    return done.output


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATCHFACT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BATCHFACT_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    save_llama(tmp_path / "base")
    write_labelled(tmp_path / "notes.parquet", range(24))
    pq.write_table(pa.table({"document": [document(number) for number in range(20, 40)]}), tmp_path / "raw.parquet")
    write_recipe(tmp_path / "recipe.toml", tmp_path / "base", QUICK, data=DATA)
    return tmp_path


def logged(folder: Path, name: str) -> dict[int, Any]:
    return {entry["step"]: entry[name] for entry in json.loads((folder / "log.json").read_text()) if name in entry}


def test_labelled_pairs_become_a_model_that_run_takes_by_name(folder: Path):
    call("distill", "synthesize", "raw.parquet", "made.parquet", "--claims", 6)
    assert "R-ratio" in call("distill", "build", "examples.parquet", "--recipe", "recipe.toml")

    train = ("distill", "train", "examples.parquet", "out", "--recipe", "recipe.toml")
    said = call(*train)
    assert "step 4/4" in said and "roc auc" in said
    assert (folder / "out" / "curves.png").read_bytes()[:4] == b"\x89PNG"
    uninterrupted = logged(folder / "out", "loss")

    # As a kill in the middle of writing the second checkpoint would leave it.
    shutil.rmtree(folder / "out" / "model")
    (folder / "out" / "checkpoint-4" / "trainer_state.json").unlink()
    said = call(*train)
    assert "going on from checkpoint-2" in said and "step 2/4: loss" not in said
    assert logged(folder / "out", "loss") == pytest.approx(uninterrupted, rel=1e-4)
    write_recipe(folder / "other.toml", folder / "base", QUICK.replace("0.01", "0.02"), data=DATA)
    with pytest.raises(UsageError, match="holds a training with another recipe"):
        call(*train[:-1], "other.toml")

    said = call("distill", "export", "out", "tiny-scorer", "--recipe", "recipe.toml")
    assert "use it with --model tiny-scorer" in said
    card = (folder / "tiny-scorer" / "README.md").read_text()
    assert "| notes |" in card and "CC0" in card and "roc_auc" in card and "It knows shops." in card

    run = ("--model", "tiny-scorer", "--engine", "transformers", "--quiet", "--min-label-mass", 0)
    assert "warning" not in call("run", "notes.parquet", "scored.parquet", *run)
    scored = rows(folder / "scored.parquet")
    assert len(scored) == 48 and {row["batchfact_status"] for row in scored} == {"ok"}
    measured = call("eval", "scored.parquet")
    assert " 48 " in measured and "Unscored rows count as wrong" in measured
    said = call("run", "notes.parquet", "vanilla.parquet", *run, "--limit", 2, "--paradigm", "vanilla")
    assert "tiny-scorer is not trained for vanilla label only, but for summ-nli label only, sent-nli label only" in said
