"""Whole runs over tables that break other tools: every row comes out, in order, with its columns untouched."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from batchfact import pipeline
from batchfact.records import PairStatus
from batchfact.settings import make_config
from tests.tables import NASTY, tables

BIG_ID = 2**53 + 1


def score(source: Path, output: Path, model: Path, **options: Any) -> pa.Table:
    options = {"engine": "fake", "model": str(model), "quiet": True} | options
    config = make_config((str(source),), str(output), {name.replace("_", "-"): each for name, each in options.items()})
    anyio.run(pipeline.run, config)
    return read(output)


def read(path: Path) -> pa.Table:
    """`pq.read_table` refuses doubled names."""
    with pq.ParquetFile(path) as file:
        return file.read()


def own(table: pa.Table) -> list[str]:
    return [name for name in table.column_names if name.startswith("batchfact_")]


def expected_status(document: bytes | None, summary: bytes | None) -> PairStatus | None:
    """What a row must be that no model can be asked about; None for one that is asked."""
    for column, content in (("document", document), ("summary", summary)):
        try:
            text = (content or b"").decode()
        except UnicodeDecodeError:
            return "invalid_text"
        if not text.strip():
            return "empty_document" if column == "document" else "empty_summary"
    return None


def raw(table: pa.Table, name: str) -> list[bytes | None]:
    found: list[bytes | None] = table[name].cast(pa.large_binary()).to_pylist()
    return found


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(table=tables())
def test_any_table_comes_out_whole_with_a_verdict_or_a_reason_for_each_row(fake_model: Path, table: pa.Table) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pq.write_table(table, folder / "in.parquet", row_group_size=5)
        written = read(folder / "in.parquet")
        scored = score(folder / "in.parquet", folder / "out.parquet", fake_model)
        journals = list((folder / "out.parquet.journal").glob("*.tmp"))

    assert scored.num_rows == table.num_rows
    assert Counter(scored.column_names) == Counter([*table.column_names, *own(scored)])
    # Buffers are compared, since texts need not be UTF-8 and numbers may be NaN.
    for place, column in enumerate(written.columns):
        assert same(column, scored.column(place)), table.column_names[place]
    for document, summary, status in zip(
        raw(table, "document"), raw(table, "summary"), scored["batchfact_status"].to_pylist(), strict=True
    ):
        wanted = expected_status(document, summary)
        assert status == wanted if wanted else status in ("ok", "too_long")
    assert not journals


def same(left: pa.ChunkedArray, right: pa.ChunkedArray) -> bool:
    """Equal values, NaN equal to NaN, texts by their bytes."""
    if left.type != right.type:
        return False
    if pa.types.is_string(left.type) or pa.types.is_large_string(left.type):
        left, right = left.cast(pa.large_binary()), right.cast(pa.large_binary())
    return repr(left.to_pylist()) == repr(right.to_pylist())


def test_extreme_texts_and_columns_survive_a_run(fake_model: Path, tmp_path: Path) -> None:
    """10 MB of document, half a million characters without a full stop, bytes that are no text, huge ids."""
    documents: Sequence[bytes | None] = [
        b"The shop sold 7 lamps. " * 450_000,
        b"A short document.",
        b"A short document with \xed\xa0\x80 in it.",
        b"Nul \0 in a document.",
        "מסמך קצר. وثيقة.".encode(),
        None,
        b"Another.",
    ]
    summaries: Sequence[bytes | None] = [
        b"It sold 7 lamps.",
        b"word " * 100_000,
        b"Fine.",
        b"Nul \0 in a summary.",
        ("\u202e" + "e\u0301" * 50 + ". שלום.").encode(),
        b"Fine.",
        None,
    ]
    num_rows = len(documents)
    table = pa.Table.from_arrays(
        [
            pa.Array.from_buffers(pa.string(), num_rows, pa.array(documents, pa.binary()).buffers()),
            pa.array([BIG_ID + row for row in range(num_rows)], pa.int64()),
            pa.Array.from_buffers(pa.string(), num_rows, pa.array(summaries, pa.binary()).buffers()),
            pa.array([None] * num_rows, pa.null()),
            pa.array([[{"a": [row], "b": None}] for row in range(num_rows)]),
            pa.array(range(num_rows), pa.int8()),
        ],
        names=["document", "id", "summary", "nothing", "nested", "id"],
    )
    pq.write_table(table, tmp_path / "in.parquet")
    scored = score(tmp_path / "in.parquet", tmp_path / "out.parquet", fake_model)

    assert scored.column_names[: len(table.column_names)] == table.column_names
    assert scored.column(1).to_pylist() == [BIG_ID + row for row in range(num_rows)]
    assert scored.column(4).to_pylist() == table.column(4).to_pylist()
    assert raw(scored, "summary") == list(summaries)
    assert scored["batchfact_status"].to_pylist() == [
        *("ok", "ok", "invalid_text", "ok", "ok", "empty_document", "empty_summary")
    ]
    spans = [(each["start"], each["end"]) for each in scored["batchfact_findings"][1].as_py()]
    assert spans[0][0] == 0
    assert spans[-1][1] >= 499_999
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


@pytest.mark.parametrize("paradigm", ["summ-nli", "sent-nli", "qg-qa", "vanilla", "cot", "sbs"])
def test_every_paradigm_takes_nasty_texts(fake_model: Path, tmp_path: Path, paradigm: str) -> None:
    table = pa.table({"document": [each + " x" for each in NASTY], "summary": [each + " y" for each in NASTY[::-1]]})
    pq.write_table(table, tmp_path / "in.parquet")
    scored = score(tmp_path / "in.parquet", tmp_path / "out.parquet", fake_model, paradigm=paradigm)

    assert scored["document"] == table["document"]
    assert set(scored["batchfact_status"].to_pylist()) <= {"ok", "no_claims", "unparsed", "incomplete"}
    assert "ok" in scored["batchfact_status"].to_pylist() or paradigm == "qg-qa"
