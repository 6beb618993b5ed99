"""An engine that is started again when it dies or stops answering.

A factory and what it needs to start flow in; one `Engine` flows out, which outlives the engines behind it. Requests
that an engine took with it are asked again. After a death those that were in flight are suspects: they go first, in
lots of a sixteenth of them, with nothing beside them, so that a second death leaves few, and in the end one. A request
that takes an engine with it twice, the second time alone, fails for good, if the next engine answers what was answered
before: where it does not, the engine is broken and no request is to blame. It knows nothing of pairs or prompts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
from anyio.abc import TaskStatus
from msgspec import Struct

from batchfact.engines.base import (
    Capacity,
    ChooseAnswer,
    Engine,
    EngineFactory,
    EngineSpec,
    LabelIds,
    RequestError,
    Tokenizer,
    WriteAnswer,
)
from batchfact.errors import EngineDiedError, RunFailedError, root_cause
from batchfact.progress import Progress

T = TypeVar("T")

NUM_LOTS = 16
"""Suspects are parted into so many lots: one bad request among 256 is alone after two more deaths."""
FIRST_ANSWER_FACTOR = 3
"""The first answer may take so many times as long: kernels are compiled and buffers made."""
PATIENCE_FACTOR = 10
"""So many times the longest answer so far is no answer."""
MAX_PAUSE_S = 60.0


class Limits(Struct, frozen=True):
    """Restarts in one run, and seconds without any answer after which an engine counts as stalled, at least."""

    max_restarts: int = 10
    stall_s: float = 300.0


class Patience:
    """Decides when an engine that owes answers has stopped.

    Waiting is counted in the steps in which it is watched, not by a clock: a machine that slept, or a process that was
    stopped for a while, is no stalled engine.
    """

    def __init__(self, stall_s: float) -> None:
        self.stall_s = stall_s
        self.longest_s = 0.0
        self.silent_s = 0.0
        self.has_answered = False

    @property
    def limit_s(self) -> float:
        """Seconds of silence that are borne, from what was seen so far."""
        floor_s = self.stall_s if self.has_answered else self.stall_s * FIRST_ANSWER_FACTOR
        return max(floor_s, PATIENCE_FACTOR * self.longest_s)

    def begin(self) -> None:
        """A new engine, or the first request after a time without any."""
        self.silent_s, self.has_answered = 0.0, False

    def answered(self, took_s: float) -> None:
        self.longest_s = max(self.longest_s, took_s)
        self.silent_s, self.has_answered = 0.0, True

    def is_over(self, step_s: float) -> bool:
        """Whether another step without an answer is one too many."""
        self.silent_s += step_s
        return self.silent_s > self.limit_s


class _Ask:
    """One request on its way through the engines, until it is answered or given up."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.is_suspect = False
        """An engine ended while it was in flight."""
        self.is_condemned = False
        """And then another one, when nothing was beside it."""


@asynccontextmanager
async def supervised(
    factory: EngineFactory, spec: EngineSpec, progress: Progress, limits: Limits
) -> AsyncIterator[SupervisedEngine]:
    """Start an engine and keep one up until the block ends.

    Args:
        progress: counts and records what happened.
    Raises: UsageError or RunFailedError where the first engine does not start. Later its requests raise RunFailedError
        once the restarts are used up.
    """
    engine = SupervisedEngine(progress, limits)
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(engine.keep_up, factory, spec)
            async with anyio.create_task_group() as watching:
                watching.start_soon(engine.watch)
                yield engine
                watching.cancel_scope.cancel()
            engine.close()
    except BaseExceptionGroup as group:
        raise root_cause(group) from group


class SupervisedEngine:
    """The `Engine` of a run, whichever engine is behind it. Made by `supervised`."""

    capacity: Capacity
    tokenizer: Tokenizer

    def __init__(self, progress: Progress, limits: Limits) -> None:
        self._progress = progress
        self._limits = limits
        self._num_restarts = 0
        self._patience = Patience(limits.stall_s)
        self._engine: Engine | None = None
        self._failure: str | None = None
        self._is_closing = False
        self._reason = ""
        self._last_answered: Callable[[Engine], Awaitable[object]] | None = None
        self._in_flight: set[_Ask] = set()
        self._lots: deque[set[_Ask]] = deque()
        self._changed = anyio.Event()
        self._ended = anyio.Event()

    @property
    def is_given_up(self) -> bool:
        """Whether the restarts are used up, so that every request from now on fails."""
        return self._failure is not None

    def serve(self, progress: Progress, limits: Limits) -> None:
        """Belong to the next run, which counts its own restarts, once the last one has no request any more."""
        self._progress, self._limits = progress, limits
        self._num_restarts = 0
        self._patience.stall_s = limits.stall_s
        if self._engine is not None:
            progress.begin("scoring")

    async def choose(self, prompt_ids: list[int], labels: LabelIds, *, priority: int, replica: int) -> ChooseAnswer:
        return await self._ask(lambda engine: engine.choose(prompt_ids, labels, priority=priority, replica=replica))

    async def write(
        self,
        prompt_ids: list[int],
        *,
        max_tokens: int,
        stop: tuple[str, ...],
        schema: str | None,
        priority: int,
        replica: int,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> WriteAnswer:
        return await self._ask(
            lambda engine: engine.write(
                prompt_ids,
                max_tokens=max_tokens,
                stop=stop,
                schema=schema,
                priority=priority,
                replica=replica,
                temperature=temperature,
                seed=seed,
            )
        )

    # Requests

    async def _ask(self, call: Callable[[Engine], Awaitable[T]]) -> T:
        ask = _Ask()
        try:
            while True:
                engine = await self._turn(ask)
                if ask.is_condemned and self._last_answered is not None:
                    if await self._try(ask, engine, self._last_answered) is not None:
                        raise self._refusal()
                    continue
                answer = await self._try(ask, engine, call)
                if answer is not None:
                    self._last_answered = call
                    return answer
        finally:
            self._leave(ask)

    def _refusal(self) -> RequestError:
        self._progress.num_given_up += 1
        self._progress.record("request_given_up", reason=self._reason)
        return RequestError(f"the engine ended twice on this request: {self._reason}")

    async def _turn(self, ask: _Ask) -> Engine:
        """Wait until an engine is up and this request may go to it.

        Raises: RunFailedError when there will be no engine any more.
        """
        while True:
            if self._failure is not None:
                raise RunFailedError(self._failure)
            if self._engine is not None and (not self._lots or ask in self._lots[0]):
                return self._engine
            await self._changed.wait()

    async def _try(self, ask: _Ask, engine: Engine, call: Callable[[Engine], Awaitable[T]]) -> T | None:
        """The answer; None where the engine ended before it came."""
        if not self._in_flight:
            self._patience.silent_s = 0.0
        self._in_flight.add(ask)
        started = time.monotonic()
        try:
            with anyio.CancelScope() as ask.scope:
                answer = await call(engine)
                self._answered(started)
                return answer
        except RequestError:
            self._answered(started)
            raise
        except EngineDiedError as error:
            if engine is self._engine:
                self._end_engine(str(error))
        finally:
            self._in_flight.discard(ask)
        return None

    def _answered(self, started: float) -> None:
        self._patience.answered(time.monotonic() - started)

    def _leave(self, ask: _Ask) -> None:
        if self._lots:
            self._drop_from_lots({ask})
            self._notify()

    def _drop_from_lots(self, asks: set[_Ask]) -> None:
        self._lots = deque(left for lot in self._lots if (left := lot - asks))

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    # Engines

    async def keep_up(
        self, factory: EngineFactory, spec: EngineSpec, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Start engines, one after the other, until the restarts are used up."""
        is_first, pause_s = True, 0.0
        while True:
            began = False
            try:
                async with factory.open(spec) as engine:
                    began = True
                    self._begin(engine)
                    if is_first:
                        self.capacity, self.tokenizer = engine.capacity, engine.tokenizer
                        task_status.started()
                    pause_s = 0.0
                    await self._ended.wait()
            except RunFailedError as error:
                if is_first and not began:
                    raise
                self._reason = str(error)
                if began:  # an engine that cannot be ended still holds the device
                    self._give_up()
                    return
            if self._is_closing:
                return
            is_first = False
            if self._num_restarts >= self._limits.max_restarts:
                self._give_up()
                return
            self._num_restarts += 1
            self._progress.num_restarts += 1
            self._progress.begin("starting the engine again")
            times = f"{self._num_restarts} of {self._limits.max_restarts}"
            self._progress.warn(f"{self._reason}; it is started again ({times})")
            self._progress.record("engine_restarting", restart=self._num_restarts, pause_s=pause_s)
            await anyio.sleep(pause_s)
            pause_s = min(MAX_PAUSE_S, 2 * pause_s + 1)

    def close(self) -> None:
        """Let `keep_up` end its engine and return."""
        self._is_closing = True
        self._ended.set()

    async def watch(self) -> None:
        """End an engine that owes answers and gives none."""
        step_s = min(5.0, self._limits.stall_s / 20)
        while True:
            await anyio.sleep(step_s)
            if self._engine is not None and self._in_flight and self._patience.is_over(step_s):
                self._end_engine(
                    f"the engine gave no answer for {self._patience.silent_s:,.0f} s "
                    f"(the longest answer before took {self._patience.longest_s:,.1f} s)"
                )

    def _begin(self, engine: Engine) -> None:
        self._engine = engine
        if not self._is_closing:
            self._ended = anyio.Event()
        self._patience.begin()
        self._progress.record("engine_ready")
        self._progress.begin("scoring")
        self._notify()

    def _end_engine(self, reason: str) -> None:
        """Take the engine out of use; what was in flight waits for the next one, in lots."""
        self._engine = None
        self._reason = reason
        self._progress.record("engine_ended", reason=reason, in_flight=len(self._in_flight))
        suspects = list(self._in_flight)
        for ask in suspects:
            ask.is_condemned = ask.is_suspect and len(suspects) == 1
            ask.is_suspect = True
            ask.scope.cancel()
        self._drop_from_lots(set(suspects))
        size = max(1, len(suspects) // NUM_LOTS)
        for start in range(0, len(suspects), size):
            self._lots.appendleft(set(suspects[start : start + size]))
        self._ended.set()

    def _give_up(self) -> None:
        again = f" after {self._num_restarts} restarts" if self._num_restarts else ""
        self._failure = (
            f"{self._reason}; given up{again}. Finished rows are kept: run the same command again to go on from there"
        )
        self._notify()
