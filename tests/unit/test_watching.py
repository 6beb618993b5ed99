from __future__ import annotations

from pathlib import Path

import pytest

from batchfact.cli.status import _rows_done
from batchfact.errors import UsageError
from batchfact.journal import Journal
from batchfact.records import Outcome
from batchfact.run_log import Event
from batchfact.watching import JobStatus, array_status, count_rows, job_status, summarise


def started(rows: int = 100) -> Event:
    return Event(event="run_started", time="t0", rows=rows)


def committed(elapsed_s: float, total: int, **statuses: int) -> Event:
    return Event(
        event="committed",
        elapsed_s=elapsed_s,
        committed=total,
        statuses=statuses,
        labels={"consistent": total},
        scoring_s=elapsed_s / 2,
    )


def ended(code: int, message: str = "") -> Event:
    return Event(event="run_ended", exit_code=code, message=message)


def summary(events: list[Event], *, rows_done: int = 0, is_going_on: bool | None = False) -> JobStatus:
    return summarise(events, journal="j", output="o", rows_done=rows_done, is_going_on=is_going_on)


def test_a_running_job_has_rate_and_time_left() -> None:
    events = [started(), Event(event="phase", phase="scoring"), committed(10, 20, ok=20), committed(20, 40, ok=40)]
    found = summary(events, rows_done=40, is_going_on=True)

    assert (found.state, found.phase, found.rows, found.rows_done) == ("running", "scoring", 100, 40)
    assert found.rows_per_s == 2
    assert found.eta_s == 30


def test_the_rate_is_that_of_the_last_minutes() -> None:
    events = [
        started(10_000),
        committed(10, 5000, ok=5000),
        committed(2000, 5100, ok=5100),
        committed(2010, 5110, ok=5110),
    ]

    assert summary(events, is_going_on=True).rows_per_s == 1


def test_a_single_commit_gives_the_rate_since_the_engine_was_ready() -> None:
    assert summary([started(), committed(10, 20, ok=20)], is_going_on=True).rows_per_s == 4


@pytest.mark.parametrize(
    ("last", "is_going_on", "state"),
    [
        (ended(0), False, "finished"),
        (ended(130), False, "stopped"),
        (ended(1, "the disk is full"), False, "failed"),
        (ended(3, "too many"), False, "failed"),
        (committed(1, 1, ok=1), False, "killed"),
        (committed(1, 1, ok=1), None, "unknown"),
        (committed(1, 1, ok=1), True, "running"),
    ],
)
def test_the_last_event_and_the_lock_tell_the_state(last: Event, is_going_on: bool | None, state: str) -> None:
    found = summary([started(), last], is_going_on=is_going_on)

    assert found.state == state
    assert found.eta_s is None or state == "running"
    assert found.message == (last.message or None)


def test_counts_are_those_of_all_runs() -> None:
    restart = Event(event="engine_restarting")
    events = [started(), committed(1, 2, ok=2), committed(2, 5, ok=4, refused=1), restart]
    events += [started(), restart, committed(1, 3, ok=3), Event(event="warning", message="careful")]
    found = summary(events)

    assert found.statuses == {"ok": 7, "refused": 1}
    assert found.labels == {"consistent": 8}
    assert (found.runs, found.engine_restarts, found.warnings) == (2, 2, ("careful",))


def test_no_worker_is_up_once_its_run_has_ended() -> None:
    events = [started(), Event(event="engine_ready", worker=0, host="a"), ended(130)]

    assert [worker.is_up for worker in summary(events[:2], is_going_on=True).workers] == [True]
    assert [worker.is_up for worker in summary(events).workers] == [False]
    assert [worker.is_up for worker in summary(events[:2]).workers] == [False], "killed"


def test_a_finished_shard_has_as_many_rows_as_it_has_done_whatever_was_estimated() -> None:
    facts = {"journal": "j", "shard": "1/2", "output": "o", "rows_done": 53}
    running = summarise([started(50)], is_going_on=True, **facts)  # type: ignore[arg-type]  # of several types
    finished = summarise([started(50), ended(0)], is_going_on=False, **facts)  # type: ignore[arg-type]

    assert (running.rows, finished.rows) == (50, 53)
    assert (_rows_done(running), _rows_done(finished)) == ("53 of about 50", "53")


def test_rows_beyond_the_limit_of_the_last_run_do_not_count(tmp_path: Path) -> None:
    with Journal.open(tmp_path, {}, {}, {"limit": 4}) as journal:
        journal.append([Outcome(row=row, text_hash=row) for row in range(10)])

    assert job_status(tmp_path).rows_done == 4


def test_a_folder_that_is_only_named_as_a_shard_is_none(tmp_path: Path) -> None:
    Journal.open(tmp_path / "shard-1-of-2", {}, {}, {}).close()

    assert array_status(tmp_path) is None


def test_a_folder_without_a_journal_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no journal"):
        job_status(tmp_path)


def test_rows_are_counted_once_and_beside_an_open_journal(tmp_path: Path) -> None:
    with Journal.open(tmp_path, {}, {}, {"output": "out"}) as journal:
        journal.append([Outcome(row=row, text_hash=row) for row in range(5)])
        journal.append([Outcome(row=row, text_hash=row) for row in range(3, 8)])

        assert count_rows(tmp_path) == (8, ())
        assert job_status(tmp_path).rows_done == 8


def test_a_damaged_part_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    with Journal.open(tmp_path, {}, {}, {}) as journal:
        journal.append([Outcome(row=row, text_hash=row) for row in range(5)])
    (part,) = tmp_path.glob("part-*.parquet")
    part.write_bytes(part.read_bytes()[:-20])
    found = job_status(tmp_path)

    assert found.rows_done == 0
    assert part.name in found.warnings[0]
    assert part.exists()
