"""How far a job is, from its journal alone: of a run that goes on, or of one that has ended in whatever way.

A journal's folder flows in, a `JobStatus` flows out. Nothing is locked or changed, so a run is never disturbed, and it
may be on another machine that shares the file system.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa
from msgspec import Struct

from batchfact.errors import RunFailedError, UsageError
from batchfact.journal_merging import merge_parts
from batchfact.journal_parts import Part, list_parts, open_batches
from batchfact.run_file import read_run
from batchfact.run_log import Event, is_held, read_log
from batchfact.sharding import JobShard, parse_shard, shard_folders

State = Literal["running", "finished", "stopped", "failed", "killed", "unknown"]

RATE_S = 600.0
"""The rate is that of the last so many seconds in which rows were committed."""
TRIES = 5
"""A run that goes on may delete parts that it has just compacted; the listing is then made again."""
MAX_MESSAGES = 5


class WorkerStatus(Struct, frozen=True, kw_only=True):
    """One worker of the last run: rows as they were last told, at most a minute ago."""

    worker: int
    host: str
    is_up: bool
    rows: int
    restarts: int


class JobStatus(Struct, frozen=True, kw_only=True):
    """A job's state; rows are those of the whole job, over all its runs. None is what the log does not tell.

    Of a job shard, `rows` is an estimate until it is finished.
    """

    journal: str
    shard: str | None = None
    output: str | None
    state: State
    phase: str | None = None
    rows: int | None = None
    rows_done: int
    rows_per_s: float | None = None
    eta_s: float | None = None
    statuses: dict[str, int] = {}
    """Rows committed by status, as they were counted when committed; a row that was asked again counts again."""
    labels: dict[str, int] = {}
    engine_restarts: int = 0
    requests_given_up: int = 0
    runs: int = 0
    started: str | None = None
    updated: str | None = None
    exit_code: int | None = None
    message: str | None = None
    warnings: tuple[str, ...] = ()
    workers: tuple[WorkerStatus, ...] = ()


def job_status(folder: Path) -> JobStatus:
    """Raises: UsageError where there is no journal."""
    kept = read_run(folder)
    if kept is None:
        raise UsageError(f"there is no journal in {folder}; batchfact run makes it, --journal names another folder")
    rows_done, damage = count_rows(folder, kept.runtime.get("limit"))
    output = kept.runtime.get("output")
    return summarise(
        read_log(folder),
        journal=str(folder),
        shard=kept.identity.get("shard"),
        output=output if isinstance(output, str) else None,
        rows_done=rows_done,
        is_going_on=is_held(folder),
        damage=damage,
    )


class ArrayStatus(Struct, frozen=True, kw_only=True):
    """A job array's state. A shard's number of rows is an estimate until it is finished."""

    journal: str
    rows_done: int
    rows_per_s: float | None
    shards: dict[str, JobStatus]
    missing: tuple[str, ...]
    """Shards that have not begun."""


def array_status(folder: Path) -> ArrayStatus | None:
    """The state of the job array whose journals lie in the folder; None where there are none.

    Raises: UsageError where they are of arrays of different size.
    """
    shards = {}
    for each in shard_folders(folder):
        kept = read_run(each)
        if kept is not None and "shard" in kept.identity:
            shards[parse_shard(kept.identity["shard"])] = job_status(each)
    if not shards:
        return None
    counts = {shard.count for shard in shards}
    if len(counts) > 1:
        raise UsageError(
            f"{folder} holds shards of arrays of {' and '.join(map(str, sorted(counts)))}; name one of them"
        )
    there = {shard.index for shard in shards}
    (count,) = counts
    rates = [status.rows_per_s for status in shards.values() if status.state == "running" and status.rows_per_s]
    return ArrayStatus(
        journal=str(folder),
        rows_done=sum(status.rows_done for status in shards.values()),
        rows_per_s=sum(rates) if rates else None,
        shards={str(shard): status for shard, status in shards.items()},
        missing=tuple(str(JobShard(index, count)) for index in range(1, count + 1) if index not in there),
    )


def summarise(
    events: Iterable[Event],
    *,
    journal: str,
    shard: str | None = None,
    output: str | None,
    rows_done: int,
    is_going_on: bool | None,
    damage: tuple[str, ...] = (),
) -> JobStatus:
    """What the events of all runs say, the last run's above all.

    Args:
        rows_done: rows in the journal's parts.
        is_going_on: whether a run holds the journal; None where that is not known.
        damage: what is wrong with parts, to be told with the warnings.
    """
    statuses: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    incidents: Counter[str] = Counter()
    run = _Run()
    num_runs = 0
    updated = None
    for event in events:
        incidents[event.event] += 1
        updated = event.time or updated
        if event.event == "run_started":
            statuses.update(run.latest.statuses)
            labels.update(run.latest.labels)
            run = _Run()
            num_runs += 1
        run.take(event)
    statuses.update(run.latest.statuses)
    labels.update(run.latest.labels)
    rate = run.rate()
    state = _state(run, is_going_on=is_going_on)
    rows = rows_done if shard is not None and state == "finished" else run.started.rows
    return JobStatus(
        journal=journal,
        shard=shard,
        output=output,
        state=state,
        phase=run.phase if state == "running" else None,
        rows=rows,
        rows_done=rows_done,
        rows_per_s=rate,
        eta_s=max(0, rows - rows_done) / rate if state == "running" and rows is not None and rate else None,
        statuses=dict(statuses),
        labels=dict(labels),
        engine_restarts=incidents["engine_restarting"],
        requests_given_up=incidents["request_given_up"],
        runs=num_runs,
        started=run.started.time,
        updated=updated,
        exit_code=run.ended.exit_code,
        message=run.ended.message or None,
        warnings=(*damage, *run.warnings[-MAX_MESSAGES:]),
        workers=tuple(
            msgspec.structs.replace(worker, is_up=worker.is_up and state in ("running", "unknown"))
            for _, worker in sorted(run.workers.items())
        ),
    )


class _Run:
    """What the events of one run come to."""

    def __init__(self) -> None:
        self.started = self.ended = self.latest = Event(event="none")
        self.phase: str | None = None
        self.warnings: list[str] = []
        self.workers: dict[int, WorkerStatus] = {}
        self._commits: list[tuple[float, int]] = []

    def take(self, event: Event) -> None:
        match event.event:
            case "run_started":
                self.started = event
            case "run_ended":
                self.ended = self.latest = event
            case "phase":
                self.phase = event.phase
            case "warning":
                self.warnings.append(event.message or "")
            case "committed":
                self.latest = event
                self._commits.append((event.elapsed_s, event.committed))

        self._take_worker(event)

    def _take_worker(self, event: Event) -> None:
        """What an event says of a cluster's workers."""
        for number, rows in event.worker_rows.items():
            self._note_worker(int(number), rows=rows)
        if event.worker is None:
            return
        if event.event == "engine_ready":
            self._note_worker(event.worker, host=event.host or "", is_up=True)
        elif event.event == "engine_ended":
            self._note_worker(event.worker, is_up=False)
        elif event.event == "engine_restarting":
            known = self.workers.get(event.worker)
            self._note_worker(event.worker, restarts=known.restarts + 1 if known else 1)

    def _note_worker(self, number: int, **facts: Any) -> None:
        known = self.workers.get(number, WorkerStatus(worker=number, host="", is_up=False, rows=0, restarts=0))
        self.workers[number] = msgspec.structs.replace(known, **facts)

    def rate(self) -> float | None:
        """Rows a second over the last commits; over all of the scoring where there are not two of them."""
        if not self._commits:
            return None
        last_s, last_rows = self._commits[-1]
        first_s, first_rows = next(each for each in self._commits if each[0] >= last_s - RATE_S)
        if last_s > first_s:
            return (last_rows - first_rows) / (last_s - first_s)
        return last_rows / self.latest.scoring_s if self.latest.scoring_s > 0 else None


def _state(run: _Run, *, is_going_on: bool | None) -> State:
    if is_going_on:
        return "running"
    code = run.ended.exit_code
    if code is None:
        return "unknown" if is_going_on is None or run.started.event != "run_started" else "killed"
    return {0: "finished", 130: "stopped"}.get(code, "failed")  # type: ignore[return-value]  # both are States


def count_rows(folder: Path, limit: int | None = None) -> tuple[int, tuple[str, ...]]:
    """Rows in the journal's whole parts, each once, and what is wrong with the others.

    Args:
        limit: only the first so many rows of the input; an earlier run may have scored more.
    Raises: RunFailedError where a part that could be opened cannot be read.
    """
    for _ in range(TRIES - 1):
        try:
            return _count_rows(list_parts(folder), limit)
        except (FileNotFoundError, RunFailedError):  # the latter where another machine has deleted an open file
            continue
    return _count_rows(list_parts(folder), limit)


def _count_rows(parts: list[Part], limit: int | None) -> tuple[int, tuple[str, ...]]:
    opened, damage = [], []
    for part in parts:
        try:
            opened += open_batches([part], ["row"])
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            damage.append(
                f"{part.path.name} cannot be read ({str(error).splitlines()[0]}); its rows will be done again"
            )
    rows = (batch.column(0).to_numpy() for batch in merge_parts(opened))
    return sum(len(each) if limit is None else int((each < limit).sum()) for each in rows), tuple(damage)
