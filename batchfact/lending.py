"""One engine for several runs, one after the other: it stays up while they need the same one.

What a run needs flows in, as it would for an engine of its own; the engine that is up, or a new one in its place, flows
out. It knows nothing of what the runs are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from batchfact.engines.base import EngineFactory, EngineSpec
from batchfact.progress import Progress
from batchfact.supervision import Limits, SupervisedEngine, supervised

EngineSource = Callable[[EngineFactory, EngineSpec, Progress, Limits], AbstractAsyncContextManager[SupervisedEngine]]
"""Where a run has its engine from: `supervised` starts one for it, `EngineLender.lend` may have one up."""


class EngineLender:
    """Holds at most one engine, in a task of `tasks`, until another one is needed or `close` is called."""

    def __init__(self, tasks: TaskGroup, log_file: Path) -> None:
        """`log_file`: where the engines' own log goes, whichever run needs them, unless it is for the terminal."""
        self._tasks = tasks
        self._log_file = log_file
        self._engine: SupervisedEngine | None = None
        self._held: tuple[EngineFactory, EngineSpec] | None = None
        self._unwanted = self._ended = anyio.Event()

    @asynccontextmanager
    async def lend(
        self, factory: EngineFactory, spec: EngineSpec, progress: Progress, limits: Limits
    ) -> AsyncIterator[SupervisedEngine]:
        """An engine for one run, which stays up after the block; only one run at a time may have it.

        Raises: as `supervised`.
        """
        log_file = None if spec.log_file is None else self._log_file
        wanted = (factory, msgspec.structs.replace(spec, log_file=log_file))
        if self._engine is None or self._engine.is_given_up or self._held != wanted:
            await self.close()
            if self._held != wanted:  # else the same objects again: an engine may remember by them what has happened
                self._held = wanted
            self._engine = await self._tasks.start(self._keep, *self._held, progress, limits)
        else:
            self._engine.serve(progress, limits)
        yield self._engine

    async def close(self) -> None:
        """End the engine, if there is one, and wait until it has given its memory back."""
        if self._engine is not None:
            self._engine = None
            self._unwanted.set()
            await self._ended.wait()

    async def _keep(
        self,
        factory: EngineFactory,
        spec: EngineSpec,
        progress: Progress,
        limits: Limits,
        *,
        task_status: TaskStatus[SupervisedEngine],
    ) -> None:
        self._unwanted, self._ended = anyio.Event(), anyio.Event()
        try:
            async with supervised(factory, spec, progress, limits) as engine:
                task_status.started(engine)
                await self._unwanted.wait()
        finally:
            self._ended.set()
