"""Workers of a cluster without one: what they are assigned, where they log, and what their errors mean."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from batchfact import preparation
from batchfact.config import Identity, RunConfig, Runtime
from batchfact.errors import RunFailedError, UsageError
from batchfact.executors.driver import Driver, Limits, NoRoomError, WorkerEndedError
from batchfact.executors.ray import Actor
from batchfact.executors.worker import Assignment, Worker, assign
from batchfact.progress import Progress
from batchfact.records import Outcome

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


async def test_rows_by_worker_are_written_down_when_a_run_fails_too() -> None:
    events: list[tuple[str, dict[str, object]]] = []
    progress = Progress(0)
    progress.record = lambda event, **facts: events.append((event, facts))
    send, receive = anyio.create_memory_object_stream[Outcome](1)

    def launch(number: int) -> Any:
        raise NoRoomError("no GPU")

    async def nothing() -> Any:
        return
        yield

    with send, receive, pytest.raises(BaseExceptionGroup):
        await Driver(launch, 1, send, progress, Limits()).run(nothing())

    assert ("workers", {"worker_rows": {"0": 0}}) in events
