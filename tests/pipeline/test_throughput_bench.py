"""`python -m bench throughput` goes on by itself: what fails is told, what has finished is kept, tables are written."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bench.facts
from bench import ablation
from bench.throughput import measuring
from bench.throughput.arms import ARMS
from bench.throughput.running import Done, RunKey, run_once
from bench.throughput.task import ArmRecord, Task

SENTENCE = "The mayor of the town said that the old bridge would open again in the spring of that year. "


def key(tmp_path: Path, **changes) -> RunKey:
    task = Task(arm="ray", input=tmp_path / "in.parquet", folder=tmp_path, model=str(tmp_path / "none"))
    return RunKey(task=msgspec.structs.replace(task, **changes), environment={}, turn=0, code="c", input_digest="i")


def record(finished_at: float = 3.0) -> ArmRecord:
    return ArmRecord(ready_at=1.0, first_row_at=2.0, finished_at=finished_at, findings={}, calls=[(100, 40, 1)])


def test_an_arm_that_fails_is_told_with_its_last_line_and_is_not_kept(tmp_path):
    done = run_once(key(tmp_path, arm="engine"), tmp_path, limit_s=200)

    assert done.status == "failed"
    assert done.reason is not None
    assert "UsageError" in done.reason
    assert not list((tmp_path / "runs").glob("*.json"))


def test_an_arm_that_is_not_for_here_says_why(tmp_path):
    done = run_once(key(tmp_path, arm="ray", reasoning=True), tmp_path, limit_s=200)

    assert (done.status, done.reason) == ("not run", "a row has one request: no request can follow from an answer")


def test_an_arm_that_takes_too_long_is_ended(tmp_path):
    done = run_once(key(tmp_path, arm="engine"), tmp_path, limit_s=0)

    assert (done.status, done.reason) == ("failed", "took longer than 0 s")


def test_a_run_that_has_finished_is_taken_from_the_work_folder(tmp_path):
    kept = Done(status="ok", wall_s=5.0, record=record())
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / f"{key(tmp_path).name()}.json").write_bytes(msgspec.json.encode(kept))

    assert run_once(key(tmp_path), tmp_path, limit_s=0) == kept


def write_pairs(path: Path) -> None:
    documents = [f"Report {number}. " + SENTENCE * 30 for number in range(4)]
    rows = [(each, f"Summary {number} of it.") for each in documents for number in range(8)]
    pq.write_table(pa.table({"document": [row[0] for row in rows], "summary": [row[1] for row in rows]}), path)


@pytest.fixture
def quick(tmp_path, monkeypatch, model_folder):
    """Runs the quick grid on a small input, with `ran` in place of the processes; gives the result."""

    def measure(ran, *options: str):
        write_pairs(tmp_path / "in.parquet")
        for module in (bench.facts, measuring):
            monkeypatch.setattr(module, "RESULTS", tmp_path)
        monkeypatch.setattr(bench.facts, "ROOT", tmp_path)
        monkeypatch.setattr(measuring, "run_once", ran)
        monkeypatch.setattr(measuring, "ceiling_of", lambda *_: {"flop_per_s": 1e12})
        parser = argparse.ArgumentParser()
        measuring.add_arguments(parser)
        given = ["--quick", "--input", str(tmp_path / "in.parquet"), "--work", str(tmp_path / "work"), "--pairs", "16"]
        measuring.measure(parser.parse_args([*given, "--slow-pairs", "8", "--model", str(model_folder), *options]))
        return json.loads((tmp_path / "throughput-quick.json").read_text())

    return measure


def test_one_arms_failure_leaves_the_others_their_figures(quick, tmp_path):
    def ran(run: RunKey, *_) -> Done:
        if run.task.arm == "chat":
            return Done(status="failed", reason="it fell over")
        return Done(status="ok", record=record())

    result = quick(ran)
    table = (tmp_path / "throughput-quick.md").read_text()

    assert len(result["runs"]) == 12
    assert {line["arm"] for line in result["summary"] if line["status"] == "ok"} == ARMS.keys() - {"chat"}
    assert "LLM.chat, rows in file order (failed: it fell over)" in table
    assert (tmp_path / "throughput-quick.svg").read_text().startswith("<?xml")


def test_slow_arms_get_a_part_of_the_rows_and_are_compared_by_what_those_cost(quick):
    result = quick(lambda *_: Done(status="ok", record=record()), "--inputs", "adjacent")
    lines = {line["arm"]: line for line in result["summary"]}

    assert (lines["chat"]["pairs"], lines["minicheck"]["pairs"]) == (16, 8)
    assert lines["chat"]["ratio"] == pytest.approx(1.0)
    assert lines["minicheck"]["ratio"] == pytest.approx(2.0, rel=0.05)


def test_an_ablation_has_a_line_for_each_setting_and_compares_with_the_first(tmp_path, monkeypatch, model_folder):
    write_pairs(tmp_path / "in.parquet")
    for name in ("RESULTS", "ROOT"):
        monkeypatch.setattr(bench.facts, name, tmp_path)
    seconds = {"none": 5.0}  # of --group none; 3 s of all others
    monkeypatch.setattr(
        ablation,
        "run_once",
        lambda run, *_: Done(status="ok", record=record(seconds.get(str(run.task.options.get("group")), 3.0))),
    )
    monkeypatch.setattr(ablation, "ceiling_of", lambda *_: {"flop_per_s": 1e12})
    parser = argparse.ArgumentParser()
    ablation.add_arguments(parser)
    given = ["grouping", "--input", str(tmp_path / "in.parquet"), "--work", str(tmp_path / "work"), "--pairs", "16"]
    ablation.measure(parser.parse_args([*given, "--model", str(model_folder)]))
    result = json.loads((tmp_path / "ablation-grouping.json").read_text())

    assert [line["title"] for line in result["summary"]] == ["group window", "group none", "group global"]
    assert [line["against_first"] for line in result["summary"]] == pytest.approx([1.0, 0.5, 1.0])
