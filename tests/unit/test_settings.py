from __future__ import annotations

from pathlib import Path

import pytest

from batchfact.config import FoldPolicy, Identity
from batchfact.errors import UsageError
from batchfact.settings import make_config, option_names, parse_bytes, parse_pairs, read_options


def test_options_go_to_their_sections() -> None:
    config = make_config(("a",), "b", {"paradigm": "qg-qa", "threshold": 0.4, "drop-document": True, "limit": 7})

    assert config.identity == Identity(paradigm="qg-qa")
    assert config.fold == FoldPolicy(threshold=0.4)
    assert config.columns.drop_document
    assert config.runtime.limit == 7


def test_an_option_that_is_none_was_not_given() -> None:
    assert make_config((), "", {"threshold": None}).fold.threshold == 0.5


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
