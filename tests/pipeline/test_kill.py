"""An input, an output or a journal that changes between two runs; `test_crashes.py` has the kills."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.pipeline.command_line import PAIRS, CommandLine, verdicts


def num_requests(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


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
