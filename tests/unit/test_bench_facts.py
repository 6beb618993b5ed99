"""What results say of their making, without the places of the machine that made them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import bench.facts
from bench.facts import RESULTS, command_line, facts, without_folders, without_place


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a file, beside a folder with another one; the current folder is the repository."""
    for file in ("repository/shared/in.parquet", "elsewhere/other.parquet"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    monkeypatch.setattr(bench.facts, "ROOT", tmp_path / "repository")
    monkeypatch.chdir(tmp_path / "repository")
    return tmp_path / "repository"


def test_a_path_within_the_repository_is_told_relative_to_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert without_place(str(root / "shared" / "in.parquet")) == "shared/in.parquet"
    assert without_place("shared/in.parquet") == "shared/in.parquet"
    assert without_place(f"--input={root / 'shared'}") == "--input=shared"
    monkeypatch.chdir(root / "shared")
    assert without_place("in.parquet") == "shared/in.parquet"


def test_of_a_path_outside_the_repository_the_name_is_told(root: Path) -> None:
    assert without_place(str(root.parent / "elsewhere" / "other.parquet")) == "other.parquet"
    assert without_place("../elsewhere/other.parquet") == "other.parquet"
    assert without_place("/no/such/file.json") == "file.json"


@pytest.mark.usefixtures("root")
def test_words_that_are_no_paths_stay_as_they_are() -> None:
    words = ["--pairs", "96", "owner/model", "a note = with words", "", "--dtype=float32", "long " * 100]

    assert [without_place(word) for word in words] == words


def test_a_command_can_be_given_again(root: Path) -> None:
    told = command_line("bench", ["plan", str(root / "shared" / "in.parquet"), "--note", "two words"])

    assert told == "python -m bench plan shared/in.parquet --note 'two words'"


def test_all_files_of_a_folder_are_told_as_a_pattern(root: Path) -> None:
    (root / "shared" / "more.parquet").touch()
    both = [str(root / "shared" / name) for name in ("in.parquet", "more.parquet")]

    assert command_line("bench", ["host", "--input", *both]) == "python -m bench host --input shared/*.parquet"
    assert command_line("bench", ["--input", both[0]]) == "python -m bench --input shared/in.parquet"
    (root / "shared" / "third.parquet").touch()
    assert command_line("bench", both) == "python -m bench shared/in.parquet shared/more.parquet"


def test_no_kept_result_has_a_path_of_a_machine() -> None:
    def texts(value: object) -> list[str]:
        if isinstance(value, dict):
            return [text for each in value.values() for text in texts(each)]
        if isinstance(value, list):
            return [text for each in value for text in texts(each)]
        return [value] if isinstance(value, str) else []

    for path in RESULTS.glob("*.json"):
        for text in texts(json.loads(path.read_text())):
            assert not any(Path(word).is_absolute() or word.startswith("../") for word in text.split()), path.name


def test_a_machine_without_a_gpu_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)

    assert facts()["machine"]["gpus"] == []


def test_a_message_keeps_the_names_of_files_and_loses_their_folders() -> None:
    assert without_folders("OSError: '/work/a/x.json' is no file") == "OSError: 'x.json' is no file"
    assert without_folders("measured: /work/k.json") == "measured: k.json"
    assert without_folders("3/4, a/b/c and https://a.b/c/d") == "3/4, a/b/c and https://a.b/c/d"
