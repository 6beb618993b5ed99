from __future__ import annotations

import json
from pathlib import Path

import pytest

from batchfact.models import digest as digest_module
from batchfact.models import model_digest
from batchfact.models.folder import problem_with, wanted
from tests.unit.model_folders import write_folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHFACT_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("name", "is_wanted"),
    [
        ("config.json", True),
        ("model-00001-of-00002.safetensors", True),
        ("model.safetensors.index.json", True),
        ("tokenizer.model", True),
        ("chat_template.jinja", True),
        ("pytorch_model.bin", False),
        ("modeling_custom.py", False),
        ("consolidated.safetensors", False),
        ("original/model.safetensors", False),
        ("README.md", False),
    ],
)
def test_only_configuration_safetensors_and_tokenizer_are_wanted(name: str, is_wanted: bool):
    assert wanted(name) is is_wanted


def test_a_complete_folder_has_no_problem(tmp_path: Path):
    assert problem_with(write_folder(tmp_path / "m")) is None


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("config.json", "config.json is missing"),
        ("model.safetensors", "no safetensors"),
        ("tokenizer.json", "tokenizer"),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, missing: str, said: str):
    assert said in str(problem_with(write_folder(tmp_path / "m", without=missing)))


def test_pickled_weights_alone_are_refused_with_the_way_to_convert_them(tmp_path: Path):
    folder = write_folder(tmp_path / "m", without="model.safetensors")
    (folder / "pytorch_model.bin").touch()
    assert "can run code" in str(problem_with(folder))


def test_an_interrupted_download_of_many_weight_files_is_noticed(tmp_path: Path):
    folder = write_folder(tmp_path / "m", without="model.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (folder / shards["a"]).touch()
    assert "1 of its 2 weight files are missing (model-00002-of-00002.safetensors)" in str(problem_with(folder))
    (folder / shards["b"]).touch()
    assert problem_with(folder) is None


def test_a_damaged_configuration_is_said_to_be_unreadable(tmp_path: Path):
    folder = write_folder(tmp_path / "m")
    (folder / "config.json").write_text("{")
    assert "cannot be read" in str(problem_with(folder))


def test_an_architecture_that_comes_as_code_is_refused_and_a_known_one_with_a_copy_of_its_code_is_not(tmp_path: Path):
    auto_map = {"AutoConfig": "configuration_x.XConfig"}
    unknown = write_folder(tmp_path / "a", model_type="internlm2", auto_map=auto_map)
    assert "never runs" in str(problem_with(unknown))
    assert problem_with(write_folder(tmp_path / "b", model_type="llama", auto_map=auto_map)) is None


def test_something_that_is_no_folder_is_said_to_be_none(tmp_path: Path):
    assert "is no folder" in str(problem_with(tmp_path / "nowhere"))


def test_the_digest_tells_what_is_inside_and_not_where_it_lies(tmp_path: Path):
    one, two = write_folder(tmp_path / "one"), write_folder(tmp_path / "two")
    (two / "README.md").write_text("not part of the model")
    assert model_digest(one) == model_digest(two)
    assert len(model_digest(one)) == 64


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_change_of_any_file_that_matters_changes_the_digest(tmp_path: Path, name: str):
    folder = write_folder(tmp_path / "m")
    before = model_digest(folder)
    (folder / name).write_text((folder / name).read_text() + " ")
    assert model_digest(folder) != before


def test_a_renamed_or_added_file_changes_the_digest(tmp_path: Path):
    folder = write_folder(tmp_path / "m")
    seen = {model_digest(folder)}
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    seen.add(model_digest(folder))
    (folder / "chat_template.jinja").touch()
    seen.add(model_digest(folder))
    assert len(seen) == 3


def test_unchanged_files_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(digest_module, "REMEMBERED_BYTES", 0)
    folder = write_folder(tmp_path / "m")
    before = model_digest(folder)
    read: list[str] = []
    hash_file = digest_module.file_sha256

    def noting(path: Path) -> str:
        read.append(path.name)
        return hash_file(path)

    monkeypatch.setattr(digest_module, "file_sha256", noting)
    assert model_digest(folder) == before
    assert read == []
    (folder / "tokenizer.json").write_text("{ }")
    assert model_digest(folder) != before
    assert read == ["tokenizer.json"]


def test_a_small_model_leaves_no_memory_of_its_hashes(tmp_path: Path):
    model_digest(write_folder(tmp_path / "m"))
    assert not (tmp_path / "cache" / "digests").exists()


def test_a_damaged_or_unwritable_memory_of_hashes_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(digest_module, "REMEMBERED_BYTES", 0)
    folder = write_folder(tmp_path / "m")
    before = model_digest(folder)
    (memory,) = (tmp_path / "cache" / "digests").iterdir()
    memory.write_text("{")
    assert model_digest(folder) == before
    monkeypatch.setenv("BATCHFACT_CACHE", str(memory))  # a file, so that no folder can be made in it
    assert model_digest(folder) == before
