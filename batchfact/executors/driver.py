"""Leases document groups to workers and gathers their outcomes; replaces workers that end.

Groups flow in, outcomes flow out, each row's once. Which worker gets what is `leasing`'s to say; how a worker is
started and reached is `Launch`'s, so nothing here knows of Ray. Memory is bounded by the leases that workers hold.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from msgspec import Struct

from batchfact.errors import EngineDiedError, RunFailedError, UsageError
from batchfact.executors.leasing import HELD, LEASE_CHARACTERS, Lease, Leasing, lease_rows
from batchfact.executors.messages import Delivery, Look, decode_delivery, decode_look, encode_groups
from batchfact.executors.worker import Ready
from batchfact.progress import Progress, WorkerProgress
from batchfact.records import DocumentGroup, Outcome, Pair, Rejected
from batchfact.scheduler import rejected_outcome

LOOK_S = 5.0
"""How often each worker is asked how it does, and for what it has finished."""
RECORD_S = 60.0
"""How often the workers' rows are written to the log."""
MAX_PAUSE_S = 60.0


class WorkerEndedError(EngineDiedError):
    """A worker is gone, or answers no more; what it held is not lost."""


class NoRoomError(RunFailedError):
    """There is no place for a worker, and there will be none soon."""


class RemoteWorker(Protocol):
    """A started worker, wherever it runs. Both methods raise WorkerEndedError when it is gone."""

    ready: Ready

    async def score(self, lease: int, groups: bytes) -> bytes:
        """An encoded `Delivery`: the outcomes that no `look` has given before."""

    async def look(self) -> bytes:
        """An encoded `Look`."""


Launch = Callable[[int], AbstractAsyncContextManager[RemoteWorker]]
"""Starts the worker of this number; leaving the block ends it.

Raises: UsageError where the run's settings are wrong, NoRoomError, or RunFailedError where this start failed.
"""


class Limits(Struct, frozen=True, kw_only=True):
    """How often a worker may end without having finished a row in between, and seconds that it may be silent."""

    max_restarts: int = 10
    silence_s: float = 300.0


class Driver:
    """One run's workers.

    Args:
        outcomes: where finished rows go; a full stream stops the leasing.
        progress: counts tokens, rows by worker, and what went wrong.
    """

    def __init__(
        self,
        launch: Launch,
        num_workers: int,
        outcomes: MemoryObjectSendStream[Outcome],
        progress: Progress,
        limits: Limits,
    ) -> None:
        self._launch = launch
        self._outcomes = outcomes
        self._progress = progress
        self._limits = limits
        self._leasing = Leasing()
        self._inboxes: dict[int, MemoryObjectSendStream[Lease]] = {}
        self._answered: dict[int, set[int]] = {}
        """Leases whose last outcomes each worker has sent; some may be on their way still, in a `Look`."""
        self._num_left = num_workers
        self._num_waiting = 0
        self._first_ready = anyio.Event()
        self._rows_leased = 0
        self._is_fed = False
        self._more_wanted = anyio.Event()
        self._is_finished = anyio.Event()
        progress.workers = {number: WorkerProgress() for number in range(num_workers)}

    async def run(self, items: AsyncIterable[DocumentGroup | Rejected]) -> None:
        """Score until `items` ends and every row is back.

        Raises: RunFailedError when no worker is left; UsageError where none can start.
        """
        try:
            async with anyio.create_task_group() as tasks:
                for number in self._progress.workers:
                    tasks.start_soon(self._keep_up, number)
                tasks.start_soon(self._record_workers)
                await self._feed(items)
                await self._is_finished.wait()
                tasks.cancel_scope.cancel()
        finally:
            self._record_rows()

    # Leases

    async def _feed(self, items: AsyncIterable[DocumentGroup | Rejected]) -> None:
        """Make a lease whenever a worker wants one."""
        groups: list[DocumentGroup] = []
        num_rows = num_characters = 0
        async for item in items:
            if isinstance(item, Rejected):
                await self._outcomes.send(rejected_outcome(item))
                continue
            characters = len(item.document) + sum(len(pair.summary) for pair in item.pairs)
            is_full = num_rows + len(item.pairs) > self._lease_rows() or num_characters + characters > LEASE_CHARACTERS
            if groups and is_full:
                await self._lease(groups)
                groups, num_rows, num_characters = [], 0, 0
            groups.append(item)
            num_rows += len(item.pairs)
            num_characters += characters
        if groups:
            await self._lease(groups)
        self._is_fed = True
        self._note_finish()

    def _lease_rows(self) -> int:
        rows_left = self._progress.num_rows - self._progress.num_resumed - self._rows_leased
        return lease_rows(rows_left, max(1, self._num_left))

    async def _lease(self, groups: list[DocumentGroup]) -> None:
        while not self._leasing.wants_more:
            self._more_wanted = anyio.Event()
            await self._more_wanted.wait()
        self._rows_leased += sum(len(group.pairs) for group in groups)
        self._leasing.add(groups)
        self._hand_out()

    def _hand_out(self) -> None:
        while (given := self._leasing.next()) is not None:
            worker, lease = given
            self._inboxes[worker].send_nowait(lease)
        if self._leasing.wants_more:
            self._more_wanted.set()

    def _note_finish(self) -> None:
        if self._is_fed and self._leasing.is_idle:
            self._is_finished.set()

    # Workers

    async def _keep_up(self, number: int) -> None:
        """Start workers of this number, one after the other, until they end too often."""
        counts = self._progress.workers[number]
        num_failures, pause_s = 0, 0.0
        while True:
            rows_before = counts.rows
            try:
                async with self._launch(number) as worker:
                    reason = await self._serve(number, worker)
            except NoRoomError as error:
                self._drop(str(error))
                return
            except UsageError as error:
                if not self._first_ready.is_set():
                    raise
                self._drop(f"worker {number} cannot be replaced: {error}")
                return
            except RunFailedError as error:
                reason = str(error)
                if not self._first_ready.is_set():
                    await self._wait_for_first(number, reason)
            has_worked = counts.rows > rows_before
            num_failures = 1 if has_worked else num_failures + 1
            if num_failures > self._limits.max_restarts:
                self._drop(f"worker {number} ended {num_failures} times in a row: {reason}")
                return
            pause_s = 0.0 if has_worked else min(MAX_PAUSE_S, 2 * pause_s + 1)
            self._progress.num_restarts += 1
            counts.restarts += 1
            self._progress.warn(f"worker {number} is replaced: {reason}")
            self._progress.record("engine_restarting", worker=number, restart=num_failures, pause_s=pause_s)
            await anyio.sleep(pause_s)

    async def _wait_for_first(self, number: int, reason: str) -> None:
        """A worker failed to start before any other has: whether it ever would, the others' starts tell.

        Raises: RunFailedError when all have failed.
        """
        self._num_waiting += 1
        self._refuse_none(reason)
        self._progress.warn(f"worker {number} did not start: {reason}; it is started again once another one is up")
        await self._first_ready.wait()
        self._num_waiting -= 1

    def _drop(self, reason: str) -> None:
        """Go on with one worker less.

        Raises: RunFailedError when it was the last.
        """
        self._num_left -= 1
        self._refuse_none(reason)
        self._progress.warn(f"{reason}; the run goes on with {self._num_left} workers")

    def _refuse_none(self, reason: str) -> None:
        """Raises: RunFailedError where no worker is left that is up, starting, or known to start."""
        if self._num_left == 0 or (self._num_left == self._num_waiting and not self._first_ready.is_set()):
            raise RunFailedError(
                f"{reason}; no worker is left. Finished rows are kept: run the same command again to go on from there"
            )

    async def _serve(self, number: int, worker: RemoteWorker) -> str:
        """Give it leases until it ends; gives the reason."""
        self._begin(number, worker)
        reasons: list[str] = []
        send, inbox = anyio.create_memory_object_stream[Lease](HELD)
        try:
            with send, inbox:
                self._inboxes[number], self._answered[number] = send, set()
                self._leasing.join(number)
                async with anyio.create_task_group() as calls:

                    def end(reason: str) -> None:
                        reasons.append(reason)
                        self._leasing.retire(number)
                        calls.cancel_scope.cancel()

                    calls.start_soon(self._watch, number, worker, end)
                    self._hand_out()
                    async for lease in inbox:
                        calls.start_soon(self._score, number, worker, lease, end)
        finally:
            del self._inboxes[number], self._answered[number]
            counts = self._progress.workers[number]
            counts.is_up, counts.num_in_flight = False, 0
            given_up = self._leasing.leave(number)
        self._progress.record("engine_ended", worker=number, reason=reasons[0])
        await self._give_up(number, given_up, reasons[0])
        self._hand_out()
        self._note_finish()
        return reasons[0]

    def _begin(self, number: int, worker: RemoteWorker) -> None:
        progress, counts = self._progress, self._progress.workers[number]
        if not self._first_ready.is_set():
            self._first_ready.set()
            progress.engine_ready_at = time.monotonic()
            progress.begin("scoring")
        counts.host, counts.is_up = worker.ready.host, True
        counts.looks = (0, 0)
        progress.record("engine_ready", worker=number, host=worker.ready.host, pid=worker.ready.pid)

    async def _score(self, number: int, worker: RemoteWorker, lease: Lease, end: Callable[[str], None]) -> None:
        try:
            reply = await worker.score(lease.number, encode_groups(lease.groups))
        except WorkerEndedError as error:
            end(str(error))
            return
        await self._deliver(number, decode_delivery(reply))
        self._answered[number].add(lease.number)

    async def _watch(self, number: int, worker: RemoteWorker, end: Callable[[str], None]) -> None:
        """Ask the worker how it does, as long as it answers."""
        while True:
            await anyio.sleep(LOOK_S)
            answered, self._answered[number] = self._answered[number], set()
            look: Look | None = None
            try:
                with anyio.move_on_after(self._limits.silence_s):
                    look = decode_look(await worker.look())
            except WorkerEndedError as error:
                end(str(error))
                return
            if look is None:
                end(f"it gave no sign of life for {self._limits.silence_s:,.0f} s")
                return
            self._note_look(number, look)
            for delivery in look.deliveries:
                await self._deliver(number, delivery)
            if lacking := [lease for lease in answered if self._leasing.holds(number, lease)]:
                end(f"it ended lease {lacking[0]} without all of its rows")
                return

    def _note_look(self, number: int, look: Look) -> None:
        """Count what happened within the worker since the last look."""
        progress, counts = self._progress, self._progress.workers[number]
        restarts = look.num_restarts - counts.looks[0]
        given_up = look.num_given_up - counts.looks[1]
        counts.looks = (look.num_restarts, look.num_given_up)
        progress.num_restarts += restarts
        counts.restarts += restarts
        progress.num_given_up += given_up
        for _ in range(restarts):
            progress.record("engine_restarting", worker=number)
        for _ in range(given_up):
            progress.record("request_given_up", worker=number)
        for warning in look.warnings:
            progress.warn(f"worker {number}: {warning}")
        counts.num_in_flight = look.num_in_flight
        progress.num_in_flight = sum(each.num_in_flight for each in progress.workers.values())

    # Outcomes

    async def _deliver(self, number: int, delivery: Delivery) -> None:
        """Pass outcomes on, and only then count them as back; whole, since a part would be asked again."""
        with anyio.CancelScope(shield=True):
            if not self._leasing.is_probe(number, delivery.lease):
                await self._send(number, delivery.outcomes)
            self._leasing.receive(number, delivery.lease, (outcome.row for outcome in delivery.outcomes))
        self._hand_out()
        self._note_finish()

    async def _give_up(self, number: int, pairs: Iterable[Pair], reason: str) -> None:
        """Rows that ended a worker when they were alone with it."""
        outcomes = [
            Outcome(
                row=pair.row,
                text_hash=pair.text_hash,
                status="engine_error",
                message=f"workers ended on this row: {reason}",
            )
            for pair in pairs
        ]
        for outcome in outcomes:
            self._progress.num_given_up += 1
            self._progress.record("request_given_up", worker=number, row=outcome.row, reason=reason)
        with anyio.CancelScope(shield=True):
            await self._send(number, outcomes)

    async def _send(self, number: int, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self._progress.add_tokens(outcome.usage)
            await self._outcomes.send(outcome)
        self._progress.workers[number].rows += len(outcomes)

    async def _record_workers(self) -> None:
        while True:
            await anyio.sleep(RECORD_S)
            self._record_rows()

    def _record_rows(self) -> None:
        rows = {str(number): counts.rows for number, counts in self._progress.workers.items()}
        self._progress.record("workers", worker_rows=rows)
