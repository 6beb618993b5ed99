"""One engine in a process of its own: leases of document groups come in, outcomes go out.

It is a plain class, which Ray makes an actor of. It decides nothing: which leases there are, and what happens when it
dies, is the driver's business.
"""

from __future__ import annotations

import asyncio
import os
import platform
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream
from msgspec import Struct

from batchfact import __version__, preparation
from batchfact.assembly import Assembler
from batchfact.config import RunConfig
from batchfact.demonstrations import Shown
from batchfact.errors import UsageError, root_cause
from batchfact.executors import local
from batchfact.executors.messages import Delivery, Look, decode_groups, encode
from batchfact.models import registered
from batchfact.progress import Progress
from batchfact.records import DocumentGroup, Outcome
from batchfact.run_file import differences
from batchfact.scheduler import Scheduler

STREAM_BUFFER = 8


class Assignment(Struct, frozen=True, kw_only=True):
    """What a worker scores with, from `assign`. It must find the same on its machine: `identity` is the driver's."""

    config: RunConfig
    compiles: bool = False
    shown: Shown | None = None
    identity: Mapping[str, Any] | None = None
    version: str = __version__
    log_folder: Path | None = None
    """Where the engine's log goes, if the worker's machine has this folder."""


def assign(config: RunConfig, method: preparation.Method, log_folder: Path | None = None) -> Assignment:
    """What workers score with, whichever folder they run in: a model's folder is named from the root."""
    identity = config.identity
    if method.entry is not None and Path(identity.model).is_dir() and registered(identity.model) is None:
        identity = msgspec.structs.replace(identity, model=preparation.absolute(identity.model))
    return Assignment(
        config=msgspec.structs.replace(config, identity=identity),
        compiles=method.spec.compile,
        shown=method.shown,
        identity=method.identity,
        log_folder=log_folder,
    )


class Ready(Struct, frozen=True):
    """Where a started worker runs."""

    host: str
    pid: int


class Worker:
    """Scores leases, several at once, with one engine.

    Args:
        number: the worker's number in the run, for its log's name.
        cores: the CPU cores it may use; None for all of them.
    """

    def __init__(self, assignment: Assignment, number: int, cores: Sequence[int] | None = None) -> None:
        if cores is not None:
            os.sched_setaffinity(0, cores)
        self._assignment = assignment
        self._number = number
        self._progress = Progress(0)
        self._num_told = 0
        self._undelivered: dict[int, list[Outcome]] = {}
        self._scheduler: Scheduler
        self._ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._proving = asyncio.Lock()
        self._is_proven = False
        self._engine: asyncio.Task[None] | None = None

    async def start(self) -> Ready:
        """Start the engine.

        Raises: UsageError where model, engine or versions are not the driver's; RunFailedError where it does not start.
        """
        self._method = await anyio.to_thread.run_sync(self._prepare)
        # A task of its own, not a task group's: it outlives this call.
        self._engine = asyncio.get_running_loop().create_task(self._keep_engine())
        ready = asyncio.ensure_future(self._ready.wait())
        await asyncio.wait({self._engine, ready}, return_when=asyncio.FIRST_COMPLETED)
        if self._engine.done():
            ready.cancel()
            self._engine.result()
        return Ready(platform.node(), os.getpid())

    async def score(self, lease: int, groups: bytes) -> bytes:
        """The outcomes of a lease's groups, without those that `look` has delivered before.

        Raises: RunFailedError when the engine is dead for good.
        """
        return encode(Delivery(lease, tuple(await self.outcomes(lease, decode_groups(groups)))))

    async def outcomes(self, lease: int, groups: Sequence[DocumentGroup]) -> list[Outcome]:
        await self._prove(groups[0])
        self._undelivered[lease] = []
        send, receive = anyio.create_memory_object_stream[Outcome](STREAM_BUFFER)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._collect, lease, receive)
                async with send:
                    await self._scheduler.run(_stream(groups), send)
        except BaseExceptionGroup as group:
            raise root_cause(group) from group
        finally:
            rest = self._undelivered.pop(lease)
        return rest

    async def look(self) -> bytes:
        """How it does, and the outcomes that are finished: so a slow lease does not hold them back.

        Raises: what ended the engine's task, if that has ended.
        """
        if self._engine is not None and self._engine.done():
            self._engine.result()
        deliveries = tuple(Delivery(lease, tuple(done)) for lease, done in self._undelivered.items() if done)
        for delivery in deliveries:
            self._undelivered[delivery.lease] = []
        progress = self._progress
        warnings = tuple(progress.warnings[self._num_told :])
        self._num_told += len(warnings)
        return encode(Look(deliveries, progress.num_in_flight, progress.num_restarts, progress.num_given_up, warnings))

    async def stop(self) -> None:
        """End the engine."""
        self._stopping.set()
        if self._engine is not None:
            await asyncio.wait({self._engine})

    def _prepare(self) -> preparation.Method:
        given = self._assignment
        if given.version != __version__:
            raise UsageError(
                f"{platform.node()} has batchfact {__version__}, the driver {given.version}: install the same on all"
            )
        method = preparation.prepare_method(
            given.config, log_file=self._log_file(), compiles=given.compiles, shown=given.shown
        )
        found = differences(given.identity, method.identity) if given.identity else ""
        if found:
            raise UsageError(f"{platform.node()} would not score as the driver says: {found}")
        return method

    def _log_file(self) -> Path | None:
        given = self._assignment
        if given.config.runtime.verbose:
            return None
        folder = given.log_folder
        if folder is None or not os.access(folder, os.W_OK):
            # One of its own: a name that others could guess may be another user's file.
            folder = Path(tempfile.mkdtemp(prefix="batchfact-"))
        return folder / f"engine-{self._number}.log"

    async def _keep_engine(self) -> None:
        self._assembler = Assembler(self._method.tokenizer)
        async with local.started(
            self._method, self._assembler, self._assignment.config, self._progress
        ) as self._scheduler:
            self._ready.set()
            await self._stopping.wait()

    async def _prove(self, group: DocumentGroup) -> None:
        """Prove the assembly on the first document; leases that come meanwhile wait."""
        async with self._proving:
            if not self._is_proven:
                await anyio.to_thread.run_sync(preparation.prove_joins, self._assembler, self._method, group)
                self._is_proven = True

    async def _collect(self, lease: int, outcomes: MemoryObjectReceiveStream[Outcome]) -> None:
        async with outcomes:
            async for outcome in outcomes:
                self._undelivered[lease].append(outcome)


async def _stream(groups: Sequence[DocumentGroup]) -> AsyncIterator[DocumentGroup]:
    for group in groups:
        yield group
