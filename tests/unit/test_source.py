"""The input: what is found, what is refused before anything starts, and what a row becomes."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from batchfact.errors import RunFailedError, UsageError
from batchfact.records import Pair, Rejected
from batchfact.source import BATCH_BYTES, MAX_BATCH_ROWS, open_source, row_hashes, rows_of


def write(path, documents=("a document",), summaries=("a summary",), row_group_size=None, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"document": documents, "summary": summaries, **more})
    pq.write_table(table, path, row_group_size=row_group_size)
    return str(path)


def refusal(*inputs, **columns):
    with pytest.raises(UsageError) as caught:
        open_source([str(each) for each in inputs], **columns)
    return str(caught.value)


def raw_strings(values, kind=None):
    """A string array over any bytes, as a careless writer leaves it."""
    binary = pa.array(values, pa.binary())
    return pa.Array.from_buffers(kind or pa.string(), len(values), binary.buffers())


def test_rows_are_numbered_over_all_shards_in_order(tmp_path):
    for shard in range(3):
        write(tmp_path / f"part-{shard}.parquet", [f"d{shard}{row}" for row in range(4)], ["s"] * 4, row_group_size=2)
    source = open_source([str(tmp_path)])
    pairs = list(source.pairs())
    assert [pair.row for pair in pairs] == list(range(12)) and source.num_rows == 12
    assert [pair.document for pair in pairs] == [f"d{shard}{row}" for shard in range(3) for row in range(4)]
    assert [(shard.name, shard.first_row) for shard in source.shards] == [
        ("part-0.parquet", 0),
        ("part-1.parquet", 4),
        ("part-2.parquet", 8),
    ]


def test_any_range_of_rows_equals_that_slice_of_all(tmp_path):
    for shard in range(2):
        write(tmp_path / f"{shard}.parquet", [f"{shard}-{row}" for row in range(5)], ["s"] * 5, row_group_size=2)
    source = open_source([str(tmp_path)])
    everything = list(source.pairs())
    for start, stop in itertools.product(range(12), range(12)):
        assert list(source.pairs(start, stop)) == everything[start:stop]
    assert list(source.pairs(3)) == everything[3:]


def test_hidden_and_underscored_names_are_no_shards(tmp_path):
    write(tmp_path / "a.parquet")
    for name in (".b.parquet", "_c.parquet", "d.txt"):
        (tmp_path / name).write_text("x")
    assert [shard.name for shard in open_source([str(tmp_path)]).shards] == ["a.parquet"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.parquet", ["a1.parquet", "a2.parquet"]),
        ("a?.parquet", ["a1.parquet", "a2.parquet"]),
        ("a[2-9].parquet", ["a2.parquet"]),
        ("*/*.parquet", ["b.parquet"]),
        ("**/*.parquet", ["a1.parquet", "a2.parquet", "deep/b.parquet", "deep/er/c.parquet"]),
    ],
)
def test_globs_find_files_by_path_and_skip_hidden_names_and_journals(tmp_path, pattern, found):
    for name in ("a1", "a2", "deep/b", "deep/er/c", ".hidden/d", "out.parquet.journal/part-00000000-00000000"):
        write(tmp_path / f"{name}.parquet")
    source = open_source([f"{tmp_path}/{pattern}"])
    assert [shard.name for shard in source.shards] == found and source.is_folder


def test_a_file_whose_name_looks_like_a_glob_is_taken_as_it_is(tmp_path):
    path = write(tmp_path / "odd[1].parquet")
    assert [shard.path for shard in open_source([path]).shards] == [path]


def test_a_relative_path_and_a_file_uri_open_the_same_file(tmp_path, monkeypatch):
    path = write(tmp_path / "in.parquet")
    monkeypatch.chdir(tmp_path)
    prints = [open_source([given]).fingerprint() for given in ("in.parquet", path, f"file://{path}", "*.parquet")]
    assert all(each == prints[0] for each in prints)


def test_another_file_system_is_read_through_its_uri(tmp_path, monkeypatch):
    write(tmp_path / "in.parquet", ["far away"])
    far = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    monkeypatch.setattr("batchfact.input_files.open_filesystem", lambda uri: (far, uri.removeprefix("far:/")))
    for given in ("far://in.parquet", "far://*.parquet"):
        assert [pair.document for pair in open_source([given]).pairs()] == ["far away"]


def test_shards_of_different_folders_keep_their_path_below_the_common_folder(tmp_path):
    paths = [write(tmp_path / folder / "x.parquet") for folder in ("a", "b")]
    assert [shard.name for shard in open_source(paths).shards] == ["a/x.parquet", "b/x.parquet"]


def test_only_one_plain_file_makes_a_file_output(tmp_path):
    one, two = write(tmp_path / "1.parquet"), write(tmp_path / "2.parquet")
    assert not open_source([one]).is_folder
    assert open_source([one, two]).is_folder
    assert open_source([str(tmp_path)]).is_folder


# Refusals


def test_a_missing_file_names_the_nearest_one(tmp_path):
    write(tmp_path / "pairs.parquet")
    assert "does not exist; did you mean 'pairs.parquet'?" in refusal(tmp_path / "pair.parquet")


def test_no_input_and_no_match_are_refused(tmp_path):
    (tmp_path / "sub").mkdir()
    assert "no input" in refusal()
    assert "no file matches" in refusal(f"{tmp_path}/*.parquet")
    assert "holds no *.parquet file; it has folders in it" in refusal(tmp_path)
    assert "holds no *.parquet file" in refusal(tmp_path / "sub")


def test_an_unknown_uri_scheme_is_refused():
    assert "cannot be opened" in refusal("nowhere://x/y.parquet")


@pytest.mark.parametrize("kept", [0, 3, 4, 11, 12, 100, -1, -8])
def test_a_file_cut_anywhere_is_refused(tmp_path, kept):
    path = tmp_path / "in.parquet"
    write(path)
    content = path.read_bytes()
    path.write_bytes(content[:kept])
    text = refusal(path)
    assert ("empty" if kept == 0 else "not a Parquet file" if kept == 3 else "cut off") in text


def test_a_file_that_lost_its_middle_is_refused(tmp_path):
    path = tmp_path / "in.parquet"
    write(path, [str(number) for number in range(5000)], ["s"] * 5000)
    content = path.read_bytes()
    path.write_bytes(content[:4] + content[-2000:])
    assert "damaged" in refusal(path) or "cannot be read" in refusal(path)


def test_a_foreign_file_is_refused(tmp_path):
    path = tmp_path / "in.csv"
    path.write_text("document,summary\nlong enough,to have twelve bytes\n")
    assert "is not a Parquet file" in refusal(path)


def test_a_garbled_footer_is_refused(tmp_path):
    path = tmp_path / "in.parquet"
    write(path)
    content = bytearray(path.read_bytes())
    content[-60:-8] = bytes(52)
    path.write_bytes(content)
    assert "cannot be read as Parquet" in refusal(path)


def test_a_missing_column_names_those_there_and_the_nearest(tmp_path):
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"article": ["d"], "summry": ["s"]}), path)
    text = refusal(path, document_column="article")
    assert "no column 'summary'; its columns are article, summry; did you mean 'summry'? (--summary-column)" in text
    assert "'document'" in refusal(path)


def test_one_column_for_both_is_refused(tmp_path):
    assert "both name 'document'" in refusal(write(tmp_path / "a.parquet"), summary_column="document")


def test_a_doubled_text_column_is_refused_and_another_doubled_one_is_not(tmp_path):
    fields = ["document", "summary", "summary"]
    pq.write_table(pa.Table.from_arrays([pa.array(["x"])] * 3, names=fields), tmp_path / "a.parquet")
    assert "2 columns named 'summary'" in refusal(tmp_path / "a.parquet")
    fields = ["document", "summary", "more", "more"]
    pq.write_table(pa.Table.from_arrays([pa.array(["x"])] * 4, names=fields), tmp_path / "b.parquet")
    assert [pair.summary for pair in open_source([str(tmp_path / "b.parquet")]).pairs()] == ["x"]


@pytest.mark.parametrize(
    ("kind", "way_out"),
    [
        (pa.int64(), "name a column that holds text"),
        (pa.binary(), "cast it to string"),
        (pa.list_(pa.field("element", pa.string())), "join each list"),
        (pa.struct([("text", pa.string())]), "move the field"),
        (pa.dictionary(pa.int32(), pa.binary()), "name a column that holds text"),
    ],
)
def test_a_column_without_text_is_refused_with_the_way_out(tmp_path, kind, way_out):
    if pa.types.is_dictionary(kind):
        values = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array([b"x"]))
    else:
        values = pa.array([None], kind)
    path = write(tmp_path / "in.parquet", values)
    assert way_out in refusal(path) and str(kind) in refusal(path)


def test_shards_with_another_schema_are_refused_by_name(tmp_path):
    write(tmp_path / "a.parquet", extra=pa.array([1], pa.int64()))
    write(tmp_path / "b.parquet", extra=pa.array([1], pa.int32()))
    assert "b.parquet differs" in refusal(tmp_path) and "'extra' is int32, not int64" in refusal(tmp_path)
    write(tmp_path / "b.parquet")
    assert "it has no column 'extra'" in refusal(tmp_path)
    write(tmp_path / "b.parquet", extra=pa.array([1], pa.int64()), more=[1])
    assert "it has a column 'more' too" in refusal(tmp_path)


def test_shards_may_differ_in_the_kind_of_text_and_in_columns_without_values(tmp_path):
    write(tmp_path / "a.parquet", extra=pa.array([1], pa.int64()))
    write(tmp_path / "b.parquet", pa.array(["d"], pa.large_string()), extra=pa.nulls(1))
    assert open_source([str(tmp_path)]).num_rows == 2


def test_a_file_given_twice_is_refused(tmp_path):
    path = write(tmp_path / "a.parquet")
    assert "given twice" in refusal(path, path)
    assert "given twice" in refusal(path, tmp_path)


def test_a_file_damaged_in_its_pages_fails_the_run_and_names_the_file(tmp_path):
    path = tmp_path / "in.parquet"
    table = pa.table({"document": [f"{row}" * 50 for row in range(100)], "summary": ["s"] * 100})
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    source = open_source([str(path)])
    with pytest.raises(RunFailedError, match=r"in\.parquet cannot be read any more"):
        list(source.pairs())


def test_a_file_replaced_during_the_run_fails_it_and_is_not_taken_for_a_shorter_one(tmp_path):
    source = open_source([write(tmp_path / "in.parquet", ["d"] * 3, ["s"] * 3)])
    write(tmp_path / "in.parquet", ["d"] * 2, ["s"] * 2)
    with pytest.raises(RunFailedError, match=r"replaced during the run: it had 3 rows and has 2"):
        list(source.pairs())


# Rows


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_every_kind_of_text_column_gives_the_same_rows(tmp_path, kind):
    texts = ["däs 文\x00😀", None, "two"]
    values = pa.array(texts).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(texts, kind)
    rows = list(open_source([write(tmp_path / "in.parquet", values, values)]).pairs())
    assert rows == list(rows_of(zip(texts, texts, strict=True)))
    assert [type(row) for row in rows] == [Pair, Rejected, Pair]


def test_a_column_of_nulls_rejects_every_row(tmp_path):
    rows = list(open_source([write(tmp_path / "in.parquet", pa.nulls(2), ["s", "t"])]).pairs())
    assert [row.status for row in rows] == ["empty_document"] * 2
    assert rows[0].text_hash != rows[1].text_hash


@pytest.mark.parametrize(
    ("document", "summary", "status"),
    [
        (None, "s", "empty_document"),
        ("", "s", "empty_document"),
        (" \n\t ", "s", "empty_document"),
        ("d", None, "empty_summary"),
        ("d", "\u3000", "empty_summary"),
        (None, None, "empty_document"),
        ("d\ud800", "s", "invalid_text"),
        ("d", "\udfff", "invalid_text"),
    ],
)
def test_a_row_that_cannot_be_asked_about_has_a_typed_reason(document, summary, status):
    (row,) = rows_of([(document, summary)])
    assert isinstance(row, Rejected) and row.status == status and row.message.endswith(".")


@pytest.mark.parametrize("content", [b"cut \xe6\x96", b"\xff", b"surrogate \xed\xa0\x80", b"\xc0\x80"])
def test_bytes_that_are_no_utf8_reject_their_row_only(tmp_path, content):
    path = write(tmp_path / "in.parquet", raw_strings([b"d", b"d", content]), raw_strings([b"s", content, b"s"]))
    first, second, third = open_source([path]).pairs()
    assert isinstance(first, Pair)
    assert second.status == third.status == "invalid_text"
    assert "summary is not valid UTF-8 at byte" in second.message and "document is not" in third.message


def test_control_characters_are_legal_text():
    (row,) = rows_of([("a\x00b", "\x07bell")])
    assert (row.document, row.summary) == ("a\x00b", "\x07bell")


def test_hashes_tell_texts_apart_and_say_where_the_document_ends():
    texts = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc"), (None, "abc"), ("abc", None), ("ab", "c")]
    hashes = [row.text_hash for row in rows_of(texts)]
    assert len(set(hashes)) == 6 and hashes[0] == hashes[6]
    assert all(0 <= each < 2**64 for each in hashes)


def test_row_hashes_equal_those_of_the_pairs():
    texts: list[tuple[Any, Any]] = [(b"d", b"s"), (b"d", None), (None, b"s"), (b"\xff", b"s"), (b"d", b"s")]
    documents, summaries = zip(*texts, strict=True)
    decoded = [(d and d.decode(), s and s.decode()) for d, s in texts if d != b"\xff"]
    expected = [row.text_hash for row in rows_of(decoded)]
    hashes = row_hashes(documents, summaries)
    assert hashes[:3] + hashes[4:] == expected


def test_a_document_in_a_run_of_rows_is_one_string_in_memory(tmp_path):
    first, second = open_source([write(tmp_path / "in.parquet", ["long " * 9] * 2, ["s", "t"])]).pairs()
    assert first.document is second.document and first.document_hash == second.document_hash


def test_a_file_without_rows_is_fine(tmp_path):
    source = open_source([write(tmp_path / "in.parquet", pa.array([], pa.string()), pa.array([], pa.string()))])
    assert source.num_rows == 0 and list(source.pairs()) == []


def test_the_fingerprint_changes_with_content_and_not_with_place(tmp_path):
    one = open_source([write(tmp_path / "a" / "in.parquet", ["d1"])]).fingerprint()
    assert open_source([write(tmp_path / "b" / "in.parquet", ["d1"])]).fingerprint() == one
    assert open_source([write(tmp_path / "a" / "in.parquet", ["d2"])]).fingerprint() != one


# Bounds


def batches_of(path):
    source = open_source([path])
    return list(source.batches(source.shards[0]))


def test_batches_are_small_and_cover_all_rows(tmp_path):
    batches = batches_of(write(tmp_path / "in.parquet", ["d"] * 5000, ["s"] * 5000))
    assert sum(batch.num_rows for batch in batches) == 5000
    assert max(batch.num_rows for batch in batches) <= MAX_BATCH_ROWS


def test_rows_of_megabytes_come_in_batches_of_bounded_bytes(tmp_path):
    documents = [f"{row:04d}" * 500_000 for row in range(40)]
    batches = batches_of(write(tmp_path / "in.parquet", documents, ["s"] * 40))
    assert sum(batch.num_rows for batch in batches) == 40
    assert max(batch.nbytes for batch in batches) <= 2 * BATCH_BYTES


def test_a_long_document_kept_once_for_many_rows_comes_in_batches_of_bounded_bytes(tmp_path):
    """The footer's sizes say little here: the dictionary page holds 1 MB for 200 MB of rows."""
    batches = batches_of(write(tmp_path / "in.parquet", ["0123456789" * 100_000] * 200, ["s"] * 200))
    assert sum(batch.num_rows for batch in batches) == 200
    assert max(batch.nbytes for batch in batches) <= 2 * BATCH_BYTES


def test_reading_is_lazy(tmp_path, monkeypatch):
    """Taking a row of the first row group touches no other."""
    path = write(tmp_path / "in.parquet", [f"d{row}" for row in range(100)], ["s"] * 100, row_group_size=10)
    touched = []
    original = pq.ParquetFile.iter_batches

    def spy(file, *args, **kwargs):
        touched.extend(kwargs["row_groups"])
        return original(file, *args, **kwargs)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    next(open_source([path]).pairs())
    assert set(touched) == {0}
