from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from batchfact import settings
from batchfact.config import BASE_MODEL, DEFAULT_MODEL, FoldPolicy, Identity
from batchfact.errors import UsageError
from batchfact.models.registry import EXPORTED, Excerpts, Folder, ModelEntry, TrainedMode, registered
from batchfact.preparation import absolute
from batchfact.settings import make_config, option_names, parse_bytes, parse_pairs, read_options


def test_options_go_to_their_sections() -> None:
    config = make_config(("a",), "b", {"paradigm": "qg-qa", "threshold": 0.4, "drop-document": True, "limit": 7})

    assert config.identity == Identity(paradigm="qg-qa", model="smollm2-135m")
    assert config.fold == FoldPolicy(threshold=0.4)
    assert config.columns.drop_document
    assert config.runtime.limit == 7


def test_an_option_that_is_none_was_not_given() -> None:
    assert make_config((), "", {"threshold": None, "calibration": "none"}).fold.threshold == 0.5


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"paradigm": "summ-nli"},
        {"reasoning": False, "window-sentences": 2},
    ],
)
def test_the_tuned_model_is_the_default_for_what_it_was_tuned_for(options: dict[str, object]) -> None:
    assert make_config((), "", options).identity.model == DEFAULT_MODEL


@pytest.mark.parametrize(
    "options",
    [
        {"paradigm": "qg-qa"},
        {"paradigm": "cot"},
        {"reasoning": True},
        {"rating": True},
        {"label-mode": "parse"},
        {"window-context": "summary"},
    ],
)
def test_its_base_is_the_default_for_all_else(options: dict[str, object]) -> None:
    assert make_config((), "", options).identity.model == BASE_MODEL
    assert make_config((), "", {**options, "model": DEFAULT_MODEL}).identity.model == DEFAULT_MODEL


def test_a_model_that_was_tuned_on_excerpts_gets_them_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = registered(DEFAULT_MODEL)
    assert tuned is not None
    on_excerpts = msgspec.structs.replace(tuned, excerpts=Excerpts(align_sentences=8, context_tokens=384))
    monkeypatch.setattr(settings, "registered", {DEFAULT_MODEL: on_excerpts}.get)
    monkeypatch.setattr(settings, "known_entry", {DEFAULT_MODEL: on_excerpts}.get)
    own = make_config((), "", {}).identity
    assert (own.long_documents, own.align_sentences, own.context_tokens) == ("align", 8, 384)
    given = make_config((), "", {"long-documents": "auto", "align-sentences": 3}).identity
    assert (given.long_documents, given.align_sentences, given.context_tokens) == ("auto", 3, 384)
    for options in ({"model": BASE_MODEL}, {"model": DEFAULT_MODEL, "paradigm": "vanilla"}):
        other = make_config((), "", options).identity
        assert (other.long_documents, other.align_sentences, other.context_tokens) == ("auto", 5, 1024)


def test_an_exported_folder_brings_its_excerpts_under_no_name_too(tmp_path: Path) -> None:
    exported = ModelEntry(
        name="mine",
        source=Folder(path=tmp_path),
        trained=(TrainedMode(paradigm="sent-nli", reasoning=False),),
        excerpts=Excerpts(align_sentences=9, context_tokens=300),
    )
    (tmp_path / EXPORTED).write_bytes(msgspec.json.encode(exported, enc_hook=str))
    own = make_config((), "", {"model": str(tmp_path)}).identity
    assert (own.long_documents, own.align_sentences, own.context_tokens) == ("align", 9, 300)


def test_a_path_may_begin_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert absolute("~/pairs/*.parquet") == "/somewhere/pairs/*.parquet"
    assert make_config((), "", {"journal": "~/kept"}).runtime.journal == Path("/somewhere/kept")


def test_the_default_model_brings_its_calibration() -> None:
    config = make_config((), "", {})
    assert config.fold.calibration is not None
    assert config.fold.threshold == config.fold.calibration.threshold


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"paradigm": "sentnli"}, "--paradigm"),
        ({"threshold": "high"}, "--threshold"),
        ({"threshold": 1.0}, "--threshold must lie between 0 and 1, got 1.0"),
        ({"window-sentences": 0}, "--window-sentences must be at least 1, got 0"),
        ({"max-unscored": 5}, "--max-unscored is a share"),
        ({"retry-status": ["nope"]}, "--retry-status"),
        ({"windowsentences": 1}, "did you mean 'window-sentences'"),
        ({"executor": "dask"}, "--executor"),
        ({"workers": 2}, "--workers is for --executor ray, got --executor local"),
        ({"gpus-per-worker": 1}, "--gpus-per-worker is for --executor ray"),
        ({"executor": "ray", "workers": 0}, "--workers must be at least 1"),
        ({"executor": "ray", "gpus-per-worker": 1.5}, "a whole number, or a share of one GPU"),
        ({"executor": "ray", "gpus-per-worker": 2, "tensor-parallel-size": 4}, "at least --tensor-parallel-size"),
        ({"executor": "ray", "data-parallel-size": 2}, "--workers instead of --data-parallel-size"),
        ({"executor": "ray", "ray-address": "ray://head:10001"}, "--ray-address is auto or HOST:PORT"),
        ({"executor": "ray", "ray-address": "head"}, "--ray-address is auto or HOST:PORT"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_config((), "", options)


def test_a_file_may_use_underscores_or_hyphens(tmp_path: Path) -> None:
    file = tmp_path / "options.toml"
    file.write_text('window_sentences = 2\nwindow-context = "summary"\n')

    assert read_options(file) == {"window-sentences": 2, "window-context": "summary"}


@pytest.mark.parametrize(("text", "message"), [("= 3", "is not TOML"), ("modell = 'x'", "did you mean 'model'")])
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "options.toml"
    file.write_text(text)

    with pytest.raises(UsageError, match=message):
        read_options(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_options(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("size", "expected"),
    [("4GiB", 4 << 30), ("512 MB", 512_000_000), (123, 123), ("1.5k", 1500), ("2Gi", 2 << 30), ("7 b", 7)],
)
def test_sizes_are_read_as_bytes(size: str | int, expected: int) -> None:
    assert parse_bytes(size) == expected


@pytest.mark.parametrize("size", ["", "GiB", "-4GiB", "4 G iB", "4XB"])
def test_a_wrong_size_is_refused(size: str) -> None:
    with pytest.raises(UsageError, match="4GiB"):
        parse_bytes(size)


def test_engine_arguments_are_names_and_values() -> None:
    assert parse_pairs(["a=1", "b=x=y"], "--engine-arg") == {"a": "1", "b": "x=y"}
    with pytest.raises(UsageError, match="NAME=VALUE"):
        parse_pairs(["a"], "--engine-arg")


def test_both_names_of_a_renamed_field_are_understood() -> None:
    assert option_names()["kv-cache-memory"] == option_names()["kv-cache-bytes"] == ("runtime", "kv_cache_bytes")


FEW_SHOT = {"shots": 2, "demonstrations": "shots.parquet"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"paradigm": "vanilla", "shots": 2}, "--shots and --demonstrations go together, got 2 and no file"),
        ({"paradigm": "vanilla", "demonstrations": "a"}, "--shots and --demonstrations go together, got 0 and a"),
        ({"paradigm": "vanilla", "shots": -1}, "--shots must be at least 0"),
        (FEW_SHOT, "--shots is for --paradigm vanilla, cot and sbs"),
        ({"paradigm": "cot", "instruction": 0}, "--instruction is 1, 2 or 3, got 0"),
        ({"paradigm": "cot", "instruction": 4}, "--instruction is 1, 2 or 3, got 4"),
        ({"instruction": 2}, "--instruction is for --paradigm vanilla, cot and sbs, got sent-nli"),
        ({"paradigm": "vanilla", "reasoning": True}, "here cot reasons, vanilla and sbs do not"),
        ({"paradigm": "sbs", "reasoning": True}, "here cot reasons, vanilla and sbs do not"),
        ({"paradigm": "cot", "reasoning": False}, "here cot reasons, vanilla and sbs do not"),
        ({"paradigm": "sbs", "rating": True}, "--rating is for summ-nli, sent-nli and qg-qa, got sbs"),
        ({"rating": True, "label-mode": "parse"}, "--rating reads the ratings' probabilities"),
        ({"temperature": -0.1}, "--temperature must lie between 0 and 2"),
        ({"temperature": 2.5}, "--temperature must lie between 0 and 2"),
        ({"seed": -1}, "--seed must be a whole number from 0 on"),
    ],
)
def test_a_setting_that_does_not_fit_the_method_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        make_config(("in",), "out", options)


def test_settings_that_fit_their_method_are_taken() -> None:
    for options in (
        {"paradigm": "cot", "reasoning": True, "instruction": 3, **FEW_SHOT},
        {"paradigm": "sbs", "reasoning": False, "label-mode": "parse", **FEW_SHOT},
        {"paradigm": "qg-qa", "rating": True, "label-mode": "parse", "temperature": 0.7, "seed": 5},
    ):
        assert make_config(("in",), "out", options).identity.paradigm == options["paradigm"]
