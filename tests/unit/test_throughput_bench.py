"""The pure parts of `python -m bench throughput`: inputs, order, figures and tables."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchfact.engines.base import LabelIds
from batchfact.errors import UsageError
from batchfact.records import Choose, Data, Template
from bench.tables import NOTHING, fill, render
from bench.throughput.arms.batchfact_run import TimedProgress
from bench.throughput.figures import ModelSize, agreement, figures, flops, summarise, unique_tokens
from bench.throughput.grid import FULL, QUICK, interleaved, target
from bench.throughput.inputs import Layout, by_document, lay_out, read_pool, read_rows, whole_documents, write_rows
from bench.throughput.prompts import Prompts
from bench.throughput.running import Done, RunKey
from bench.throughput.task import ArmRecord, Calls, FindingRow, Task, decode_task, encode_task

WORDS = " ".join(["word"] * 600)
POOL = {f"Document {name}. {WORDS}": [f"Summary {name} {number}." for number in range(9)] for name in "abcdef"}
SIZE = ModelSize(weights=1000, layers=2, attention=8, hidden=8, vocabulary=50)


def record(*, calls: Calls | None = None, findings: dict[int, list[FindingRow]] | None = None) -> ArmRecord:
    return ArmRecord(ready_at=110.0, first_row_at=112.0, finished_at=120.0, findings=findings or {}, calls=calls or [])


def line(arm: str, pairs_per_s: float, *, input_name: str = "adjacent", tokens: float = 100.0) -> dict[str, Any]:
    return {
        "input": input_name,
        "arm": arm,
        "status": "ok",
        "reason": None,
        "pairs": 10,
        "scoring_s": 10 / pairs_per_s,
        "pairs_per_s": pairs_per_s,
        "logical_tokens_per_s": tokens * pairs_per_s,
        "agreement": None,
    }


def test_a_layout_has_whole_documents_with_as_many_summaries_as_it_says():
    rows = lay_out(POOL, Layout(summaries=4, what=""), 12, seed=1)

    assert Counter(Counter(document for _, document, _ in rows).values()) == {4: 3}
    assert [number for number, _, _ in rows] == list(range(12))
    assert rows == by_document(rows)


def test_the_same_seed_lays_out_the_same_rows_and_another_one_others():
    layout = Layout(summaries=4, shuffled=True, what="")

    assert lay_out(POOL, layout, 12, seed=1) == lay_out(POOL, layout, 12, seed=1)
    assert lay_out(POOL, layout, 12, seed=1) != lay_out(POOL, layout, 12, seed=2)


def test_shuffled_rows_are_the_adjacent_ones_in_another_order():
    adjacent = lay_out(POOL, Layout(summaries=4, what=""), 16, seed=1)
    shuffled = lay_out(POOL, Layout(summaries=4, shuffled=True, what=""), 16, seed=1)

    assert adjacent != shuffled
    assert sorted(adjacent) == sorted(shuffled)


def test_a_share_of_the_rows_are_copies_of_others():
    rows = lay_out(POOL, Layout(summaries=7, duplicates=0.3, what=""), 20, seed=1)
    distinct = {row[1:] for row in rows}

    assert len(rows) - len(distinct) == pytest.approx(0.3 * len(rows), abs=1)


def test_documents_outside_the_layouts_lengths_are_left_out_or_refused():
    with pytest.raises(UsageError, match="no document of the input has 5000 to 6000 words"):
        lay_out(POOL, Layout(summaries=4, min_words=5000, max_words=6000, what=""), 12, seed=1)


def test_a_subset_has_whole_documents_and_keeps_the_order():
    rows = lay_out(POOL, Layout(summaries=4, shuffled=True, what=""), 24, seed=1)
    part = whole_documents(rows, 8)

    assert Counter(Counter(document for _, document, _ in part).values()) == {4: 2}
    assert part == [row for row in rows if row in part]


def test_a_pool_has_each_summary_of_a_document_once_over_all_files(tmp_path):
    for name, summaries in (("one", ["A.", "B.", None]), ("two", ["B.", "C.", " "])):
        pq.write_table(pa.table({"document": ["D."] * 3, "summary": summaries}), tmp_path / f"{name}.parquet")

    assert read_pool(sorted(tmp_path.glob("*.parquet"))) == {"D.": ["A.", "B.", "C."]}


def test_a_file_without_the_columns_is_refused_by_name(tmp_path):
    pq.write_table(pa.table({"text": ["D."]}), tmp_path / "other.parquet")

    with pytest.raises(UsageError, match=r"other\.parquet has no columns document and summary"):
        read_pool([tmp_path / "other.parquet"])


def test_rows_come_back_from_their_file_as_they_were(tmp_path: Path):
    rows = [(3, "D.", "A."), (1, "E.", "B.")]
    write_rows(tmp_path / "rows.parquet", rows)

    assert read_rows(tmp_path / "rows.parquet") == rows


def test_two_passes_run_the_arms_forwards_then_backwards():
    assert interleaved("AB", 2) == [("A", 0), ("B", 0), ("B", 1), ("A", 1)]


def test_a_single_pass_ends_with_the_first_arm_again():
    assert interleaved("ABC", 1) == [("A", 0), ("B", 0), ("C", 0), ("A", 1)]


def test_the_quick_grid_has_a_dozen_runs_and_the_full_one_every_input():
    assert sum(len(interleaved(block.arms, 1)) for block in QUICK) == 12
    assert [block.input for block in FULL] == ["adjacent", "shuffled", "sixteen", "duplicates", "long", "reasoning"]


def test_some_aims_are_for_one_input_and_some_for_all():
    assert target("chat", "shuffled") == 3.0
    assert target("chat", "long") is None
    assert target("engine", "long") == 0.97


def test_a_token_is_unique_by_itself_and_all_before_it():
    assert unique_tokens([[1, 2, 3], [1, 2, 4], [2, 3], [1, 2, 3]]) == 6


def test_cached_tokens_cost_no_arithmetic_and_a_label_costs_its_head():
    head = 2 * 8 * 50

    assert flops([(10, 0, 1)], SIZE) == 2 * 1000 * 10 + 2 * 2 * 8 * 10**2 + head
    assert flops([(10, 4, 1)], SIZE) == 2 * 1000 * 6 + 2 * 2 * 8 * (10**2 - 4**2) + head


def test_figures_leave_the_start_out_and_count_only_what_was_computed():
    done = Done(status="ok", started_at=100.0, wall_s=25.0, record=record(calls=[(40, 30, 1), (60, 0, 1)]))
    found = figures(done, rows=5, logical_tokens=200, unique=80, size=SIZE, ceiling=1e5)

    assert found["pairs_per_s"] == 0.5
    assert found["logical_tokens_per_s"] == 20
    assert found["unique_tokens_per_s"] == 8
    assert found["computed_tokens_per_s"] == 7
    assert found["cached_share"] == 0.3
    assert (found["start_s"], found["first_row_s"]) == (10, 12)
    assert found["matrix_share"] == pytest.approx(flops([(40, 30, 1), (60, 0, 1)], SIZE) / 10 / 1e5)


def test_what_an_arm_did_to_find_out_its_start_is_no_part_of_it():
    done = Done(status="ok", started_at=100.0, record=msgspec.structs.replace(record(), probe_s=4.0))
    found = figures(done, rows=5, logical_tokens=200, unique=80, size=SIZE, ceiling=1.0)

    assert (found["start_s"], found["first_row_s"], found["pairs_per_s"]) == (6, 8, 0.5)


def test_an_arm_that_tells_no_tokens_has_no_cached_share():
    found = figures(Done(status="ok", record=record()), rows=5, logical_tokens=200, unique=80, size=SIZE, ceiling=1.0)

    assert found["cached_share"] is found["matrix_share"] is found["requests"] is None


def test_a_failed_run_has_its_reason_and_no_figures():
    done = Done(status="failed", reason="out of memory", wall_s=3.0)

    assert figures(done, rows=5, logical_tokens=200, unique=80, size=SIZE, ceiling=1.0) == {
        "status": "failed",
        "reason": "out of memory",
        "wall_s": 3.0,
    }


def test_the_ratio_is_of_all_work_by_all_time_and_of_tokens_where_rows_differ():
    runs = [line("batchfact", 4.0), line("chat", 2.0), line("chat", 2.0), line("batchfact", 4.0)]
    runs.append(line("minicheck", 1.0, tokens=200.0))  # dearer rows: as fast as 2 pairs a second of the others
    found = {each["arm"]: each for each in summarise(runs, "batchfact")}

    assert found["chat"]["ratio"] == pytest.approx(2.0)
    assert found["minicheck"]["ratio"] == pytest.approx(2.0)
    assert found["batchfact"]["ratio"] is None
    assert found["batchfact"]["runs"] == 2


def test_an_arm_without_a_finished_run_keeps_its_reason():
    runs = [line("batchfact", 4.0), {"input": "adjacent", "arm": "ray", "status": "not run", "reason": "no ray"}]

    assert summarise(runs, "batchfact")[1] == {
        "input": "adjacent",
        "arm": "ray",
        "runs": 0,
        "status": "not run",
        "reason": "no ray",
    }


def test_agreement_is_over_the_pairs_that_both_have_and_near_ones_are_apart():
    ours = record(findings={0: [("consistent", 0.9, "ok")], 1: [("inconsistent", 0.495, "ok")], 2: []})
    theirs = record(findings={0: [("consistent", 0.8, "ok")], 1: [("consistent", 0.505, "ok")]})
    found = agreement(theirs, ours, 0.5)

    assert found is not None
    assert (found["findings"], found["clear_findings"], found["pairs_left_out"]) == (2, 1, 0)
    assert (found["clear_agreement"], found["agreement"]) == (1.0, 0.5)


def test_pairs_with_another_number_of_findings_are_counted_as_left_out():
    ours = record(findings={0: [("consistent", 0.9, "ok")], 1: [("consistent", 0.9, "ok")]})
    theirs = record(findings={0: [("consistent", 0.9, "ok")], 1: [], 2: [("consistent", 0.9, "ok")]})
    found = agreement(theirs, ours, 0.5)

    assert found is not None
    assert (found["findings"], found["pairs_left_out"]) == (1, 2)


def test_labels_without_scores_agree_or_not_and_none_is_clear():
    ours = record(findings={0: [("consistent", 0.9, "ok")], 1: [("inconsistent", 0.2, "ok")]})
    theirs = record(findings={0: [("consistent", None, "ok")], 1: [("consistent", None, "ok")]})
    found = agreement(theirs, ours, 0.5)

    assert found is not None
    assert found["agreement"] == 0.5
    assert found["clear_findings"] is None


def test_a_place_is_filled_from_its_result_and_one_without_says_so():
    text = "a\n<!-- bench:one -->\nstale text\n<!-- /bench:one -->\nb\n<!-- bench:two -->\n<!-- /bench:two -->\n"
    host = {
        "kind": "host",
        "command": "python -m bench host",
        "stages": [{"what": "fold", "us_a_request": 1.25, "us_a_pair": 2.5}],
        "machine": {"cores": 2, "cpu": "a CPU"},
        "versions": {},
        "commit": "0123456789",
        "date": "2026-11-30T00:00:00",
        "uncommitted_changes": False,
    }
    filled = fill(text, {"one": host})

    assert "| fold | 1.2 | 2.5 |" in filled
    assert "stale text" not in filled
    assert f"<!-- bench:two -->\n{NOTHING}<!-- /bench:two -->" in filled
    assert fill(filled, {"one": host}) == filled


def test_a_result_without_a_table_is_refused():
    with pytest.raises(ValueError, match="has no table"):
        render({"kind": "soak"})


def key(task: Task, *, turn: int = 0) -> RunKey:
    return RunKey(task=task, environment={}, turn=turn, code="c", input_digest="i")


def test_a_task_is_the_same_in_another_process():
    task = Task(arm="chat", input=Path("/in.parquet"), folder=Path("/work"), model="m", options={"group": "none"})

    assert decode_task(encode_task(task)) == task


def test_a_kept_run_is_found_by_what_made_it_and_not_by_where_it_lies():
    task = Task(arm="chat", input=Path("/a/in.parquet"), folder=Path("/a"), model="m")
    moved = msgspec.structs.replace(task, input=Path("/b/in.parquet"), folder=Path("/b"))
    other = msgspec.structs.replace(task, kv_cache_bytes=1)

    assert key(task).name() == key(moved).name()
    assert len({key(task).name(), key(other).name(), key(task, turn=1).name()}) == 3


def test_label_words_are_spelled_once_and_not_for_each_request():
    """Spelling takes milliseconds, and arms do it within their time; batchfact itself does it once."""

    class Counting:
        def __init__(self) -> None:
            self.num_spelled = 0

        def label_ids(self, *_: object) -> LabelIds:
            self.num_spelled += 1
            return ((1,), (2,))

    counting: Any = Counting()
    prompts = Prompts(
        config=None,  # type: ignore[arg-type]
        method=None,  # type: ignore[arg-type]
        assembler=counting,
        rows=(),
        programs=(),
        prepare_s=0.0,
        dtype="float32",
        head_dtype="float32",
    )
    for text in ("one", "two"):
        asked = Choose(key="", prompt=(Data(text), Template("Answer:")), labels=("yes", "no"))
        assert prompts.labels(asked) == ((1,), (2,))

    assert counting.num_spelled == 1


def test_the_engine_is_idle_from_its_start_to_the_first_request_and_between_requests(monkeypatch):
    progress = TimedProgress(2)
    progress.calls, progress.answered_at, progress.committed_at = [], [], None
    progress.idle_since, progress.idle_s = None, 0.0
    progress.engine_ready_at = 10.0
    clock = iter([12.0, 15.0, 16.0, 20.0])
    monkeypatch.setattr("bench.throughput.arms.batchfact_run.time.monotonic", lambda: next(clock))
    for step in (progress.enter_engine, progress.leave_engine, progress.enter_engine, progress.leave_engine):
        step()

    assert progress.idle_s == 2.0 + 1.0


def test_the_first_row_is_in_the_callers_hands_when_it_is_committed(monkeypatch):
    progress = TimedProgress(2)
    progress.committed_at = None
    clock = iter([7.0, 8.0, 9.0])
    monkeypatch.setattr("bench.throughput.arms.batchfact_run.time.monotonic", lambda: next(clock))
    progress.facts()
    assert progress.committed_at is None

    progress.statuses["ok"] += 1
    progress.facts()
    progress.facts()

    assert progress.committed_at == 7.0
