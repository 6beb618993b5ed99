"""The journal's disk is asked before a model loads, and a run that fits is never refused."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchfact.disk_space import JOURNAL_ROW_BYTES, check_journal_space, lacking_space
from batchfact.errors import UsageError
from batchfact.journal import Journal
from batchfact.records import Outcome
from batchfact.source import open_source

ROWS = 1000
TEXT = "x" * 1000


@pytest.fixture
def source(tmp_path):
    """A thousand rows of about 1 kB, in plain pages without compression."""
    table = pa.table(
        {"document": [f"{row:04d}{TEXT}" for row in range(ROWS)], "summary": ["s"] * ROWS, "more": [TEXT] * ROWS}
    )
    pq.write_table(table, tmp_path / "in.parquet", compression="none", use_dictionary=False, row_group_size=300)
    return open_source([str(tmp_path / "in.parquet")])


@pytest.fixture
def free(tmp_path, monkeypatch):
    """Sets how much the disk has free."""
    usage = shutil.disk_usage(tmp_path)

    def leave(num_bytes):
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=num_bytes))

    return leave


def is_refused(folder, source, **more):
    try:
        check_journal_space(folder / "out.journal", source, **more)
    except UsageError:
        return True
    return False


def test_the_text_columns_sizes_are_known_from_the_footers(source):
    assert 1_000_000 < source.text_bytes < 1_100_000
    assert 1_000_000 < source.plain_text_bytes < 1_100_000
    assert source.num_bytes > 2_000_000


def test_parts_alone_need_little_and_a_refusal_says_the_way_out(tmp_path, source, free):
    free(ROWS * JOURNAL_ROW_BYTES)
    check_journal_space(tmp_path / "new" / "journal", source, group="none")
    free(ROWS * JOURNAL_ROW_BYTES - 1)
    with pytest.raises(UsageError, match=r"journal needs about .* GB free; .*on another disk with --journal"):
        check_journal_space(tmp_path / "new" / "journal", source, group="none")
    assert not (tmp_path / "new").exists()


def test_global_grouping_needs_the_whole_text_once(tmp_path, source, free):
    free(900_000)
    assert is_refused(tmp_path, source, group="global")
    free(1_200_000)
    assert not is_refused(tmp_path, source, group="global")


def test_a_compressed_input_is_spilled_uncompressed(tmp_path, free):
    table = pa.table({"document": [f"{row:04d}{TEXT}" for row in range(ROWS)], "summary": ["s"] * ROWS})
    pq.write_table(table, tmp_path / "in.parquet", compression="zstd", use_dictionary=False)
    free(900_000)
    assert is_refused(tmp_path, open_source([str(tmp_path / "in.parquet")]), group="global")


def test_the_window_needs_only_what_exceeds_its_memory(tmp_path, source, free):
    free(100_000)
    assert not is_refused(tmp_path, source, group="window")
    assert not is_refused(tmp_path, source, group="window", look_ahead_bytes=1_100_000)
    assert is_refused(tmp_path, source, group="window", look_ahead_bytes=100_000)
    assert not is_refused(tmp_path, source, group="window", look_ahead_bytes=100_000, look_ahead_rows=150)


def test_a_limit_and_finished_rows_need_no_space(tmp_path, source, free):
    free(500_000)
    assert is_refused(tmp_path, source, group="global")
    assert not is_refused(tmp_path, source, group="global", num_rows=300)
    with Journal.open(tmp_path / "out.journal", {}, {}, {}) as journal:
        journal.append([Outcome(row=row, text_hash=0) for row in range(700)])
    assert not is_refused(tmp_path, source, group="global")
    assert is_refused(tmp_path, source, group="global", restart=True)


def test_a_damaged_part_counts_as_not_done(tmp_path, source, free):
    with Journal.open(tmp_path / "out.journal", {}, {}, {}) as journal:
        journal.append([Outcome(row=row, text_hash=0) for row in range(700)])
    (part,) = (tmp_path / "out.journal").glob("part-*")
    part.write_bytes(part.read_bytes()[:100])
    free(500_000)
    assert is_refused(tmp_path, source, group="global")


def test_an_input_without_rows_needs_nothing(tmp_path, free):
    pq.write_table(
        pa.table({"document": pa.array([], pa.string()), "summary": pa.array([], pa.string())}), tmp_path / "e"
    )
    free(0)
    for group in ("none", "window", "global"):
        assert not is_refused(tmp_path, open_source([str(tmp_path / "e")]), group=group)


def test_a_folder_that_is_not_there_is_judged_by_the_disk_that_it_will_be_on(tmp_path):
    assert lacking_space(tmp_path / "a" / "b", 1) == ""
    assert "needs about" in lacking_space(tmp_path / "a" / "b", 10**18)
