from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchfact.cli.models import app
from batchfact.errors import UsageError
from batchfact.models import find_model
from batchfact.models.registry import Excerpts, Folder, ModelEntry, register, shipped_models
from tests.unit.model_folders import write_folder


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHFACT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BATCHFACT_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("COLUMNS", "400")


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_list_shows_every_name_and_whether_it_is_here():
    lines = {line.split()[0]: line for line in printed("list").splitlines()[1:]}
    assert list(lines) == list(shipped_models())
    assert "not trained" in lines["llama2-7b-distilled"]
    assert lines["flan-t5-xxl"].split()[3] == "no"
    assert "no, gated" in lines["llama2-7b-chat"]


def test_a_registered_folder_is_listed_as_here_shown_pulled_and_found(tmp_path: Path):
    folder = write_folder(tmp_path / "trained")
    assert "use it with --model mine" in printed("add", "mine", str(folder))
    assert find_model("mine").source == Folder(path=folder)
    assert any(line.split()[:2] == ["mine", "yes"] for line in printed("list").splitlines())
    assert str(folder) in printed("show", "mine")
    assert f"mine is ready: {folder}" in printed("pull", "mine")


def test_show_tells_modes_and_note_of_a_model_that_is_not_here():
    said = printed("show", "llama2-7b-distilled")
    assert "sent-nli with reasoning, sent-nli label only" in said
    assert "T-w-R + I-wo-R" in said


def test_show_tells_how_much_of_documents_a_model_is_shown(tmp_path: Path):
    excerpts = Excerpts(align_sentences=8, context_tokens=384)
    register(ModelEntry(name="mine", source=Folder(path=write_folder(tmp_path / "trained")), excerpts=excerpts))
    assert "align: 8 sentences a window, 384 tokens a summary" in printed("show", "mine")


def test_pull_of_an_untrained_model_ends_with_the_sentence_that_says_what_to_do():
    with pytest.raises(UsageError, match="not trained yet"):
        printed("pull", "llama2-7b-distilled")
