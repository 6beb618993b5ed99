"""`batchfact status` beside a run, and after it was killed, went on and ended."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from batchfact.run_log import read_log
from tests.pipeline.command_line import PAIRS, CommandLine


def status(cli: CommandLine, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cli("status", "out.parquet", "--json", *words).stdout)
    return found


def wait_for_rows(journal: Path, rows: int) -> None:
    """Polls the log that another process writes: there is nothing to be told by."""
    for _ in range(2400):
        if sum(event.rows or 0 for event in read_log(journal) if event.event == "committed") >= rows:
            return
        time.sleep(0.05)
    raise AssertionError(f"{journal} never got {rows} rows")


def test_a_job_is_told_running_then_killed_then_finished(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    source = make_input(PAIRS)
    (tmp_path / "small.toml").write_text("part_rows = 5\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [source, "out.parquet", "--config", "small.toml", "--metrics-port", port, "--quiet"]
    hanging = ["hang_after=36", "max_num_seqs=1"]  # 18 rows are answered, and committed
    args = cli.run_args(*words, *(word for arg in hanging for word in ("--engine-arg", arg)))
    first = subprocess.Popen(args, cwd=tmp_path)
    try:
        wait_for_rows(tmp_path / "out.parquet.journal", 18)
        running = status(cli)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            metrics = answer.read().decode()
        plain = cli("status", "out.parquet").stdout
    finally:
        first.kill()
        first.wait()
    killed = status(cli)
    cli.run(source, "out.parquet", "--config", "small.toml")
    finished = status(cli)

    assert (running["state"], running["phase"], running["rows"]) == ("running", "scoring", 40)
    assert running["rows_done"] == running["statuses"]["ok"] == 18
    assert 'batchfact_rows_committed_total{status="ok"} 18.0' in metrics
    assert "running (scoring)" in plain
    assert (killed["state"], killed["rows_done"]) == ("killed", 18)
    assert (finished["state"], finished["rows_done"], finished["runs"], finished["exit_code"]) == ("finished", 40, 2, 0)
    assert finished["statuses"] == {"ok": 40}


def test_without_a_journal_status_is_a_usage_error(cli: CommandLine) -> None:
    assert "no journal" in cli("status", "out.parquet", code=2).stderr
