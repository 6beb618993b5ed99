"""One engine in this process: what a run does by itself, and what every worker of a Ray cluster does."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from batchfact import preparation
from batchfact.assembly import Assembler
from batchfact.config import RunConfig
from batchfact.lending import EngineSource
from batchfact.paradigms.fold import decides
from batchfact.preparation import Method, Prepared
from batchfact.progress import Progress
from batchfact.records import DocumentGroup, Finding, Outcome, Rejected
from batchfact.scheduler import Sampling, Scheduler, rejected_outcome
from batchfact.supervision import Limits, supervised

Item = DocumentGroup | Rejected


async def answer(
    prepared: Prepared,
    items: MemoryObjectReceiveStream[Item],
    outcomes: MemoryObjectSendStream[Outcome],
    progress: Progress,
    *,
    engines: EngineSource,
) -> None:
    """Score all items; closes both streams. The engine starts when the first document group arrives.

    Raises: UsageError or RunFailedError where the engine does not start, RunFailedError where it dies for good.
    """
    async with items, outcomes:
        first = await first_group(items, outcomes)
        if first is None:
            return
        progress.begin("starting the engine")
        assembler = Assembler(prepared.method.tokenizer)
        await anyio.to_thread.run_sync(preparation.prove_joins, assembler, prepared.method, first)
        async with started(prepared.method, assembler, prepared.config, progress, engines) as scheduler:
            progress.engine_ready_at = time.monotonic()
            await scheduler.run(chain(first, items), outcomes)
            await outcomes.aclose()  # the last rows are committed while the engine shuts down, not after it


async def first_group(
    items: MemoryObjectReceiveStream[Item], outcomes: MemoryObjectSendStream[Outcome]
) -> DocumentGroup | None:
    """The first group that a model must be asked about: a finished journal has none, and needs no engine.

    Rejected rows before it go on to the outcomes.
    """
    async for item in items:
        if isinstance(item, DocumentGroup):
            return item
        await outcomes.send(rejected_outcome(item))
    return None


async def chain(first: Item, rest: MemoryObjectReceiveStream[Item]) -> AsyncIterator[Item]:
    yield first
    async for item in rest:
        yield item


@asynccontextmanager
async def started(
    method: Method, assembler: Assembler, config: RunConfig, progress: Progress, engines: EngineSource = supervised
) -> AsyncIterator[Scheduler]:
    """A scheduler with an engine, which is there until the block ends."""
    async with engines(method.engine, method.spec, progress, limits(config)) as engine:
        yield Scheduler(
            engine, assembler, method.paradigm, progress, decides=early_exit(config), sampling=sampling(config)
        )


def limits(config: RunConfig) -> Limits:
    return Limits(config.runtime.max_restarts, config.runtime.stall_seconds)


def early_exit(config: RunConfig) -> Callable[[list[Finding]], bool] | None:
    """What the scheduler asks after each finding, with --early-exit."""
    if not config.runtime.early_exit:
        return None
    return lambda findings: decides(findings, config.fold)


def sampling(config: RunConfig) -> Sampling:
    return Sampling(config.identity.temperature, config.identity.seed)
