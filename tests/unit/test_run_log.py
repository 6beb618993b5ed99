from __future__ import annotations

import json
from pathlib import Path

import pytest

from batchfact.run_log import NAME, RunLog, Throughput, incidents, is_held, read_log, throughput


def names(folder: Path) -> list[str]:
    return [event.event for event in read_log(folder)]


def test_events_come_back_with_time_and_facts(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.write("committed", rows=3, statuses={"ok": 3}, place=Path("a"))
    log.close()
    (event,) = read_log(tmp_path)

    assert (event.event, event.rows, event.statuses) == ("committed", 3, {"ok": 3})
    assert event.elapsed_s >= 0
    assert event.time.endswith("+00:00")
    assert json.loads((tmp_path / NAME).read_bytes())["place"] == "a"


def test_a_later_run_goes_on_in_the_same_log(tmp_path: Path) -> None:
    for name in ("first", "second"):
        log = RunLog(tmp_path)
        log.write(name)
        log.close()

    assert names(tmp_path) == ["first", "second"]


def test_a_line_that_a_kill_cut_is_left_out_and_costs_no_other(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b'{"event": "whole"}\n{"event": "cu')
    log = RunLog(tmp_path)
    log.write("next")
    log.close()

    assert names(tmp_path) == ["whole", "next"]


@pytest.mark.parametrize(
    "line", [b"\xff\xfe\n", b"[1]\n", b"{}\n", b'{"event": 3}\n', b"\n", b'{"event": "a", "rows": -1}\n']
)
def test_a_line_that_is_no_event_is_left_out(tmp_path: Path, line: bytes) -> None:
    (tmp_path / NAME).write_bytes(line + b'{"event": "good"}\n')

    assert names(tmp_path) == ["good"]


def test_without_a_log_there_are_no_events_and_nothing_is_held(tmp_path: Path) -> None:
    assert names(tmp_path) == []
    assert is_held(tmp_path) is False
    assert incidents(tmp_path) == {"engine_restarts": 0, "requests_given_up": 0}


def test_it_is_held_while_it_is_open(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    assert is_held(tmp_path) is True
    log.close()
    assert is_held(tmp_path) is False


def test_a_full_disk_costs_the_log_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / NAME).symlink_to("/dev/full")  # it takes no byte
    log = RunLog(tmp_path)
    log.write("lost")
    log.write("lost too")

    assert "No space left" in str(log.fault)


def test_a_log_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    log = RunLog(tmp_path)
    log.write("lost")

    assert log.fault is not None
    assert "directory" in log.fault


def test_every_line_is_one_json_object(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.write("warning", message="two\nlines and a \u2028 separator")
    log.close()
    (line,) = (tmp_path / NAME).read_bytes().splitlines()

    assert json.loads(line)["message"].startswith("two\n")


def write_events(folder: Path, *events: tuple[str, dict[str, float]]) -> None:
    lines = [json.dumps({"event": event, **facts}) for event, facts in events]
    (folder / NAME).write_text("\n".join(lines) + "\n")


def test_throughput_is_summed_over_runs_each_up_to_its_last_commit(tmp_path: Path) -> None:
    tokens = {"prompt_tokens": 100, "cached_tokens": 40, "output_tokens": 2}
    write_events(
        tmp_path,
        ("run_started", {"rows": 30}),
        ("committed", {"rows": 10, "committed": 10, "scoring_s": 2, "elapsed_s": 12, "prompt_tokens": 50}),
        ("committed", {"rows": 10, "committed": 20, "scoring_s": 4, "elapsed_s": 14, **tokens}),
        ("run_started", {"rows": 30}),  # the first was killed here, whenever that was
        ("committed", {"rows": 10, "committed": 10, "scoring_s": 1, "elapsed_s": 21, **tokens}),
        ("run_ended", {"committed": 10, "scoring_s": 1, "elapsed_s": 99}),
        ("run_started", {"rows": 30}),  # it only wrote the output again
        ("run_ended", {"committed": 0, "elapsed_s": 3}),
        ("run_started", {"rows": 30}),  # it had rows that need no model
        ("committed", {"rows": 5, "committed": 5, "elapsed_s": 3}),
    )

    assert throughput(tmp_path) == Throughput(
        runs=2,
        rows=30,
        duration_s=35,
        scoring_s=5,
        pairs_per_s=6,
        prompt_tokens=200,
        cached_tokens=80,
        output_tokens=4,
    )


def test_without_a_run_that_scored_there_is_no_throughput(tmp_path: Path) -> None:
    assert throughput(tmp_path) is None
    write_events(tmp_path, ("run_started", {"rows": 3}), ("run_ended", {}))
    assert throughput(tmp_path) is None
