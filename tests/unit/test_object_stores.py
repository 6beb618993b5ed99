"""URIs of object stores: what is understood, and what is refused before anything is asked."""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs as pafs
import pytest

from batchfact.errors import UsageError
from batchfact.input_files import open_filesystem
from batchfact.object_stores import publish, reason

SERVER = "endpoint_override=localhost:1&scheme=http"


def test_a_uri_names_bucket_and_key() -> None:
    filesystem, path = open_filesystem(f"s3://bucket/a%20b/in.parquet?{SERVER}")

    assert (filesystem.type_name, path) == ("s3", "bucket/a b/in.parquet")


def test_a_hash_in_a_key_is_part_of_it() -> None:
    """Else an output would go to another name."""
    _, path = open_filesystem(f"s3://bucket/run#2.parquet?{SERVER}")

    assert path == "bucket/run#2.parquet"


def test_a_published_folder_replaces_the_former_one(tmp_path: Path) -> None:
    new, there = folder(tmp_path / "new", "a/0", "b"), folder(tmp_path / "there", "a/0", "a/1", "c")
    publish(new, pafs.LocalFileSystem(), str(there))

    assert {each.relative_to(there).as_posix() for each in there.rglob("*") if each.is_file()} == {"a/0", "b"}
    assert (there / "a/0").read_text() == "new"


def test_where_publishing_a_folder_fails_the_former_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("the server is gone")

    monkeypatch.setattr(pafs, "copy_files", fail)
    there = folder(tmp_path / "there", "a")
    with pytest.raises(OSError, match="gone"):
        publish(folder(tmp_path / "new", "b"), pafs.LocalFileSystem(), str(there))

    assert (there / "a").exists()


def folder(path: Path, *names: str) -> Path:
    """Files that hold the folder's name."""
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(path.name)
    return path


def test_file_systems_of_one_server_are_the_same() -> None:
    """Else an output could not be told from the input."""
    one, _ = open_filesystem(f"s3://bucket/a?{SERVER}")
    other, _ = open_filesystem(f"s3://other/b?{SERVER}")
    another, _ = open_filesystem("s3://bucket/a?endpoint_override=localhost:2&scheme=http")

    assert one == other
    assert one != another


@pytest.mark.parametrize("uri", ["s3://KEY:secret@bucket/a", "s3://KEY@bucket/a", "sftp://me:secret@host/a"])
def test_a_key_in_a_uri_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(UsageError, match="AWS_ACCESS_KEY_ID") as caught:
        open_filesystem(uri)

    assert "secret" not in str(caught.value)


def test_a_misspelt_setting_of_a_uri_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'endpoint_override'"):
        open_filesystem("s3://bucket/a?endpoint_overide=localhost:1")


def test_an_error_of_a_store_is_one_line_with_what_to_look_at() -> None:
    error = OSError("When reading: AWS Error ACCESS_DENIED during HeadObject operation: no.\nDetail")
    told = "When reading: AWS Error ACCESS_DENIED during HeadObject operation: no."

    assert reason(error) == f"{told}; check the credentials and their rights"
    assert reason(OSError()) == "OSError"
