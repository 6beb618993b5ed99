"""What a user sees of an engine's faults: exit code, closing table, output, log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from batchfact.run_log import read_log
from tests.pipeline.command_line import PAIRS, CommandLine, rows, verdicts


def faults(**named: object) -> list[str]:
    return [word for name, value in named.items() for word in ("--engine-arg", f"{name}={value}")]


def test_an_engine_that_dies_is_started_again_and_everything_says_so(
    cli: CommandLine, make_input: Any, tmp_path: Path
) -> None:
    source = make_input(PAIRS)
    done = cli.run(source, "out.parquet", *faults(die_after=30, die_times=1))
    cli.run(source, "whole.parquet")

    assert verdicts(tmp_path / "out.parquet") == verdicts(tmp_path / "whole.parquet")
    assert "warning: the engine died (as it was told); it is started again (1 of 10)" in done.stderr
    assert "engine started again" in done.stdout
    metadata = json.loads(pq.read_schema(tmp_path / "out.parquet").metadata[b"batchfact"])
    assert metadata["incidents"] == {"engine_restarts": 1, "requests_given_up": 0}
    events = [event.event for event in read_log(tmp_path / "out.parquet.journal")]
    assert events[0] == "run_started"
    assert "engine_ended" in events
    assert "committed" in events
    assert events[-1] == "run_ended"


def test_a_request_that_ends_the_engine_twice_is_an_engine_error_and_the_rest_is_scored(
    cli: CommandLine, make_input: Any, tmp_path: Path
) -> None:
    source = make_input(PAIRS)
    (tmp_path / "options.toml").write_text("stall_seconds = 0.2\n")
    lenient = ["--config", "options.toml", "--threshold", "0.01"]
    done = cli.run(source, "out.parquet", *lenient, *faults(hang_text="Statement:\nItem 7."))

    found = rows(tmp_path / "out.parquet")
    assert [row["summary"] for row in found if row["batchfact_status"] != "ok"] == ["Item 7. Sold 7."]
    assert [each["status"] for each in found[7]["batchfact_findings"]] == ["engine_error", "ok"]
    assert "gave no answer" in done.stderr
    assert "requests that ended the engine" in done.stdout

    cli.run(source, "out.parquet", *lenient, "--retry-status", "incomplete")
    assert all(row["batchfact_status"] == "ok" for row in rows(tmp_path / "out.parquet"))


def test_an_engine_that_stays_broken_ends_the_run_with_exit_1_and_the_same_command_goes_on(
    cli: CommandLine, make_input: Any, tmp_path: Path
) -> None:
    source = make_input(PAIRS)
    (tmp_path / "options.toml").write_text("max_restarts = 3\npart_rows = 5\n")
    words = [source, "out.parquet", "--config", "options.toml"]
    done = cli.run(*words, *faults(die_after=40, max_num_seqs=2), code=1)

    assert "given up after 3 restarts" in done.stderr
    assert "run the same command again" in done.stderr
    *_, ended = read_log(tmp_path / "out.parquet.journal")
    assert (ended.event, ended.exit_code) == ("run_ended", 1)
    assert ended.committed >= 5

    cli.run(*words)
    cli.run(source, "whole.parquet")
    assert verdicts(tmp_path / "out.parquet") == verdicts(tmp_path / "whole.parquet")
