"""The output: every input column as it was, the verdict's columns beside it, complete under its name or absent."""

from __future__ import annotations

import datetime as dt
import errno
import json
import math
import os
import shutil
import tempfile
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from batchfact import output_files, sink
from batchfact.config import FoldPolicy, OutputOptions
from batchfact.errors import RunFailedError, UsageError
from batchfact.journal import Journal
from batchfact.records import Finding, Outcome, Rejected, Span, Usage
from batchfact.sink import VERDICT_FIELDS, check_output, merge, verdict_columns
from batchfact.source import open_source

YES = Finding(start=0, end=5, logprobs=(math.log(0.8), math.log(0.2)))
NO = Finding(start=5, end=9, logprobs=(math.log(0.1), math.log(0.3)), reasoning="weil", evidence=(Span(1, 3),))
NAMES = [field.name for field in VERDICT_FIELDS]


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def table(documents=("d0", "d0", "d2"), summaries=("s0", "s1", "s2"), **more):
    return pa.table({"document": documents, "summary": summaries, **more})


def outcomes_of(source, findings=(YES, NO), **more):
    return [
        Outcome(row=row.row, text_hash=row.text_hash, status=row.status, message=row.message)
        if isinstance(row, Rejected)
        else Outcome(row=row.row, text_hash=row.text_hash, findings=tuple(findings), usage=Usage(9, 4, 1), **more)
        for row in source.pairs()
    ]


def write_journal(folder, outcomes):
    with Journal.open(folder / "journal", {}, {}, {}, restart=True) as journal:
        for start in range(0, len(outcomes), 7):
            journal.append(outcomes[start : start + 7][::-1])


def run(folder, source, outcomes=None, policy=None, columns=None, output="out.parquet", **more):
    write_journal(folder, outcomes_of(source) if outcomes is None else outcomes)
    target = output if "://" in output else str(folder / output)
    with Journal.open(folder / "journal", {}, {}, {}) as journal:
        return merge(source, journal, target, policy or FoldPolicy(), columns or OutputOptions(), {"run": 1}, **more)


def source_of(folder, *tables, row_group_size=2):
    """One table makes a file, several a folder of shards."""
    if len(tables) == 1:
        pq.write_table(tables[0], folder / "in.parquet", row_group_size=row_group_size)
        return open_source([str(folder / "in.parquet")])
    (folder / "in").mkdir()
    for number, each in enumerate(tables):
        pq.write_table(each, folder / "in" / f"part-{number}.parquet", row_group_size=row_group_size)
    return open_source([str(folder / "in")])


def left_behind(folder):
    return [path.name for path in folder.iterdir() if path.name.endswith((".tmp", ".old"))]


# Columns


def test_the_verdict_columns_stand_behind_the_input_with_the_designs_types(folder):
    run(folder, source_of(folder, table()))
    schema = pq.read_schema(folder / "out.parquet")
    assert schema.names == ["document", "summary", *(f"batchfact_{name}" for name in NAMES)]
    span = pa.struct([("start", pa.int32()), ("end", pa.int32())])
    finding = pa.struct(
        [
            ("start", pa.int32()),
            ("end", pa.int32()),
            ("label", pa.string()),
            ("score", pa.float32()),
            ("label_mass", pa.float32()),
            ("question", pa.string()),
            ("entity", pa.string()),
            ("reasoning", pa.string()),
            ("evidence", list_of(span)),
            ("status", pa.string()),
        ]
    )
    tokens = pa.struct([("prompt", pa.int32()), ("cached", pa.int32()), ("output", pa.int32())])
    assert [field.type for field in schema][2:] == [
        pa.string(),
        pa.float32(),
        pa.float32(),
        pa.string(),
        pa.string(),
        list_of(finding),
        tokens,
    ]


def list_of(kind):
    """Parquet calls a list's item `element`."""
    return pa.list_(pa.field("element", kind))


def test_a_row_is_folded_and_its_findings_labelled_by_the_policy(folder):
    totals = run(folder, source_of(folder, table()))
    row = pq.read_table(folder / "out.parquet").to_pylist()[0]
    assert row["batchfact_label"] == "inconsistent" and row["batchfact_status"] == "ok"
    assert row["batchfact_score"] == row["batchfact_score_raw"] == pytest.approx(0.25)
    assert row["batchfact_tokens"] == {"prompt": 9, "cached": 4, "output": 1}
    first, second = row["batchfact_findings"]
    assert first == {
        "start": 0,
        "end": 5,
        "label": "consistent",
        "score": pytest.approx(0.8),
        "label_mass": pytest.approx(1.0),
        "question": None,
        "entity": None,
        "reasoning": None,
        "evidence": [],
        "status": "ok",
    }
    assert second["label"] == "inconsistent" and second["label_mass"] == pytest.approx(0.4)
    assert second["reasoning"] == "weil" and second["evidence"] == [{"start": 1, "end": 3}]
    assert (totals.rows, totals.findings, totals.usage) == (3, 6, Usage(27, 12, 3))
    assert totals.labels == {"inconsistent": 3} and totals.statuses == {"ok": 3}


def test_another_policy_gives_another_output_from_the_same_journal(folder):
    totals = run(folder, source_of(folder, table()), policy=FoldPolicy(threshold=0.2, min_label_mass=0.3))
    assert totals.labels == {"consistent": 3}
    run(folder, source_of(folder, table()), policy=FoldPolicy(min_label_mass=0.5))
    row = pq.read_table(folder / "out.parquet").to_pylist()[0]
    assert row["batchfact_status"] == "incomplete" and row["batchfact_label"] is None and row["batchfact_score"] is None
    assert row["batchfact_findings"][1]["status"] == "low_label_mass" and row["batchfact_findings"][1]["label"] is None
    assert row["batchfact_message"]


def test_a_row_that_was_never_asked_about_keeps_its_typed_reason(folder):
    totals = run(folder, source_of(folder, table(["d", None, "e"], ["s", "s", " "])))
    rows = pq.read_table(folder / "out.parquet").to_pylist()
    assert [row["batchfact_status"] for row in rows] == ["ok", "empty_document", "empty_summary"]
    assert rows[1]["batchfact_message"] == "The document is null." and rows[1]["batchfact_findings"] == []
    assert rows[1]["batchfact_label"] is None and rows[1]["batchfact_score"] is None
    assert totals.statuses == {"ok": 1, "empty_document": 1, "empty_summary": 1}


def test_no_number_is_ever_nan():
    odd = [Finding(start=0, end=1, logprobs=pair) for pair in [(-math.inf, -math.inf), (math.nan, 0.0), (-math.inf, 0)]]
    columns, _ = verdict_columns([Outcome(row=0, text_hash=0, findings=(each,)) for each in odd], FoldPolicy())
    findings = columns[NAMES.index("findings")].to_pylist()
    assert [row[0]["score"] for row in findings] == [None, None, 0.0]
    assert not any(isinstance(value, float) and math.isnan(value) for value in columns[1].to_pylist())


def test_a_parsed_label_has_no_score():
    parsed = Outcome(row=0, text_hash=0, findings=(Finding(start=0, end=1, label="consistent"),))
    columns, _ = verdict_columns([parsed], FoldPolicy())
    assert [columns[NAMES.index(name)].to_pylist() for name in ("label", "score")] == [["consistent"], [None]]


RICH = {
    "id": pa.array([1, None, 3], pa.uint16()),
    "category": pa.array(["x", "y", "x"]).dictionary_encode(),
    "nested": pa.array([{"a": [1, 2], "b": {"c": "x"}}, None, {"a": None, "b": {"c": None}}]),
    "table": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
    "day": pa.array([dt.date(2024, 1, 2), None, None]),
    "at": pa.array([1, 2, None], pa.timestamp("us", tz="Europe/Berlin")),
    "price": pa.array([Decimal("1.50"), None, Decimal("2.25")]),
    "blob": pa.array([b"\x00\xff", None, b""], pa.large_binary()),
    "long": pa.array(["a", None, "b"], pa.large_string()),
    "view": pa.array(["a", None, "b"], pa.string_view()),
    "flag": pa.array([True, None, False]),
    "nothing": pa.nulls(3),
    "many": pa.array([[1.5], None, []], pa.large_list(pa.float32())),
}


def test_all_input_columns_keep_values_types_order_and_metadata(folder):
    given = table(**RICH)
    fields = [field.with_metadata({"unit": "x"}) if field.name == "id" else field for field in given.schema]
    given = given.cast(pa.schema(fields, metadata={"owner": "me"}))
    run(folder, source_of(folder, given))
    read_in, read_out = pq.read_table(folder / "in.parquet"), pq.read_table(folder / "out.parquet")
    assert read_out.schema.names[: len(fields)] == given.schema.names
    for field in read_in.schema:
        assert read_out.schema.field(field.name).equals(field, check_metadata=True), field.name
        assert read_out[field.name].to_pylist() == read_in[field.name].to_pylist()
    metadata = read_out.schema.metadata
    assert metadata[b"owner"] == b"me" and json.loads(metadata[b"batchfact"]) == {"run": 1, "first_row": 0}


def test_the_description_of_an_earlier_run_gives_way(folder):
    given = table(**RICH).replace_schema_metadata({"batchfact": json.dumps({"run": 0}), "owner": "me"})
    run(folder, source_of(folder, given))
    metadata = pq.read_table(folder / "out.parquet").schema.metadata
    assert json.loads(metadata[b"batchfact"]) == {"run": 1, "first_row": 0}


def test_a_pandas_index_survives(folder):
    frame = pd.DataFrame({"document": ["d", "e"], "summary": ["s", "t"]}, index=pd.Index(["x", "y"], name="key"))
    frame.to_parquet(folder / "in.parquet")
    run(folder, open_source([str(folder / "in.parquet")]))
    assert pd.read_parquet(folder / "out.parquet").index.tolist() == ["x", "y"]
    run(folder, open_source([str(folder / "in.parquet")]), columns=OutputOptions(keep_columns=("summary",)))
    assert pd.read_parquet(folder / "out.parquet")["summary"].tolist() == ["s", "t"]


def test_columns_can_be_left_out_and_the_prefix_changed(folder):
    source = source_of(folder, table(a=[1, 2, 3], b=[4, 5, 6]))
    run(folder, source, columns=OutputOptions(keep_columns=("b", "document"), column_prefix="f."))
    assert pq.read_schema(folder / "out.parquet").names == ["document", "b", *(f"f.{name}" for name in NAMES)]
    run(folder, source, columns=OutputOptions(drop_document=True, column_prefix=""))
    assert pq.read_schema(folder / "out.parquet").names == ["summary", "a", "b", *NAMES]
    run(folder, source, columns=OutputOptions(keep_columns=()))
    assert pq.read_table(folder / "out.parquet").num_rows == 3


def test_doubled_columns_that_are_not_ours_survive(folder):
    given = pa.Table.from_arrays(
        [pa.array(["x"]), *[pa.array([n]) for n in (1, 2)], pa.array(["y"])], names=["document", "n", "n", "summary"]
    )
    run(folder, source_of(folder, given))
    with pq.ParquetFile(folder / "out.parquet") as file:
        read = file.read()
    assert [read.column(index).to_pylist() for index in range(4)] == [["x"], [1], [2], ["y"]]


# Files


def test_a_folder_of_shards_gives_a_folder_with_the_same_names(folder):
    shards = [table([f"{n}"] * n, ["s"] * n, n=[n] * n) for n in (3, 0, 5)]
    shards[1] = table(pa.array([], pa.string()), pa.array([], pa.string()), n=pa.array([], pa.int64()))
    totals = run(folder, source_of(folder, *shards), output="new/parent/out.parquet")
    out = folder / "new" / "parent" / "out.parquet"
    assert sorted(path.name for path in out.iterdir()) == ["part-0.parquet", "part-1.parquet", "part-2.parquet"]
    assert [pq.read_table(path)["n"].to_pylist() for path in sorted(out.iterdir())] == [[3] * 3, [], [5] * 5]
    assert totals.rows == 8 and not left_behind(out.parent)


def test_shards_below_subfolders_keep_them(folder):
    for name in ("a", "b"):
        (folder / "in" / name).mkdir(parents=True)
        pq.write_table(table(), folder / "in" / name / "x.parquet")
    run(folder, open_source([f"{folder}/in/**/*.parquet"]), output="out")
    assert pq.read_table(folder / "out" / "b" / "x.parquet").num_rows == 3


def test_an_input_without_rows_gives_an_output_with_the_schema(folder):
    empty = table(pa.array([], pa.string()), pa.array([], pa.string()))
    assert run(folder, source_of(folder, empty)).rows == 0
    assert pq.read_table(folder / "out.parquet").schema.names[2:] == [f"batchfact_{name}" for name in NAMES]


def test_a_limit_writes_the_first_rows_of_the_first_shards(folder):
    source = source_of(folder, table(), table(), table())
    outcomes = outcomes_of(source)
    assert run(folder, source, outcomes[:4], limit=4, output="out").rows == 4
    assert [pq.read_table(path).num_rows for path in sorted((folder / "out").iterdir())] == [3, 1]
    assert run(folder, source, outcomes, limit=100, output="out").rows == 9


def test_many_batches_and_row_groups_stay_in_input_order(folder):
    given = table([f"d{n // 3}" for n in range(3000)], [f"s{n}" for n in range(3000)], n=range(3000))
    told: list[int] = []
    run(folder, source_of(folder, given, row_group_size=700), progress=told.append)
    assert pq.read_table(folder / "out.parquet")["n"].to_pylist() == list(range(3000))
    assert sum(told) == 3000 and len(told) > 2


def test_an_output_on_another_file_system_is_written_directly(folder, monkeypatch):
    source = source_of(folder, table())
    far = pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem())
    monkeypatch.setattr(sink, "open_filesystem", lambda uri: (far, uri.removeprefix("far:/")))
    check_output(source, "far://out.parquet", OutputOptions(), will_resume=False)
    run(folder, source, output="far://deep/out.parquet")
    assert pq.read_table(folder / "deep" / "out.parquet").num_rows == 3
    with pytest.raises(RunFailedError):
        run(folder, source, [], output="far://deep/other.parquet")
    assert [path.name for path in (folder / "deep").iterdir()] == ["out.parquet"]


# Complete or absent


def test_a_row_without_outcome_is_an_error_that_names_it_and_nothing_is_written(folder):
    source = source_of(folder, table(), table())
    outcomes = outcomes_of(source)
    for missing in (0, 4, 5):
        with pytest.raises(RunFailedError, match=rf"row {missing} \(row {missing % 3} of .*part-{missing // 3}"):
            run(folder, source, outcomes[:missing] + outcomes[missing + 1 :], output="out")
    assert not (folder / "out").exists() and not left_behind(folder)


@pytest.mark.parametrize("column", ["document", "summary"])
def test_a_verdict_is_never_joined_to_another_text_than_it_was_made_from(folder, column):
    outcomes = outcomes_of(source_of(folder, table()))
    place = ["document", "summary"].index(column)
    edited = table().set_column(place, column, pa.array([f"{column[0]}0", "edited", f"{column[0]}2"]))
    with pytest.raises(RunFailedError, match=r"row 1 .* was scored with another text"):
        run(folder, source_of(folder, edited), outcomes)
    assert not (folder / "out.parquet").exists()


def test_a_failed_merge_keeps_the_former_output(folder):
    source = source_of(folder, table())
    run(folder, source)
    before = (folder / "out.parquet").read_bytes()
    with pytest.raises(RunFailedError):
        run(folder, source, [])
    assert (folder / "out.parquet").read_bytes() == before and not left_behind(folder)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_an_output_that_is_merged_again_is_replaced(folder, num_shards):
    source = source_of(folder, *[table()] * num_shards)
    run(folder, source)
    run(folder, source, policy=FoldPolicy(threshold=0.2, min_label_mass=0.3))
    assert set(pq.read_table(folder / "out.parquet")["batchfact_label"].to_pylist()) == {"consistent"}
    assert not left_behind(folder)


class KilledError(BaseException):
    pass


@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("step", ["write_table", "fsync", "replace"])
def test_a_kill_leaves_no_output_and_the_next_merge_is_whole(folder, num_shards, step, monkeypatch):
    def kill(*args, **kwargs):
        raise KilledError

    source = source_of(folder, *[table()] * num_shards)
    write_journal(folder, outcomes_of(source))
    owner, name = {"write_table": (pq.ParquetWriter, step), "fsync": (os, step), "replace": (Path, step)}[step]
    with Journal.open(folder / "journal", {}, {}, {}) as journal, monkeypatch.context() as patch:
        patch.setattr(owner, name, kill)
        patch.setattr(output_files, "_remove", lambda path: None)  # a killed process cleans nothing up
        with pytest.raises(KilledError):
            merge(source, journal, str(folder / "out"), FoldPolicy(), OutputOptions(), {})
    assert not (folder / "out").exists() and left_behind(folder)
    run(folder, source, output="out")
    assert pq.read_table(folder / "out").num_rows == 3 * num_shards and not left_behind(folder)


def test_a_disk_that_fills_up_is_one_clear_error(folder, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    source = source_of(folder, table())
    write_journal(folder, outcomes_of(source))
    with Journal.open(folder / "journal", {}, {}, {}) as journal:
        monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
        with pytest.raises(RunFailedError, match=r"No space left on device; all finished rows are kept in .*journal"):
            merge(source, journal, str(folder / "out.parquet"), FoldPolicy(), OutputOptions(), {})
    assert not (folder / "out.parquet").exists() and not left_behind(folder)


def test_too_little_disk_is_said_before_the_merge_and_before_the_run(folder, monkeypatch):
    source = source_of(folder, table())
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(UsageError, match=r"needs about .* GB and its disk has 0\.0 GB free"):
        check_output(source, str(folder / "out.parquet"), OutputOptions(), will_resume=False)
    with pytest.raises(RunFailedError, match="all finished rows are kept in"):
        run(folder, source)


# Checks before the run


def refusal(source, output, will_resume=False, **columns):
    with pytest.raises(UsageError) as caught:
        check_output(source, str(output), OutputOptions(**columns), will_resume=will_resume)
    return str(caught.value)


def test_a_good_output_passes_and_nothing_is_made(folder):
    source = source_of(folder, table())
    check_output(source, str(folder / "new" / "out.parquet"), OutputOptions(), will_resume=False)
    assert not (folder / "new").exists()


def test_an_output_that_exists_is_refused_unless_it_is_this_runs_own(folder):
    source = source_of(folder, table())
    (folder / "out.parquet").write_text("x")
    assert "exists already" in refusal(source, folder / "out.parquet")
    check_output(source, str(folder / "out.parquet"), OutputOptions(), will_resume=True)


def test_an_output_of_the_other_kind_is_refused(folder):
    (folder / "out").mkdir()
    assert "is a folder, but the input is one file" in refusal(source_of(folder, table()), folder / "out", True)
    (folder / "file").write_text("x")
    source = source_of(folder, table(), table())
    assert "is a file, but the input is a folder" in refusal(source, folder / "file", True)


def test_the_input_is_never_overwritten(folder):
    source = source_of(folder, table())
    assert "is the input" in refusal(source, folder / "in.parquet", True)
    (folder / "link.parquet").symlink_to(folder / "in.parquet")
    assert "is the input" in refusal(source, folder / "link.parquet", True)
    shards = source_of(folder, table(), table())
    assert "holds the input" in refusal(shards, folder / "in", True)
    assert "holds the input" in refusal(shards, folder, True)


def test_a_place_that_cannot_be_written_is_refused(folder, monkeypatch):
    source = source_of(folder, table())
    (folder / "file").write_text("x")
    assert "file is not a folder" in refusal(source, folder / "file" / "deep" / "out.parquet")

    def refuse(**_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert f"{folder}: Permission denied" in refusal(source, folder / "out.parquet")


def test_clashing_columns_name_the_column_and_the_option(folder):
    source = source_of(folder, table(batchfact_score=[1, 2, 3]))
    text = refusal(source, folder / "out.parquet")
    assert "'batchfact_score' already" in text and "--column-prefix" in text
    check_output(source, str(folder / "o"), OutputOptions(column_prefix="x_"), will_resume=False)
    check_output(source, str(folder / "o"), OutputOptions(keep_columns=("summary",)), will_resume=False)


def test_an_unknown_kept_column_names_the_nearest(folder):
    text = refusal(source_of(folder, table()), folder / "out.parquet", keep_columns=("sumary",))
    assert "'sumary'" in text and "did you mean 'summary'?" in text
