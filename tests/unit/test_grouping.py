"""Pairs of one document come together; memory and reading stay bounded; no file stays behind."""

from __future__ import annotations

import errno
import itertools

import pytest

from batchfact.errors import RunFailedError
from batchfact.grouping import Waiting, group_pairs
from batchfact.records import DocumentGroup
from batchfact.source import rows_of
from batchfact.spill import Segments, SpillFolder, pair_bytes

MODES = ["none", "window", "global"]


def rows(documents):
    """A row for each document, each with its own summary; None is a row that is rejected."""
    return list(rows_of((document, f"summary {row}") for row, document in enumerate(documents)))


def group(pairs, tmp_path, mode="window", look_ahead_rows=1000, look_ahead_bytes=1 << 20, **more):
    return group_pairs(
        pairs,
        mode=mode,
        look_ahead_rows=look_ahead_rows,
        look_ahead_bytes=look_ahead_bytes,
        spill_dir=tmp_path / "spill",
        **more,
    )


def members(groups):
    return [[pair.row for pair in each.pairs] for each in groups if isinstance(each, DocumentGroup)]


def left_behind(tmp_path):
    return list((tmp_path / "spill").iterdir()) if (tmp_path / "spill").exists() else []


@pytest.mark.parametrize("mode", MODES)
def test_groups_are_numbered_from_zero_in_the_order_they_leave(tmp_path, mode):
    groups = list(group(rows("abcabc"), tmp_path, mode))
    assert [each.number for each in groups] == list(range(len(groups)))


@pytest.mark.parametrize("mode", MODES)
def test_no_rows_make_no_groups(tmp_path, mode):
    assert list(group([], tmp_path, mode)) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_document_with_many_pairs_comes_as_several_groups(tmp_path, mode):
    assert members(group(rows("aaaaaaa"), tmp_path, mode, max_group_pairs=3)) == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize("mode", MODES)
def test_a_group_holds_its_document_once(tmp_path, mode):
    pairs = list(itertools.chain(*(rows_of([("the text", "s")], row) for row in range(3))))
    assert pairs[0].document is not pairs[1].document
    (only,) = group(pairs, tmp_path, mode)
    assert len({id(pair.document) for pair in only.pairs}) == 1


@pytest.mark.parametrize("mode", MODES)
def test_rejected_rows_pass_through_at_once(tmp_path, mode):
    groups = group(rows([None, "a", None, "a"]), tmp_path, mode)
    assert next(groups).row == 0 and next(groups).row == 2
    assert members(groups) == [[1, 3]]


def test_none_joins_only_pairs_that_follow_each_other(tmp_path):
    assert members(group(rows("aabba"), tmp_path, "none")) == [[0, 1], [2, 3], [4]]


def test_window_joins_within_the_look_ahead_in_the_order_of_first_pairs(tmp_path):
    assert members(group(rows("abcabca"), tmp_path, look_ahead_rows=4)) == [[0, 3], [1, 4], [2, 5], [6]]
    assert members(group(rows("abcda"), tmp_path, look_ahead_rows=4)) == [[0], [1], [2], [3], [4]]


def test_global_joins_pairs_wherever_they_are(tmp_path):
    found = members(group(rows("abcdefgh" * 5), tmp_path, "global"))
    assert sorted(found) == [list(range(first, 40, 8)) for first in range(8)]


def test_window_reads_no_more_than_the_look_ahead_needs(tmp_path):
    taken = []

    def watched():
        for pair in rows([f"document {row}" for row in range(50)]):
            taken.append(pair.row)
            yield pair

    groups = group(watched(), tmp_path, look_ahead_rows=10)
    assert not taken
    for number in range(5):
        next(groups)
        assert len(taken) == 10 + number


def test_none_reads_one_row_ahead(tmp_path):
    taken = []

    def watched():
        for pair in rows("abc"):
            taken.append(pair.row)
            yield pair

    next(group(watched(), tmp_path, "none"))
    assert taken == [0, 1]


def test_texts_beyond_the_memory_go_to_disk_and_come_back_unchanged(tmp_path):
    pairs = rows([f"dökument {row % 7} 😀" * 10 for row in range(50)])
    groups = group(pairs, tmp_path, look_ahead_bytes=2000)
    first = next(groups)
    assert left_behind(tmp_path)
    assert sorted((pair for each in (first, *groups) for pair in each.pairs), key=lambda pair: pair.row) == pairs
    assert not left_behind(tmp_path)


def test_nothing_is_written_while_texts_fit(tmp_path):
    list(group(rows("abcabc"), tmp_path))
    assert not (tmp_path / "spill").exists()


def test_the_look_ahead_never_counts_more_memory_than_allowed(tmp_path):
    with SpillFolder(tmp_path) as folder, Segments(folder) as segments:
        waiting = Waiting(segments, 1500)
        for pair in rows([f"document {row}" * 5 for row in range(100)]):
            waiting.add(pair)
            assert waiting.memory_bytes <= 1500
            if waiting.num_rows > 20:
                list(waiting.pop(256))
        while waiting.num_rows:
            list(waiting.pop(256))
        assert waiting.memory_bytes == 0


def test_a_segment_is_deleted_once_its_texts_are_taken(tmp_path):
    with SpillFolder(tmp_path) as folder, Segments(folder, segment_bytes=100) as segments:
        spilled = [segments.put(f"{number:050d}") for number in range(10)]
        assert len(list(folder.path.iterdir())) == 5
        assert [each.take() for each in spilled] == [f"{number:050d}" for number in range(10)]
        # The newest stays open for what is still to come.
        assert [path.name for path in folder.path.iterdir()] == ["segment-000004"]
    assert not list(tmp_path.iterdir())


def test_global_splits_a_file_that_is_too_large_by_other_bits(tmp_path):
    """Documents whose hashes share their low bits land in one file, which is far above the memory allowed."""
    documents = [text for number in range(2000) if hash_of(text := f"{number}") % 64 == 0]
    pairs = rows(documents * 3)
    text_bytes = sum(pair_bytes(pair.document) + pair_bytes(pair.summary) for pair in pairs)
    found = members(group(pairs, tmp_path, "global", look_ahead_bytes=text_bytes // 4))
    size = len(documents)
    assert size > 10 and sorted(found) == [[row, row + size, row + 2 * size] for row in range(size)]
    assert not left_behind(tmp_path)


def hash_of(document):
    (pair,) = rows_of([(document, "s")])
    return pair.document_hash


def test_global_ends_where_hashes_collide_in_every_bit(tmp_path):
    pairs = [
        type(pair)(row=pair.row, document=pair.document, summary=pair.summary, document_hash=5, text_hash=pair.row)
        for pair in rows("abcd" * 20)
    ]
    assert len(members(group(pairs, tmp_path, "global", look_ahead_bytes=1))) == 4


@pytest.mark.parametrize("mode", ["window", "global"])
def test_closing_early_removes_the_spill_files(tmp_path, mode):
    groups = group(rows([f"d{row}" for row in range(30)]), tmp_path, mode, look_ahead_bytes=100)
    next(groups)
    assert left_behind(tmp_path)
    groups.close()
    assert not left_behind(tmp_path)


@pytest.mark.parametrize("mode", ["window", "global"])
def test_a_source_that_fails_leaves_no_spill_files(tmp_path, mode):
    def failing():
        yield from rows([f"d{row}" for row in range(30)])
        raise OSError("the input is gone")

    with pytest.raises(OSError, match="the input is gone"):
        list(group(failing(), tmp_path, mode, look_ahead_bytes=100))
    assert not left_behind(tmp_path)


@pytest.mark.parametrize("mode", ["window", "global"])
def test_a_full_disk_is_one_clear_error(tmp_path, mode, monkeypatch):
    def full(file, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("batchfact.spill._write_bytes", full)
    with pytest.raises(RunFailedError, match=r"cannot be spilled to .*No space left on device; finished rows are kept"):
        list(group(rows([f"d{row}" for row in range(30)]), tmp_path, mode, look_ahead_bytes=100))
    assert not left_behind(tmp_path)
