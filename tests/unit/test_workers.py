"""Workers of a cluster without one: what they are assigned, where they log, and what their errors mean."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pyarrow as pa
import pytest

from batchfact import preparation
from batchfact.api import texts_of
from batchfact.config import Identity, RunConfig, Runtime
from batchfact.errors import RunFailedError, UsageError, root_cause
from batchfact.executors import driver as driver_module
from batchfact.executors.driver import Driver, Limits, NoRoomError, WorkerEndedError
from batchfact.executors.messages import Delivery, Look, decode_groups, encode
from batchfact.executors.ray import Actor
from batchfact.executors.worker import Assignment, Ready, Worker, assign
from batchfact.progress import Progress
from batchfact.records import DocumentGroup, Outcome, Pair

pytestmark = pytest.mark.anyio


def test_a_models_folder_is_named_from_the_root_since_workers_run_elsewhere(
    fake_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fake_model.parent)
    given = RunConfig(inputs=(), output="", identity=Identity(model="fake-model"), runtime=Runtime(engine="fake"))
    method = preparation.prepare_method(given, log_file=None, compiles=False)
    assigned = assign(given, method)
    monkeypatch.chdir("/")
    there = preparation.prepare_method(assigned.config, log_file=None, compiles=False)

    assert there.identity == method.identity


def test_two_workers_in_the_temporary_folder_do_not_share_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do those of two users: the other's file could not be written."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assignment = Assignment(config=RunConfig(inputs=(), output=""), log_folder=tmp_path / "not-there")
    logs = [Worker(assignment, 0)._log_file() for _ in range(2)]

    assert all(log is not None and log.parent.parent == tmp_path for log in logs)
    assert logs[0] != logs[1]


def test_a_column_without_text_is_a_usage_error_and_no_crash_in_a_worker() -> None:
    table = pa.table({"document": ["text", None], "summary": [0, 1]})

    with pytest.raises(UsageError, match="'summary' must hold text or null, got int"):
        texts_of(table, RunConfig(inputs=(), output=""))


class RayTaskError(Exception):
    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


RAY: Any = SimpleNamespace(exceptions=SimpleNamespace(RayTaskError=RayTaskError, RayError=RayTaskError))


@pytest.mark.parametrize(
    ("cause", "error", "told"),
    [
        (UsageError("no such model"), UsageError, "no such model"),
        (RunFailedError("the engine is dead"), WorkerEndedError, "the engine is dead"),
        (OSError(28, "No space left on device"), WorkerEndedError, "No space left"),
        (MemoryError("no 4 GiB"), WorkerEndedError, "MemoryError: no 4 GiB"),
        (ValueError("a bug"), RayTaskError, "a bug"),
    ],
)
async def test_what_fails_on_one_machine_ends_its_worker_and_not_the_run(
    cause: Exception, error: type[Exception], told: str
) -> None:
    async def fail() -> bytes:
        raise RayTaskError(cause)

    handle = SimpleNamespace(look=SimpleNamespace(remote=fail))
    with pytest.raises(error, match=told):
        await Actor(RAY, handle).look()


class EchoWorker:
    """Scores each row as ok at once, or stands still: then it answers nothing at all."""

    ready = Ready("here", 1)

    def __init__(self, *, stands_still: bool) -> None:
        self.stands_still = stands_still

    async def score(self, lease: int, groups: bytes) -> bytes:
        await self._live()
        pairs = [pair for group in decode_groups(groups) for pair in group.pairs]
        return encode(Delivery(lease, tuple(Outcome(row=pair.row, text_hash=pair.text_hash) for pair in pairs)))

    async def look(self) -> bytes:
        await self._live()
        return encode(Look((), 0, 0, 0, ()))

    async def _live(self) -> None:
        if self.stands_still:
            await anyio.sleep_forever()


async def test_a_worker_whose_process_stands_still_is_replaced_and_its_rows_are_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver_module, "LOOK_S", 0.01)
    num_starts = 0

    @asynccontextmanager
    async def launch(number: int) -> AsyncIterator[EchoWorker]:
        nonlocal num_starts
        num_starts += 1
        yield EchoWorker(stands_still=num_starts == 1)

    progress = Progress(5)
    send, receive = anyio.create_memory_object_stream[Outcome](8)
    with anyio.fail_after(60), receive:
        with send:
            await Driver(launch, 1, send, progress, Limits(silence_s=0.05)).run(_groups(5))
        rows = [outcome.row async for outcome in receive]

    assert sorted(rows) == list(range(5))
    assert progress.warnings == ["worker 0 is replaced: it gave no sign of life for 0 s"]


async def test_a_worker_that_fails_before_any_other_is_up_is_started_again_once_one_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a passing fault at the start would cost its GPU for the whole run."""
    monkeypatch.setattr(driver_module, "MAX_PAUSE_S", 0.0)
    has_failed, is_back = anyio.Event(), anyio.Event()

    @asynccontextmanager
    async def launch(number: int) -> AsyncIterator[EchoWorker]:
        if number == 0 and not has_failed.is_set():
            has_failed.set()
            raise RunFailedError("the GPU's memory is not free yet")
        await has_failed.wait()
        if number == 0:
            is_back.set()
        yield EchoWorker(stands_still=False)

    async def groups() -> AsyncIterator[DocumentGroup]:
        await is_back.wait()
        async for group in _groups(1):
            yield group

    progress = Progress(1)
    send, receive = anyio.create_memory_object_stream[Outcome](8)
    with anyio.fail_after(60), receive, send:
        await Driver(launch, 2, send, progress, Limits()).run(groups())
        assert receive.receive_nowait().row == 0

    assert "worker 0 did not start: the GPU's memory is not free yet" in progress.warnings[0]


async def test_workers_of_which_one_has_no_room_and_the_other_does_not_start_end_the_run() -> None:
    has_failed = anyio.Event()

    @asynccontextmanager
    async def launch(number: int) -> AsyncIterator[EchoWorker]:
        if number == 0:
            has_failed.set()
            raise RunFailedError("the engine did not start")
        await has_failed.wait()
        if number == 1:
            raise NoRoomError("no GPU")
        yield EchoWorker(stands_still=True)

    send, receive = anyio.create_memory_object_stream[Outcome](8)
    with anyio.fail_after(60), receive, send, pytest.raises(BaseExceptionGroup) as caught:
        await Driver(launch, 2, send, Progress(1), Limits()).run(_groups(1))

    assert "no GPU; no worker is left" in str(root_cause(caught.value))


async def test_rows_by_worker_are_written_down_when_a_run_fails_too() -> None:
    events: list[tuple[str, dict[str, object]]] = []
    progress = Progress(0)
    progress.record = lambda event, **facts: events.append((event, facts))
    send, receive = anyio.create_memory_object_stream[Outcome](1)

    def launch(number: int) -> Any:
        raise NoRoomError("no GPU")

    with send, receive, pytest.raises(BaseExceptionGroup):
        await Driver(launch, 1, send, progress, Limits()).run(_groups(0))

    assert ("workers", {"worker_rows": {"0": 0}}) in events


async def _groups(num_rows: int) -> AsyncIterator[DocumentGroup]:
    for row in range(num_rows):
        pair = Pair(row=row, document=f"d{row}", summary="s", document_hash=row, text_hash=row)
        yield DocumentGroup(number=row, pairs=(pair,))
