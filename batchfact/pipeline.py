"""Joins the stages: source and grouping, scheduler and engine, journal, merge.

Opens the streams and the task group of a run. Parquet and the journal are read and written in worker threads; every
stream between two stages has a small buffer, so that a stalled stage stops the one before it.
"""

from __future__ import annotations

import itertools
import os
import platform
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec import Struct

from batchfact import __version__, preparation
from batchfact.committing import Committer
from batchfact.config import RunConfig
from batchfact.errors import TooManyUnscoredError, root_cause
from batchfact.executors import local
from batchfact.executors.local import Item
from batchfact.grouping import group_pairs
from batchfact.journal import Journal, pending
from batchfact.lending import EngineSource
from batchfact.metrics import served
from batchfact.paradigms.fold import fold_outcome
from batchfact.preparation import Prepared
from batchfact.progress import Progress, forget
from batchfact.records import Outcome, Pair, Rejected, Unscored
from batchfact.run_log import RunLog
from batchfact.sink import Totals, merge, tally
from batchfact.stopping import InterruptedRunError, Stopping
from batchfact.supervision import supervised

STREAM_BUFFER = 8
GROUPS_A_HOP = 16
"""Groups fetched in one visit to the worker thread: a thread hop costs more than making a small group."""
EARLY_STOP_ROWS = 1000
"""Rows that a model was asked about after which --max-unscored may end a run before its end; rows that need no model
come out first, so they would mislead."""

Executor = Callable[
    [Prepared, MemoryObjectReceiveStream[Item], MemoryObjectSendStream[Outcome], Progress], Coroutine[Any, Any, None]
]
"""Takes items, gives an outcome for each row, and closes both streams."""


class RunReport(Struct, frozen=True, kw_only=True):
    """What a finished run did: totals over all rows of the output, and this run's own counters."""

    config: RunConfig
    totals: Totals
    progress: Progress
    journal: Path


async def run(
    config: RunConfig, *, watch: Callable[[Progress], None] = lambda _: None, engines: EngineSource = supervised
) -> RunReport:
    """Score every row of the inputs and write the output; one shard of a job array only fills its journal.

    Args:
        watch: called once with the run's counters, before any work; a display reads them from then on.
        engines: where the engine comes from, once a row needs it.

    Raises:
        UsageError: before any model loads.
        RunFailedError: the engine or the disk gave up; committed rows stay in the journal.
        TooManyUnscoredError: more rows are unscored than --max-unscored; the output is written if all rows are in.
        InterruptedRunError: a first Ctrl-C; finished rows are committed.
    """
    prepared = await anyio.to_thread.run_sync(preparation.prepare, config)
    progress = Progress(prepared.num_rows)
    watch(progress)
    stopping = Stopping()
    runtime = config.runtime
    with (
        served(progress, runtime.metrics_host, runtime.metrics_port),
        preparation.open_journal(prepared) as journal,
        _recorded(prepared, progress),
    ):
        for warning in (*prepared.method.notes, *journal.warnings):
            progress.warn(warning)
        try:
            async with stopping.listening():
                await _score(prepared, journal, progress, stopping, engines)
                finish = _merge if config.runtime.shard is None else _tally
                totals = await anyio.to_thread.run_sync(finish, prepared, journal, progress, stopping)
        except BaseExceptionGroup as group:
            raise root_cause(group) from group
        _check_unscored(config, totals.rows - totals.statuses.get("ok", 0), totals.rows)
        return RunReport(
            config=config,
            totals=totals,
            progress=progress,
            journal=journal.folder,
        )


@contextmanager
def _recorded(prepared: Prepared, progress: Progress) -> Iterator[None]:
    """The run's events in the journal's log, its beginning and its end among them."""
    config, log = prepared.config, RunLog(prepared.journal)
    progress.record = log.write
    progress.record(
        "run_started",
        pid=os.getpid(),
        host=platform.node(),
        version=__version__,
        rows=progress.num_rows,
        inputs=config.inputs,
        output=config.output,
        model=prepared.method.identity["model"],
        paradigm=config.identity.paradigm,
        engine=prepared.method.identity["engine"],
    )
    exit_code, message = 1, ""
    try:
        yield
        exit_code = 0
    except BaseException as error:
        exit_code, message = getattr(error, "exit_code", 1), str(error) or type(error).__name__
        raise
    finally:
        progress.record("run_ended", exit_code=exit_code, message=message, **progress.facts())
        log.close()
        if log.fault is not None:
            progress.record = forget
            progress.warn(f"the log in {prepared.journal} is not complete: {log.fault}")


async def _score(
    prepared: Prepared, journal: Journal, progress: Progress, stopping: Stopping, engines: EngineSource
) -> None:
    config, answer = prepared.config, _executor(prepared.config, engines)
    committer = Committer(
        journal,
        max_rows=config.runtime.part_rows,
        max_seconds=config.runtime.part_seconds,
        committed=lambda part: _count(part, config, progress),
    )
    items = _items(prepared, journal, progress, stopping)
    send_items, items_to_answer = anyio.create_memory_object_stream[Item](STREAM_BUFFER)
    send_outcomes, outcomes = anyio.create_memory_object_stream[Outcome](STREAM_BUFFER)

    async def commit() -> None:
        await committer.run(outcomes)
        progress.scored_at = time.monotonic()

    async def ask() -> None:
        with stopping.scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(produce, items, send_items)
                tasks.start_soon(answer, prepared, items_to_answer, send_outcomes, progress)

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit)
            try:
                await ask()
            except BaseExceptionGroup:
                # A terminal's Ctrl-C may reach the engine's processes too, which then die before they are let go.
                if not stopping.was_stopped:
                    raise
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(items.close)
    if stopping.was_stopped:
        raise InterruptedRunError(journal.folder, progress.num_done)


def _items(prepared: Prepared, journal: Journal, progress: Progress, stopping: Stopping) -> Generator[Item]:
    """The rows that are not committed yet, by document; a generator, so that closing it removes spill files."""
    runtime = prepared.config.runtime

    num_rows = 0

    def rows_of_run() -> Iterator[Pair | Rejected]:
        nonlocal num_rows
        for row in prepared.source.pairs(stop=runtime.limit):
            if stopping.was_stopped:  # also while rows are passed over that are finished, or another shard's
                return
            if runtime.shard is None or runtime.shard.holds(row.document_hash):
                num_rows += 1
                yield row

    def rows_to_ask() -> Iterator[Pair | Rejected]:
        num_asked = 0
        for row in pending(rows_of_run(), journal.committed(prepared.is_retried)):
            num_asked += 1
            progress.num_resumed = num_rows - num_asked
            yield row
        if not stopping.was_stopped:
            progress.num_rows, progress.num_resumed = num_rows, num_rows - num_asked

    return group_pairs(
        rows_to_ask(),
        mode=runtime.group,
        look_ahead_rows=runtime.look_ahead_rows,
        look_ahead_bytes=runtime.look_ahead_bytes,
        spill_dir=journal.spill_dir,
        expected_bytes=prepared.source.num_bytes // (runtime.shard.count if runtime.shard else 1),
    )


async def produce(items: Iterator[Item], groups: MemoryObjectSendStream[Item]) -> None:
    """Send groups from a worker thread's iterator until it ends; closes the stream."""

    def fetch() -> list[Item]:
        return list(itertools.islice(items, GROUPS_A_HOP))

    async with groups:
        while fetched := await anyio.to_thread.run_sync(fetch):
            for item in fetched:
                await groups.send(item)


def _executor(config: RunConfig, engines: EngineSource) -> Executor:
    """Workers of a Ray cluster have engines of their own, whatever `engines` is."""
    if config.runtime.executor == "ray":
        from batchfact.executors import ray

        return ray.answer
    return partial(local.answer, engines=engines)


def _count(part: list[Outcome], config: RunConfig, progress: Progress) -> None:
    """Count committed rows by what they fold to.

    Raises: TooManyUnscoredError once enough rows show it.
    """
    for outcome in part:
        verdict = fold_outcome(outcome, config.fold)
        progress.statuses[verdict.status] += 1
        if not isinstance(verdict, Unscored):
            progress.labels[verdict.label] += 1
        if outcome.status == "ok":
            progress.num_asked += 1
            progress.num_asked_unscored += isinstance(verdict, Unscored)
    progress.record("committed", rows=len(part), **progress.facts())
    if progress.num_asked >= EARLY_STOP_ROWS:
        _check_unscored(config, progress.num_asked_unscored, progress.num_asked)


def _check_unscored(config: RunConfig, num_unscored: int, num_rows: int) -> None:
    limit = config.runtime.max_unscored
    if limit is not None and num_rows and num_unscored / num_rows > limit:
        raise TooManyUnscoredError(
            f"{num_unscored:,} of {num_rows:,} rows are unscored ({num_unscored / num_rows:.1%}), "
            f"--max-unscored allows {limit:.1%}; the column {config.columns.column_prefix}status says why"
        )


def _merge(prepared: Prepared, journal: Journal, progress: Progress, stopping: Stopping) -> Totals:
    def add(num_rows: int) -> None:
        progress.num_merged += num_rows
        if stopping.was_stopped:
            raise InterruptedRunError(journal.folder, progress.num_done)

    progress.begin("writing the output")
    config = prepared.config
    return merge(
        prepared.source,
        journal,
        config.output,
        config.fold,
        config.columns,
        preparation.metadata(prepared),
        add,
        limit=config.runtime.limit,
    )


def _tally(prepared: Prepared, journal: Journal, progress: Progress, stopping: Stopping) -> Totals:
    """What is in the journal of a job shard, whose output `merge` writes once all shards are there.

    Rows beyond --limit, of a run with a larger one, do not count.
    """
    progress.begin("counting the finished rows")
    limit = prepared.config.runtime.limit
    totals = Totals()
    outcomes = itertools.takewhile(lambda outcome: limit is None or outcome.row < limit, journal.outcomes())
    for part in tally(outcomes, prepared.config.fold):
        totals += part
        if stopping.was_stopped:
            raise InterruptedRunError(journal.folder, progress.num_done)
    return totals
