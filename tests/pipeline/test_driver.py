"""The driver of many workers, with real workers on the fake engine in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from batchfact.config import Identity, RunConfig, Runtime
from batchfact.errors import RunFailedError, UsageError, root_cause
from batchfact.executors import driver as driver_module
from batchfact.executors.driver import Driver, Limits, NoRoomError, WorkerEndedError
from batchfact.executors.messages import Delivery, decode_delivery, decode_groups, encode
from batchfact.executors.worker import Assignment, Ready, Worker
from batchfact.progress import Progress
from batchfact.records import DocumentGroup, Outcome, Rejected

pytestmark = pytest.mark.anyio

PAIRS = [(f"Document {i // 3}. It is about item {i // 3}.", f"Item {i}. Sold {i}.") for i in range(90)]
PAIRS[10] = ("", "Rejected.")


class LocalWorker:
    """A real worker without a process. Leases with a fatal text end it; so does the lease of number `end_on`. Of the
    lease `lossy_on` it forgets a row.
    """

    def __init__(
        self, worker: Worker, ready: Ready, *, fatal: str | None, end_on: int | None, lossy_on: int | None
    ) -> None:
        self.worker, self.ready, self.fatal, self.end_on, self.lossy_on = worker, ready, fatal, end_on, lossy_on
        self.is_dead = anyio.Event()

    async def score(self, lease: int, groups: bytes) -> bytes:
        texts = [pair.summary for group in decode_groups(groups) for pair in group.pairs]
        if lease == self.end_on or any(self.fatal in text for text in texts if self.fatal):
            self.is_dead.set()
        reply = await self._alive(lambda: self.worker.score(lease, groups))
        if lease == self.lossy_on and (outcomes := decode_delivery(reply).outcomes):
            return encode(Delivery(lease, outcomes[1:]))
        return reply

    async def look(self) -> bytes:
        return await self._alive(self.worker.look)

    async def _alive(self, call: Callable[[], Any]) -> bytes:
        if not self.is_dead.is_set():
            reply: bytes = await call()
            if not self.is_dead.is_set():
                return reply
        raise WorkerEndedError("its process was killed")


Score = Callable[..., Any]


@pytest.fixture
def score(fake_model: Path, make_groups: Any) -> Score:
    """Scores PAIRS with workers that have these faults; gives the outcomes by row, and the counters."""

    async def run(
        num_workers: int = 2,
        *,
        fatal: str | None = None,
        end_on: int | None = None,
        lossy_on: int | None = None,
        start_fails: Callable[[int, int], Exception | None] = lambda number, start: None,
        max_restarts: int = 10,
        pairs: Any = PAIRS,
        arrived: anyio.Event | None = None,
        **extra: str,
    ) -> tuple[dict[int, Outcome], Progress]:
        runtime = Runtime(engine="fake", engine_args=extra)
        config = RunConfig(inputs=(), output="", identity=Identity(model=str(fake_model)), runtime=runtime)
        num_starts = 0

        @asynccontextmanager
        async def launch(number: int) -> AsyncIterator[LocalWorker]:
            nonlocal num_starts
            num_starts += 1
            if (error := start_fails(number, num_starts)) is not None:
                raise error
            worker = Worker(Assignment(config=config, log_folder=fake_model), number)
            try:
                yield LocalWorker(worker, await worker.start(), fatal=fatal, end_on=end_on, lossy_on=lossy_on)
            finally:
                with anyio.CancelScope(shield=True):
                    await worker.stop()

        progress = Progress(len(pairs))
        send, receive = anyio.create_memory_object_stream[Outcome](8)
        driver = Driver(launch, num_workers, send, progress, Limits(max_restarts=max_restarts, silence_s=60))
        outcomes: list[Outcome] = []

        async def drive() -> None:
            async with send:
                await driver.run(_stream(make_groups(pairs)))

        try:
            async with anyio.create_task_group() as tasks, receive:
                tasks.start_soon(drive)
                async for outcome in receive:
                    outcomes.append(outcome)
                    if arrived is not None:
                        arrived.set()
        except BaseExceptionGroup as group:
            raise root_cause(group) from group
        assert len({outcome.row for outcome in outcomes}) == len(outcomes), "no row twice"
        return {outcome.row: outcome for outcome in outcomes}, progress

    return run


async def _stream(items: list[DocumentGroup | Rejected]) -> AsyncIterator[DocumentGroup | Rejected]:
    for item in items:
        yield item


async def test_two_workers_give_what_one_gives(score: Score) -> None:
    one, _ = await score(1)
    two, progress = await score(2)

    assert two == one
    assert len(two) == len(PAIRS)
    assert all(counts.rows > 0 for counts in progress.workers.values())
    assert sum(counts.rows for counts in progress.workers.values()) == len(PAIRS) - 1


@pytest.mark.parametrize("num_workers", [1, 3])
async def test_a_worker_that_ends_by_itself_costs_no_row(score: Score, num_workers: int) -> None:
    whole, _ = await score(1)
    found, progress = await score(num_workers, end_on=2)

    assert found == whole
    assert (progress.num_restarts, progress.num_given_up) == (1, 0)
    assert [warning for warning in progress.warnings if "is replaced: its process was killed" in warning]


async def test_a_worker_that_forgets_a_row_is_replaced_and_the_row_asked_again(score: Score, quick_looks: None) -> None:
    whole, _ = await score(1)
    found, progress = await score(lossy_on=1, latency_s="0.05")

    assert found == whole
    assert [warning for warning in progress.warnings if "ended lease 1 without all of its rows" in warning]


@pytest.mark.parametrize("num_workers", [1, 2])
async def test_only_the_row_that_ends_every_worker_is_given_up(score: Score, num_workers: int, no_pause: None) -> None:
    whole, _ = await score(1)
    found, progress = await score(num_workers, fatal="Item 40.")

    assert found[40].status == "engine_error"
    assert "its process was killed" in (found[40].message or "")
    assert {**found, 40: whole[40]} == whole
    assert progress.num_given_up == 1
    assert progress.num_restarts <= 6


async def test_a_run_whose_rows_all_end_the_workers_ends_and_blames_none(score: Score, no_pause: None) -> None:
    with pytest.raises(RunFailedError, match=r"ended 4 times in a row: its process was killed; no worker is left"):
        await score(2, fatal="Item", max_restarts=3)


async def test_workers_that_never_start_end_the_run(score: Score) -> None:
    with pytest.raises(RunFailedError, match="the engine did not start; no worker is left"):
        await score(2, start_fails=lambda number, start: RunFailedError("the engine did not start"))


async def test_a_wrong_setting_ends_the_run_at_once(score: Score) -> None:
    with pytest.raises(UsageError, match="no such model"):
        await score(2, start_fails=lambda number, start: UsageError("no such model"))


async def test_without_room_for_all_workers_the_run_goes_on_with_fewer(score: Score) -> None:
    found, progress = await score(3, start_fails=lambda number, start: NoRoomError("no GPU") if number else None)

    assert len(found) == len(PAIRS)
    assert progress.warnings == ["no GPU; the run goes on with 2 workers", "no GPU; the run goes on with 1 workers"]


async def test_what_a_worker_without_a_successor_held_goes_to_the_others(score: Score) -> None:
    def no_second(number: int, start: int) -> Exception | None:
        return NoRoomError("no GPU") if start > 2 else None

    whole, _ = await score(1)
    found, _ = await score(2, end_on=2, start_fails=no_second)

    assert found == whole


async def test_a_machine_that_would_not_score_as_the_others_is_left_out(score: Score, no_pause: None) -> None:
    def other_version(number: int, start: int) -> Exception | None:
        return UsageError("node7 has batchfact 0.0.1") if start > 2 else None

    whole, _ = await score(1)
    found, progress = await score(2, end_on=2, start_fails=other_version, latency_s="0.05")

    assert found == whole
    assert [each for each in progress.warnings if "cannot be replaced: node7 has batchfact 0.0.1; the run goes" in each]


async def test_an_engine_that_dies_within_a_worker_is_started_again_there(score: Score, quick_looks: None) -> None:
    found, progress = await score(2, die_after="20", die_times="1", latency_s="0.02", max_num_seqs="1")

    assert len(found) == len(PAIRS)
    assert not any(finding.status == "engine_error" for outcome in found.values() for finding in outcome.findings)
    assert progress.num_restarts >= 1
    assert any("worker " in warning and "is started again" in warning for warning in progress.warnings)


async def test_rows_come_back_while_their_lease_goes_on(score: Score, quick_looks: None) -> None:
    """The only lease hangs on its last row: the row before it is not held back."""
    arrived = anyio.Event()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            pairs = [("A document.", "Fine."), ("A document.", "It hangs.")]
            tasks.start_soon(partial(score, 1, pairs=pairs, hang_text="Statement:\nIt hangs.", arrived=arrived))
            await arrived.wait()
            tasks.cancel_scope.cancel()


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "MAX_PAUSE_S", 0.0)


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "LOOK_S", 0.05)
