"""`run --shard i/n` and `merge`: a job array's output is that of one run, or there is none and a reason."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchfact import pipeline
from batchfact.cli.status import status
from batchfact.errors import RunFailedError, UsageError
from batchfact.journal import Journal, read_run
from batchfact.merging import merge_journals
from batchfact.pipeline import RunReport
from batchfact.reducing import reduce_journal
from batchfact.settings import make_config
from batchfact.sink import Totals
from tests.pipeline.command_line import CommandLine, rows, verdicts
from tests.pipeline.test_status import wait_for_rows

JOURNALS = "out.parquet.journal"
EXAMPLE = Path(__file__).parents[2] / "examples" / "slurm_array.sh"
PAIRS: list[tuple[str | None, str | None]] = [
    *((f"Document {i % 13}. It is about item {i % 13}.", f"Item {i}. Sold {i}.") for i in range(60)),
    (None, "Nothing to compare with."),
    ("Document 3. It is about item 3.", " "),
    ("", ""),
    ("Document 4. It is about item 4.", None),
]


class Jobs:
    """Runs and merges in this process: a command of its own would spend its time on imports."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model = model
        self.folder = folder

    def run(self, *inputs: object, output: str = "out.parquet", **options: Any) -> RunReport:
        given = {name.replace("_", "-"): value for name, value in options.items()}
        config = make_config(
            tuple(str(self.folder / str(each)) for each in inputs),
            str(self.folder / output),
            {"engine": "fake", "model": str(self.model), **given},
        )
        return anyio.run(pipeline.run, config)

    def run_shards(self, source: object, count: int, **options: Any) -> None:
        for index in range(1, count + 1):
            self.run(source, shard=f"{index}/{count}", **options)

    def merge(self, *paths: object, **options: Any) -> Totals:
        """The last of `paths` is the output."""
        *given, output = (str(self.folder / str(each)) for each in paths)
        return merge_journals(given, output, options={name.replace("_", "-"): v for name, v in options.items()})

    def refusal(self, *paths: object, **options: Any) -> str:
        """Why `merge` writes nothing."""
        with pytest.raises(UsageError) as caught:
            self.merge(*paths, **options)
        return str(caught.value)

    def journal(self, index: int, count: int) -> Journal:
        """A shard's journal, open and locked."""
        folder = self.folder / folder_of(index, count)
        run = read_run(folder)
        assert run is not None
        return Journal.open(folder, run.identity, run.fold, run.runtime)


def folder_of(index: int, count: int) -> str:
    return f"{JOURNALS}/shard-{index}-of-{count}"


def described(path: Path) -> dict[str, Any]:
    """What an output says of its making, without how long it took."""
    found: dict[str, Any] = json.loads(pq.read_schema(path).metadata[b"batchfact"])
    took = found.pop("throughput")
    assert took["rows"] > 0
    return found


@pytest.fixture
def jobs(fake_model: Path, tmp_path: Path) -> Jobs:
    return Jobs(fake_model, tmp_path)


@pytest.fixture
def finished(jobs: Jobs, make_input: Any) -> Path:
    """The input of two finished shards."""
    source: Path = make_input(PAIRS)
    jobs.run_shards(source, 2)
    return source


@pytest.mark.parametrize("count", [1, 3])
def test_the_merged_shards_equal_a_single_run(jobs: Jobs, make_input: Any, tmp_path: Path, count: int) -> None:
    source = make_input(PAIRS, name="shard-1.parquet", id=list(range(len(PAIRS))))
    single = jobs.run(source, output="single.parquet").totals
    jobs.run_shards(source, count)
    assert not (tmp_path / "out.parquet").exists()
    totals = jobs.merge(JOURNALS, source, "out.parquet")

    merged = pq.read_table(tmp_path / "out.parquet")
    assert merged == pq.read_table(tmp_path / "single.parquet")
    assert merged["id"].to_pylist() == list(range(len(PAIRS)))
    assert described(tmp_path / "out.parquet") == described(tmp_path / "single.parquet")
    assert totals == single


def test_the_commands_of_an_array_go_one_after_the_other(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    source = make_input(PAIRS)
    shard = cli.run(source, "out.parquet", "--shard", "1/1")
    merge = cli("merge", JOURNALS, source, "out.parquet", "--threshold", "0.4")
    refused = cli.run(source, "out.parquet", "--shard", "5/4", code=2)

    assert "shard 1/1 (not written yet)" in shard.stdout
    assert f"rows {len(PAIRS)}" in " ".join(merge.stdout.split())
    assert described(tmp_path / "out.parquet")["fold"]["threshold"] == 0.4
    assert "--shard 5/4: there are the shards 1/4 to 4/4" in refused.stderr


SBATCH = """#!{python}
# Stands in for SLURM's sbatch: runs the job at once, each task of an array after the other.
import os, subprocess, sys
options = dict(word.split("=", 1) for word in sys.argv[1:] if word.startswith("--") and "=" in word)
first, _, last = options.get("--array", "0-0").partition("-")
for task in range(int(first), int(last) + 1):
    job = dict(os.environ, SLURM_ARRAY_TASK_ID=str(task))
    subprocess.run(["/bin/sh", "-c", sys.argv[sys.argv.index("--wrap") + 1]], env=job, check=True)
print(17 if "--parsable" in sys.argv else "Submitted batch job 18", end="")
"""


def test_the_slurm_example_scores_all_shards_and_merges_them(
    jobs: Jobs, fake_model: Path, make_input: Any, tmp_path: Path
) -> None:
    source = make_input(PAIRS, name="in put.parquet")
    jobs.run(source, output="single.parquet")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sbatch").write_text(SBATCH.format(python=sys.executable))
    (programs / "batchfact").write_text(f'#!/bin/sh\nexec {sys.executable} -m batchfact "$@" > /dev/null\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    words = ["bash", str(EXAMPLE), source, "out put.parquet", "--engine", "fake", "--model", str(fake_model)]
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "SHARDS": "2"}
    subprocess.run(words, cwd=tmp_path, env=environment, check=True, timeout=200)

    assert pq.read_table(tmp_path / "out put.parquet") == pq.read_table(tmp_path / "single.parquet")


def test_every_row_is_on_one_shard_and_a_documents_rows_are_together(jobs: Jobs, make_input: Any) -> None:
    jobs.run_shards(make_input(PAIRS), 3)
    homes: dict[str | None, set[int]] = {}
    seen: list[int] = []
    for index in (1, 2, 3):
        with jobs.journal(index, 3) as journal:
            for row, _ in journal.committed():
                seen.append(row)
                homes.setdefault(PAIRS[row][0], set()).add(index)

    assert sorted(seen) == list(range(len(PAIRS)))
    assert all(len(each) == 1 for each in homes.values())
    assert set.union(*homes.values()) == {1, 2, 3}


def test_a_folder_of_files_comes_out_as_one(jobs: Jobs, make_input: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    files = [make_input(PAIRS[:30], name="in/0.parquet"), make_input(PAIRS[30:], name="in/1.parquet")]
    jobs.run("in", output="single")
    for index in (1, 2):
        jobs.run(*files, output="out", shard=f"{index}/2", journal=str(tmp_path / "work"), group="global")
    jobs.merge("work/shard-2-of-2", "work/shard-1-of-2", *files, "out")

    for name in ("0.parquet", "1.parquet"):
        assert pq.read_table(tmp_path / "out" / name) == pq.read_table(tmp_path / "single" / name)


def test_a_killed_shard_goes_on_where_it_was(jobs: Jobs, cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    source = make_input(PAIRS)
    jobs.run(source, output="single.parquet")
    (tmp_path / "small.toml").write_text('part_rows = 3\nshard = "1/2"\n')
    hanging = ["--engine-arg", "hang_after=20", "--engine-arg", "max_num_seqs=1"]
    words = cli.run_args(source, "out.parquet", "--config", "small.toml", *hanging, "--quiet")
    killed = subprocess.Popen(words, cwd=tmp_path)
    wait_for_rows(tmp_path / folder_of(1, 2), 3)
    killed.kill()
    killed.wait()
    jobs.run(source, shard="2/2")
    assert re.search(
        "not all shards are finished: 1/2 lacks \\d+ rows; run", jobs.refusal(JOURNALS, source, "out.parquet")
    )
    again = jobs.run(source, shard="1/2")
    jobs.merge(JOURNALS, source, "out.parquet")

    assert again.progress.num_resumed >= 3
    assert verdicts(tmp_path / "out.parquet") == verdicts(tmp_path / "single.parquet")


def test_a_finished_shard_needs_no_engine(jobs: Jobs, finished: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    report = jobs.run(finished, shard="1/2", engine_arg={"log": str(log)})

    assert not log.exists()
    assert report.progress.num_resumed == report.progress.num_rows == report.totals.rows > 0


def test_another_threshold_folds_the_shards_again_and_they_keep_theirs(
    jobs: Jobs, finished: Path, tmp_path: Path
) -> None:
    jobs.merge(JOURNALS, finished, "out.parquet")
    jobs.merge(JOURNALS, finished, "strict.parquet", threshold=0.9, drop_document=True)
    jobs.run(finished, output="single.parquet", threshold=0.9, drop_document=True)
    jobs.merge(JOURNALS, finished, "out.parquet")

    assert pq.read_table(tmp_path / "strict.parquet") == pq.read_table(tmp_path / "single.parquet")
    assert described(tmp_path / "out.parquet")["fold"]["threshold"] == 0.5


def test_an_array_of_the_first_rows_is_merged_as_such(jobs: Jobs, make_input: Any, tmp_path: Path) -> None:
    source = make_input(PAIRS)
    jobs.run_shards(source, 2, limit=25)
    jobs.merge(JOURNALS, source, "out.parquet")
    assert [row["summary"] for row in rows(tmp_path / "out.parquet")] == [summary for _, summary in PAIRS[:25]]

    jobs.run(source, shard="2/2")
    assert "shard 1/2 was run with --limit 25 and shard 2/2 without" in jobs.refusal(JOURNALS, source, "out.parquet")


def test_rows_of_a_run_with_a_larger_limit_do_not_hide_that_a_shard_lacks_some(jobs: Jobs, make_input: Any) -> None:
    source = make_input(PAIRS)
    jobs.run(source, shard="1/2")
    few = jobs.run(source, shard="1/2", limit=25).totals.rows
    with jobs.journal(1, 2) as journal:
        assert few < 25 <= journal.num_rows
    jobs.run(source, shard="2/2", limit=25)
    with jobs.journal(2, 2) as journal:
        rest = list(journal.outcomes())[:-1]
        (part,) = journal.folder.glob("part-*")
        part.unlink()
    with jobs.journal(2, 2) as journal:
        journal.append(rest)

    assert "not all shards are finished: 2/2 lacks 1 rows" in jobs.refusal(JOURNALS, source, "out.parquet")


def test_many_parts_are_merged_with_few_files_open(jobs: Jobs, finished: Path, tmp_path: Path) -> None:
    """Parts of one append each, as many kills leave them."""
    for index in (1, 2):
        with jobs.journal(index, 2) as journal:
            outcome = next(journal.outcomes())
            for _ in range(130):
                journal.append([outcome])
    jobs.merge(JOURNALS, finished, "out.parquet")

    for index in (1, 2):
        assert len(list((tmp_path / folder_of(index, 2)).glob("part-*.parquet"))) == 1
    assert len(rows(tmp_path / "out.parquet")) == len(PAIRS)


def test_status_tells_of_all_shards(
    jobs: Jobs, make_input: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs.run(make_input(PAIRS), shard="2/3")
    status(str(tmp_path / "out.parquet"), journal=None, as_json=True)
    found = json.loads(capsys.readouterr().out)
    status(str(tmp_path / "out.parquet"), journal=None, as_json=False)
    shown = capsys.readouterr().out

    assert found["missing"] == ["1/3", "3/3"]
    assert found["rows_done"] == found["shards"]["2/3"]["rows_done"] > 0
    assert found["shards"]["2/3"]["state"] == "finished"
    assert "2/3" in shown and "not begun" in shown


# Refused


def test_a_missing_shard_is_named(jobs: Jobs, make_input: Any) -> None:
    source = make_input(PAIRS)
    for shard in ("1/4", "4/4"):
        jobs.run(source, shard=shard)

    assert "shard 2/4, 3/4 of the job array is missing" in jobs.refusal(JOURNALS, source, "out.parquet")


def test_a_doubled_shard_is_refused(jobs: Jobs, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / folder_of(1, 2), tmp_path / "copy")
    told = jobs.refusal(JOURNALS, "copy", finished, "out.parquet")

    assert "shard 1/2 is there twice" in told and "copy" in told


def test_shards_of_two_arrays_are_refused(jobs: Jobs, finished: Path) -> None:
    jobs.run(finished, shard="3/3")

    assert "of two job arrays" in jobs.refusal(JOURNALS, finished, "out.parquet")


def test_journals_of_two_runs_are_refused_with_the_difference(jobs: Jobs, make_input: Any) -> None:
    source = make_input(PAIRS)
    jobs.run(source, shard="1/2")
    jobs.run(source, shard="2/2", window_sentences=2)

    assert "window_sentences: 1 -> 2" in jobs.refusal(JOURNALS, source, "out.parquet")


def test_another_input_is_refused(jobs: Jobs, finished: Path, make_input: Any) -> None:
    make_input(PAIRS[::-1])
    told = jobs.refusal(JOURNALS, finished, "out.parquet")

    assert "another input" in told and "footer" in told


def test_shards_that_are_folded_in_two_ways_need_to_be_told_which(jobs: Jobs, make_input: Any, tmp_path: Path) -> None:
    source = make_input(PAIRS)
    jobs.run(source, shard="1/2")
    jobs.run(source, shard="2/2", threshold=0.3)
    assert "threshold: 0.5 -> 0.3; give them here" in jobs.refusal(JOURNALS, source, "out.parquet")

    jobs.merge(JOURNALS, source, "out.parquet", threshold=0.3)
    assert described(tmp_path / "out.parquet")["fold"]["threshold"] == 0.3


def test_a_row_on_two_shards_is_refused(jobs: Jobs, finished: Path, tmp_path: Path) -> None:
    """As after an edit of a document in place, which moves it to another shard."""
    with jobs.journal(1, 2) as one, jobs.journal(2, 2) as other:
        stray = next(one.outcomes())
        other.append([msgspec.structs.replace(stray, text_hash=1)])
    with pytest.raises(RunFailedError, match=f"row {stray.row} is on two shards, 1/2 and 2/2:"):
        jobs.merge(JOURNALS, finished, "out.parquet")

    assert not (tmp_path / "out.parquet").exists()


def test_a_shard_that_goes_on_is_not_merged(jobs: Jobs, finished: Path) -> None:
    with jobs.journal(2, 2):
        assert "another process is working on" in jobs.refusal(JOURNALS, finished, "out.parquet")


def test_a_journal_does_not_go_on_as_another_shard(jobs: Jobs, finished: Path, tmp_path: Path) -> None:
    (tmp_path / folder_of(1, 2)).rename(tmp_path / folder_of(1, 3))
    with pytest.raises(UsageError, match='shard: "1/2" -> "1/3"'):
        jobs.run(finished, shard="1/3")


def test_an_output_of_someone_else_is_not_written_over(jobs: Jobs, finished: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "mine.parquet")

    assert "exists already" in jobs.refusal(JOURNALS, finished, "mine.parquet")
    assert pq.read_table(tmp_path / "mine.parquet").num_rows == 1


def test_what_is_no_shard_is_refused_with_the_way_out(jobs: Jobs, finished: Path, tmp_path: Path) -> None:
    jobs.run(finished, output="whole.parquet")

    assert "batchfact reduce" in jobs.refusal("whole.parquet.journal", finished, "out.parquet")
    assert "there is no journal in" in jobs.refusal("gone.journal", finished, "out.parquet")
    assert "is a journal; merge takes JOURNAL... INPUT... OUTPUT" in jobs.refusal(finished, "out.parquet")
    assert "no input was given" in jobs.refusal(JOURNALS, "out.parquet")
    with pytest.raises(UsageError, match="batchfact merge"):
        reduce_journal("out.parquet", to=None, inputs=(), journal=str(tmp_path / folder_of(1, 2)), options={})


def test_rows_left_by_early_exit_are_not_folded_in_another_way(jobs: Jobs, make_input: Any, tmp_path: Path) -> None:
    source = make_input(PAIRS)
    jobs.run_shards(source, 2, early_exit=True)
    assert "upper bounds" in jobs.refusal(JOURNALS, source, "out.parquet", threshold=0.2)

    jobs.merge(JOURNALS, source, "out.parquet")
    assert described(tmp_path / "out.parquet")["early_exit"] is True
