"""A file is whole under its name, or not there."""

from __future__ import annotations

import os

import pytest

from batchfact.durable import durable_file


def test_the_file_has_its_name_only_when_it_is_whole_and_on_the_disk(tmp_path, monkeypatch):
    path = tmp_path / "file"
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(path.exists()))
    with durable_file(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    assert synced == [False, True]


def test_an_error_leaves_nothing_and_keeps_the_former_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"former")
    with pytest.raises(TypeError), durable_file(path) as file:
        file.writelines([b"half", 1])  # type: ignore[list-item]
    assert path.read_bytes() == b"former"
    assert list(tmp_path.iterdir()) == [path]
