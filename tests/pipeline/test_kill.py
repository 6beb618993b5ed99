"""Killed anywhere, stopped by anything, changed behind its back: a run goes on and ends with what it would have had."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.pipeline.command_line import PAIRS, CommandLine, verdicts

KILLING = Path(__file__).with_name("killing.py")
MANY = [(f"Document {i // 3}. It is about item {i // 3}.", f"Item {i}. Sold {i}.") for i in range(480)]


def killed(cli: CommandLine, moment: str, count: float, *words: object) -> None:
    """Run until the moment's kill; a run that ends in any other way fails the test."""
    command = [sys.executable, str(KILLING), moment, str(count), *cli.run_args(*words)[3:]]
    done = subprocess.run(command, cwd=cli.folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, (moment, count, done.returncode, done.stdout, done.stderr)


def num_requests(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_a_run_killed_again_and_again_ends_like_one_that_never_was(
    cli: CommandLine, make_input: Any, tmp_path: Path
) -> None:
    """Scoring, a part's writing, compaction and merge are each killed midway, at moments drawn with a seed."""
    draw = random.Random(20240607)
    source = make_input(MANY, id=range(len(MANY)))
    # Texts do not fit the look-ahead, so every killed run leaves spill files too.
    (tmp_path / "small.toml").write_text("part_rows = 8\npart_seconds = 0.2\nlook_ahead_bytes = 2000\n")
    words = [source, "out.parquet", "--config", "small.toml"]
    slow = [f"log={tmp_path / 'requests.log'}", "latency_s=0.02", "max_num_seqs=8"]
    slow = [word for arg in slow for word in ("--engine-arg", arg)]
    moments = [
        ("request", draw.randint(20, 120)),
        ("seconds", draw.uniform(0.05, 0.5)),
        ("part is begun", draw.randint(1, 3)),
        ("part is half written", draw.randint(1, 3)),
        ("part is written", draw.randint(1, 3)),
        ("compaction is begun", 1),
        ("compacted part is written", 1),
        ("compacted parts are deleted", draw.randint(1, 8)),
        ("seconds", draw.uniform(0.05, 0.5)),
    ]
    draw.shuffle(moments)
    for moment, count in moments:
        killed(cli, moment, count, *words, *slow)
        assert not (tmp_path / "out.parquet").exists()
    for moment in ("output is half written", "output is written"):
        killed(cli, moment, 1, *words)
        assert not (tmp_path / "out.parquet").exists()
    asked_again = tmp_path / "after.log"
    cli.run(*words, "--engine-arg", f"log={asked_again}")
    cli.run(source, "whole.parquet")

    assert num_requests(asked_again) == 0
    assert pq.read_table(tmp_path / "out.parquet") == pq.read_table(tmp_path / "whole.parquet")
    assert pq.read_table(tmp_path / "out.parquet")["id"].to_pylist() == list(range(len(MANY)))
    names = [path.name for folder in (tmp_path, tmp_path / "out.parquet.journal") for path in folder.iterdir()]
    assert not [name for name in names if name.endswith((".tmp", ".old", ".corrupt")) or "spill" in name]


def test_a_second_process_on_one_output_is_refused_and_the_folder_named(
    cli: CommandLine, make_input: Any, tmp_path: Path
) -> None:
    source = make_input(PAIRS[:4])
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    endless = ["--engine-arg", f"log={pipe}", "--engine-arg", "latency_s=3600", "--quiet"]
    first = subprocess.Popen(cli.run_args(source, "out.parquet", *endless), cwd=tmp_path)
    try:
        with pipe.open() as log:
            assert log.readline()  # it waits for the first request
            done = cli.run(source, "out.parquet", code=2)
    finally:
        first.kill()
        first.wait()

    assert "another process is working on" in done.stderr
    assert "out.parquet.journal" in done.stderr
    cli.run(source, "out.parquet")


def test_rows_of_a_part_that_was_cut_are_asked_again(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text("part_rows = 10\n")
    words = [make_input(PAIRS), "out.parquet", "--config", "small.toml", "--engine-arg", "max_num_seqs=4"]
    cli.run(*words)
    before = verdicts(tmp_path / "out.parquet")
    part = min((tmp_path / "out.parquet.journal").glob("part-*.parquet"))
    cut_rows = pq.read_metadata(part).num_rows
    part.write_bytes(part.read_bytes()[:-50])
    (tmp_path / "out.parquet").unlink()
    log = tmp_path / "log"
    done = cli.run(*words, "--engine-arg", f"log={log}")

    assert f"{part.name} is damaged" in done.stderr
    assert num_requests(log) == 2 * cut_rows
    assert verdicts(tmp_path / "out.parquet") == before


def test_an_input_with_its_rows_in_another_order_is_refused(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    cli.run(make_input(PAIRS), "out.parquet")
    done = cli.run(make_input(PAIRS[::-1]), "out.parquet", code=2)

    assert re.search(r'input\.in\.parquet\.footer: "\w+" -> "\w+"', done.stderr)
    assert "--restart" in done.stderr


def test_an_input_with_a_shard_more_is_refused(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    make_input(PAIRS[:4], name="shards/0.parquet")
    make_input(PAIRS[4:8], name="shards/1.parquet")
    cli.run("shards", "out")
    make_input(PAIRS[8:12], name="shards/2.parquet")
    done = cli.run("shards", "out", code=2)

    assert re.search(r'input\.2\.parquet: null -> {.*"rows": 4', done.stderr)


def test_a_text_edited_in_place_under_the_same_footer_is_asked_again(cli: CommandLine, tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    documents, summaries = zip(*PAIRS, strict=True)
    pq.write_table(
        pa.table({"document": documents, "summary": summaries}),
        source,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=False,
    )
    cli.run(source, "out.parquet")
    content = source.read_bytes()
    assert content.count(b"Item 17. Sold 17.") == 1
    source.write_bytes(content.replace(b"Item 17. Sold 17.", b"Item 17. Lost 17."))
    log = tmp_path / "log"
    cli.run(source, "out.parquet", "--engine-arg", f"log={log}")
    cli.run(source, "fresh.parquet")

    assert num_requests(log) == 2, "the two windows of that row, and nothing of the others"
    assert verdicts(tmp_path / "out.parquet") == verdicts(tmp_path / "fresh.parquet")
    assert verdicts(tmp_path / "out.parquet")[17][0] == "Item 17. Lost 17."
