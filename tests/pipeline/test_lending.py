"""An engine that is lent to one run after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from batchfact_fake import Factory, FakeEngine

from batchfact.engines.base import EngineSpec
from batchfact.errors import RunFailedError
from batchfact.lending import EngineLender
from batchfact.progress import Progress
from batchfact.supervision import Limits, SupervisedEngine

pytestmark = pytest.mark.anyio

LABELS = ((4,), (5,))


class Counting(Factory):
    """Counts the engines that it started and ended; `failures` starts fail first."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.started: list[EngineSpec] = []
        self.ended = 0

    @asynccontextmanager
    async def open(self, spec: EngineSpec) -> AsyncIterator[FakeEngine]:
        self.started.append(spec)
        if len(self.started) <= self.failures:
            raise RunFailedError("the engine did not start")
        async with super().open(spec) as engine:
            try:
                yield engine
            finally:
                self.ended += 1


async def ask(engine: SupervisedEngine) -> None:
    await engine.choose([1], LABELS, priority=0, replica=0)


async def test_runs_of_one_spec_share_an_engine_and_each_has_its_own_counters(tmp_path: Path) -> None:
    factory, progresses = Counting(), [Progress(0), Progress(0)]
    faults = {"die_after": "0", "die_times": "1"}
    async with anyio.create_task_group() as tasks:
        lender = EngineLender(tasks, tmp_path / "engine.log")
        for number, progress in enumerate(progresses):
            spec = EngineSpec(model=tmp_path, extra=faults, log_file=tmp_path / f"{number}.log")
            async with lender.lend(factory, spec, progress, Limits(max_restarts=1)) as engine:
                factory.faults.times_left["die"] = 1
                await ask(engine)
            assert (progress.num_restarts, progress.phase) == (1, "scoring")
        assert factory.ended == 2
        await lender.close()

    # One start, and a death in each run, which had the one restart that it may have.
    assert len(factory.started) == factory.ended == 3
    assert {each.log_file for each in factory.started} == {tmp_path / "engine.log"}


async def test_another_spec_gets_another_engine_and_the_first_is_ended_before(tmp_path: Path) -> None:
    factory = Counting()
    async with anyio.create_task_group() as tasks:
        lender = EngineLender(tasks, tmp_path / "engine.log")
        for limit in (100, 200):
            async with lender.lend(factory, EngineSpec(model=tmp_path, max_model_len=limit), Progress(0), Limits()):
                assert factory.ended == len(factory.started) - 1
        await lender.close()

    assert [each.max_model_len for each in factory.started] == [100, 200]


async def test_after_one_that_was_given_up_or_did_not_start_the_next_run_gets_a_new_one(tmp_path: Path) -> None:
    factory = Counting(failures=1)
    spec = EngineSpec(model=tmp_path, extra={"die_after": "0", "die_times": "1"})
    async with anyio.create_task_group() as tasks:
        lender = EngineLender(tasks, tmp_path / "engine.log")
        with pytest.raises(RunFailedError, match="did not start"):
            async with lender.lend(factory, spec, Progress(0), Limits()):
                pass
        with pytest.raises(RunFailedError, match="given up"):
            async with lender.lend(factory, spec, Progress(0), Limits(max_restarts=0)) as engine:
                await ask(engine)
        async with lender.lend(factory, spec, Progress(0), Limits(max_restarts=0)) as engine:
            await ask(engine)
        await lender.close()

    assert len(factory.started) == 3
