"""`batchfact report` through the real command line, and what it refuses."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from batchfact.errors import UsageError
from batchfact.reporting import MAX_PAGE_BYTES, write_report
from batchfact.scored_file import ColumnOptions
from tests.pipeline.command_line import PAIRS, CommandLine
from tests.scored_files import METADATA, finding, row, write_scored
from tests.unit.scored_files import facts

ROW = row("A long document.", "It is short.", [finding("It is short.", "It is short.")])


def listed(page: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def report(path: Path, output: str | None = None, **more: Any) -> Path:
    columns = {name: more.pop(name) for name in list(more) if name in ColumnOptions.__struct_fields__}
    return Path(write_report([str(path)], output, ColumnOptions(**columns), **more)[0])


def test_a_runs_output_becomes_a_page(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    cli.run(make_input(PAIRS, label=[1, 0] * 20, summarizer=["a", "b"] * 20), "out.parquet", "--reasoning")
    done = cli("report", "out.parquet", "-o", "page.html")
    data = listed(tmp_path / "page.html")

    assert done.stdout.startswith("page.html: 40 rows, ") and done.stderr == ""
    assert len(data["rows"]) == 40 and len(data["documents"]) == 20
    assert data["rows"][1]["summary"] == PAIRS[1][1] and data["rows"][1]["gold"] == "inconsistent"
    assert data["rows"][1]["findings"][0]["reasoning"] == "Each fact was compared with the document."


def test_the_settings_and_counts_of_the_run_are_said(tmp_path: Path) -> None:
    html = report(write_scored(tmp_path / "s.parquet", [ROW] * 4)).read_text("utf-8")

    assert "m · sent-nli · threshold 0.4 · 4 rows" in html
    assert "40.0% from the prefix cache" in html
    assert "threshold 0.4" in html


def test_where_there_are_gold_labels_the_metrics_are_shown(tmp_path: Path) -> None:
    good = row("d", "s", [finding("s", "s", "consistent")])
    rows = [{**(good if number % 4 else ROW), "label": int(number % 2), "dataset": "news"} for number in range(40)]
    html = report(write_scored(tmp_path / "s.parquet", rows, metadata=facts(threshold=0.4))).read_text("utf-8")

    assert "Against gold labels" in html
    # Of 20 inconsistent rows 10 are found, of 20 consistent ones all: (0.5 + 1) / 2.
    assert re.search(r"<td>75\.00 \[\d+\.\d, \d+\.\d\]</td>", html)
    assert "ROC curve" in html and "Reliability" in html
    assert "Against gold labels" not in report(write_scored(tmp_path / "t.parquet", [ROW])).read_text("utf-8")


def test_metrics_need_the_runs_settings(tmp_path: Path) -> None:
    path = write_scored(tmp_path / "s.parquet", [{**ROW, "label": 1}], metadata=None)

    assert "There are no metrics" in report(path).read_text("utf-8")


def test_a_column_named_score_that_holds_text_is_no_hindrance(tmp_path: Path) -> None:
    path = write_scored(tmp_path / "s.parquet", [{**ROW, "label": 1, "score": "high"}])

    assert "Against gold labels" in report(path).read_text("utf-8")


def test_an_early_exit_is_said(tmp_path: Path) -> None:
    path = write_scored(tmp_path / "s.parquet", [ROW], metadata={**METADATA, "early_exit": True})

    assert "scores are only upper bounds" in report(path).read_text("utf-8")


def test_a_file_that_lost_its_metadata_is_shown_all_the_same(tmp_path: Path) -> None:
    html = report(write_scored(tmp_path / "s.parquet", [ROW], metadata=None)).read_text("utf-8")

    assert "does not say how it was made" in html


def test_of_a_large_file_evenly_spaced_rows_are_listed_and_all_counted(tmp_path: Path) -> None:
    page = report(write_scored(tmp_path / "s.parquet", [ROW] * 100), max_rows=30)

    numbers = [each["row"] for each in listed(page)["rows"]]
    assert len(numbers) == 30 and numbers[0] == 0
    assert {later - sooner for sooner, later in itertools.pairwise(numbers)} == {3, 4}
    assert "30 of the 100 rows, evenly spaced" in page.read_text("utf-8")


def test_long_documents_are_shortened_and_it_is_said(tmp_path: Path) -> None:
    rows = [{**ROW, "document": f"{number} " + "word " * 50_000} for number in range(150)]
    page = report(write_scored(tmp_path / "s.parquet", rows))

    assert page.stat().st_size < MAX_PAGE_BYTES
    assert "150 of 150 documents are shortened to about 32,000 characters" in page.read_text("utf-8")


def test_a_dropped_document_is_no_hindrance(tmp_path: Path) -> None:
    without = {name: value for name, value in ROW.items() if name != "document"}

    assert listed(report(write_scored(tmp_path / "s.parquet", [without])))["places"] == [None]


def test_bytes_that_are_no_text_are_shown_as_such(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = write_scored(tmp_path / "s.parquet", [ROW])
    table = pq.read_table(path)
    broken = pa.array([b"caf\xe9"]).view(pa.string())
    pq.write_table(table.set_column(table.schema.names.index("summary"), "summary", broken), path)

    assert listed(report(path))["rows"][0]["summary"] == "caf\ufffd"


@pytest.mark.parametrize("labels", [[True, False], [1.0, 0.0], ["consistent", "inconsistent"], [1, 0]])
def test_gold_labels_come_in_several_forms(tmp_path: Path, labels: list[Any]) -> None:
    path = write_scored(tmp_path / "s.parquet", [{**ROW, "label": label} for label in labels])

    assert [each["gold"] for each in listed(report(path))["rows"]] == ["consistent", "inconsistent"]


def test_a_column_that_only_has_the_name_of_labels_is_left_alone_and_it_is_said(tmp_path: Path) -> None:
    path = write_scored(tmp_path / "s.parquet", [{**ROW, "label": "sports"}])
    page, written = write_report([str(path)], None, ColumnOptions())

    assert "gold" not in listed(Path(page))["rows"][0]
    assert "'label' holds 'sports'" in written.warnings[0] and "holds &#39;sports&#39;" in Path(page).read_text("utf-8")


def test_a_column_that_was_named_for_labels_must_hold_some(tmp_path: Path) -> None:
    path = write_scored(tmp_path / "s.parquet", [{**ROW, "topic": "sports"}])

    with pytest.raises(UsageError, match=r"'topic' holds 'sports'; a label is 1.*--label-column"):
        report(path, label="topic")


def test_a_file_without_the_verdicts_columns_is_refused(make_input: Any) -> None:
    with pytest.raises(UsageError, match=r"no column 'batchfact_label'.*score it first with batchfact run"):
        report(make_input(PAIRS))


def test_another_prefix_is_found_in_the_metadata_or_guessed(tmp_path: Path) -> None:
    metadata = {**METADATA, "columns": {"column_prefix": "bf_"}}
    known = write_scored(tmp_path / "known.parquet", [ROW], metadata=metadata, prefix="bf_")
    lost = write_scored(tmp_path / "lost.parquet", [ROW], metadata=None, prefix="bf_")

    assert report(known).exists()
    with pytest.raises(UsageError, match=r"its prefix may be 'bf_' \(--column-prefix\)"):
        report(lost)
    assert report(lost, column_prefix="bf_").exists()


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"s.parquet has no rows"):
        report(write_scored(tmp_path / "s.parquet", []))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.parquet").touch()

    with pytest.raises(UsageError, match="is empty"):
        report(tmp_path / "s.parquet")


def test_a_missing_file_is_refused_with_its_likely_name(tmp_path: Path) -> None:
    write_scored(tmp_path / "scored.parquet", [ROW])

    with pytest.raises(UsageError, match=r"did you mean 'scored.parquet'"):
        report(tmp_path / "scord.parquet")


def shard(path: Path, rows: list[dict[str, Any]], first_row: int, **facts: Any) -> Path:
    return write_scored(path, rows, metadata={**METADATA, "first_row": first_row, **facts})


def test_a_folder_of_shards_and_its_files_one_by_one_give_the_same_page(tmp_path: Path) -> None:
    folder = tmp_path / "scored"
    folder.mkdir()
    files = [
        shard(folder / f"{number}.parquet", [{**ROW, "id": f"{number}", "label": number % 2}] * 2, 2 * number)
        for number in range(3)
    ]
    page = report(folder)
    alone, _ = write_report(list(map(str, files)), str(tmp_path / "alone.html"), ColumnOptions())

    assert page == tmp_path / "scored.html"
    assert "6 rows · 3 files" in page.read_text("utf-8") and "Against gold labels" in page.read_text("utf-8")
    assert [each["row"] for each in listed(page)["rows"]] == list(range(6))
    assert listed(Path(alone)) == listed(page)


def test_shards_that_are_no_parts_of_one_run_are_refused(tmp_path: Path) -> None:
    first = str(shard(tmp_path / "a.parquet", [ROW], 0))
    other = str(shard(tmp_path / "b.parquet", [ROW], 1, fold={"threshold": 0.5}))
    twice = str(shard(tmp_path / "c.parquet", [ROW], 0))
    bare = str(write_scored(tmp_path / "d.parquet", [ROW], metadata=None))
    lacking = str(shard(tmp_path / "e.parquet", [{name: ROW[name] for name in ROW if name != "document"}], 1))

    for files, message in {
        (first, other): r"a.parquet and .*b.parquet were not scored alike \(fold.threshold: 0.4 -> 0.5",
        (first, twice): r"a.parquet and .*c.parquet hold the same rows of one run",
        (bare, first): r"a.parquet is an output of batchfact and .*d.parquet is none",
        (first, lacking): r"e.parquet has no column 'document'",
    }.items():
        with pytest.raises(UsageError, match=message):
            write_report(files, str(tmp_path / "page.html"), ColumnOptions())
    with pytest.raises(UsageError, match="say with --output"):
        write_report([first, str(shard(tmp_path / "f.parquet", [ROW], 1))], None, ColumnOptions())


def test_the_runs_speed_is_shown_once_for_all_its_shards(tmp_path: Path) -> None:
    took = {"runs": 2, "rows": 600, "duration_s": 130.0, "scoring_s": 100.0, "pairs_per_s": 6.0}
    took |= {"prompt_tokens": 50_000, "cached_tokens": 10, "output_tokens": 5}
    files = [str(shard(tmp_path / f"{row}.parquet", [ROW], row, throughput=took)) for row in range(2)]
    page, _ = write_report(files, str(tmp_path / "page.html"), ColumnOptions())
    text = " ".join(re.sub(r"<[^>]+>", " ", Path(page).read_text("utf-8")).split())

    assert "Pairs a second 6.00 600 pairs, start-up left out, over 2 runs" in text
    assert "Time 2 min 10 s 1 min 40 s of it scoring" in text
    assert "Prompt tokens a second 500" in text
    assert "Pairs a second" not in report(write_scored(tmp_path / "old.parquet", [ROW])).read_text("utf-8")


@pytest.mark.parametrize("foreign", [b"hello", b"[1]", b"{}", b'{"identity": 3}', b"\xff"])
def test_another_programs_metadata_under_our_name_counts_as_none(tmp_path: Path, foreign: bytes) -> None:
    path = write_scored(tmp_path / "s.parquet", [ROW])
    pq.write_table(pq.read_table(path).replace_schema_metadata({"batchfact": foreign}), path)

    assert "does not say how it was made" in report(path).read_text("utf-8")


def test_columns_that_batchfact_did_not_write_are_refused(tmp_path: Path) -> None:
    path = write_scored(tmp_path / "s.parquet", [{**ROW, "batchfact_label": "maybe"}])

    with pytest.raises(UsageError, match="does not hold what batchfact writes"):
        report(path)


@pytest.mark.parametrize(
    "column", ["document", "summary", "label", "rating", "summarizer", "dataset", "error_types", "id"]
)
def test_a_column_that_was_named_must_be_there(tmp_path: Path, column: str) -> None:
    path = write_scored(tmp_path / "s.parquet", [ROW])

    with pytest.raises(UsageError, match=f"no column 'sumary'.*did you mean 'summary'.*--{column.replace('_', '-')}-"):
        report(path, **{column: "sumary"})


def test_an_output_that_exists_is_only_replaced_when_asked(tmp_path: Path) -> None:
    path = write_scored(tmp_path / "s.parquet", [ROW])
    page = tmp_path / "s.html"
    page.write_text("mine")

    with pytest.raises(UsageError, match=r"s.html exists already.*--force"):
        report(path)
    assert page.read_text() == "mine"
    assert report(path, force=True) == page and page.read_text("utf-8").startswith("<!DOCTYPE html>")


def test_the_scored_file_is_never_written_over(tmp_path: Path) -> None:
    path = write_scored(tmp_path / "s.parquet", [ROW])

    with pytest.raises(UsageError, match="is the scored file itself"):
        report(path, str(path), force=True)
    with pytest.raises(UsageError, match="is a folder; name a file in it"):
        report(path, str(tmp_path), force=True)


def test_fewer_than_one_row_cannot_be_listed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--max-rows must be at least 1"):
        report(write_scored(tmp_path / "s.parquet", [ROW]), max_rows=0)


def test_the_page_of_a_uri_lies_beside_the_file(tmp_path: Path) -> None:
    uri = write_scored(tmp_path / "s.parquet", [{**ROW, "label": 1}]).as_uri()
    target, _ = write_report([uri], None, ColumnOptions())

    assert target == f"{tmp_path.as_uri()}/s.html"
    assert "Against gold labels" in (tmp_path / "s.html").read_text("utf-8")


@pytest.mark.parametrize("column", ["document", "summary"])
def test_a_column_of_numbers_is_no_text(tmp_path: Path, column: str) -> None:
    path = write_scored(tmp_path / "s.parquet", [{**ROW, "number": 1}])

    with pytest.raises(UsageError, match=rf"column 'number' .* not text.*--{column}-column"):
        report(path, **{column: "number"})


def test_a_column_of_lists_holds_no_labels(tmp_path: Path) -> None:
    path = write_scored(tmp_path / "s.parquet", [{**ROW, "label": [1]}])

    assert "not taken as gold labels" in report(path).read_text("utf-8")


def test_a_doubled_column_is_refused_by_name_and_else_left_alone(tmp_path: Path) -> None:
    path = write_scored(tmp_path / "s.parquet", [{**ROW, "label": 1}])
    table = pq.read_table(path)
    pq.write_table(table.append_column("label", table["label"]), path)

    with pytest.raises(UsageError, match="several columns named 'label'"):
        report(path, label="label")
    assert "Against gold labels" not in report(path).read_text("utf-8")
