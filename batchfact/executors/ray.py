"""Workers as actors of a Ray cluster: one that is started here, or one that is there.

The only file that imports ray for a run. Each worker has a placement group of one bundle: all its GPUs are on one
machine, and stay reserved for the worker that takes its place. Every wait has a limit.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, suppress
from types import ModuleType
from typing import Any, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from batchfact.config import Runtime
from batchfact.errors import RunFailedError, UsageError
from batchfact.executors.driver import Driver, Limits, NoRoomError, WorkerEndedError
from batchfact.executors.local import Item, chain, first_group
from batchfact.executors.ray_cluster import Cluster, connected, import_ray
from batchfact.executors.worker import Ready, Worker, assign
from batchfact.preparation import Method, Prepared
from batchfact.progress import Progress
from batchfact.records import Outcome

T = TypeVar("T")

START_LIMIT_S = 4000.0
"""How long a worker may take to come up: vLLM itself gives up after an hour."""
STOP_LIMIT_S = 30.0
"""How long a worker may take to end its engine before its process is killed."""
POLL_S = (0.05, 2.0)
"""How often it is looked whether a worker has its place: at first, and at most."""


async def answer(
    prepared: Prepared,
    items: MemoryObjectReceiveStream[Item],
    outcomes: MemoryObjectSendStream[Outcome],
    progress: Progress,
) -> None:
    """Score all items with the workers of a Ray cluster; closes both streams.

    Raises: UsageError where there is no Ray, no such cluster, or not the same versions on it; RunFailedError where no
        worker is left.
    """
    runtime = prepared.config.runtime
    import_ray()
    async with items, outcomes:
        first = await first_group(items, outcomes)
        if first is None:
            return
        num_workers, gpus = runtime.workers or 1, runtime.gpus_per_worker
        if gpus is None:
            gpus = default_gpus(prepared.method, runtime)
        progress.begin("starting the workers")
        async with connected(runtime.ray_address, num_workers, gpus) as cluster:
            launcher = Launcher(cluster, prepared)
            limits = Limits(max_restarts=runtime.max_restarts, silence_s=runtime.stall_seconds)
            driver = Driver(launcher.launch, num_workers, outcomes, progress, limits)
            try:
                await driver.run(chain(first, items))
            finally:
                launcher.free()


def default_gpus(method: Method, runtime: Runtime) -> int:
    """The GPUs that one engine needs."""
    return runtime.tensor_parallel_size if method.identity["engine"].get("device") == "gpu" else 0


class Launcher:
    """Starts workers of one run, each at its place."""

    def __init__(self, cluster: Cluster, prepared: Prepared) -> None:
        self._cluster = cluster
        self._wait_s = prepared.config.runtime.worker_wait_seconds
        self._assignment = assign(prepared.config, prepared.method, prepared.journal.absolute())
        self._places: dict[int, Any] = {}

    @asynccontextmanager
    async def launch(self, number: int) -> AsyncIterator[Actor]:
        """A started worker; leaving the block ends it. Raises as `driver.Launch` says."""
        ray = self._cluster.ray
        place = await self._place(number)
        handle = (
            ray.remote(Worker)
            .options(
                num_cpus=self._cluster.bundle["CPU"],
                num_gpus=self._cluster.bundle.get("GPU", 0),
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                    placement_group=place, placement_group_capture_child_tasks=True
                ),
            )
            .remote(self._assignment, number, self._cluster.cores_of(number))
        )
        actor = Actor(ray, handle)
        try:
            await actor.start()
            yield actor
        finally:
            with anyio.CancelScope(shield=True):
                await actor.close()

    async def _place(self, number: int) -> Any:
        """The worker's placement group, with its resources reserved.

        Raises: NoRoomError where the cluster has none to give in time.
        """
        ray = self._cluster.ray
        if number not in self._places:
            self._places[number] = ray.util.placement_group([self._cluster.bundle], strategy="STRICT_PACK")
        place = self._places[number]
        deadline, pause_s = time.monotonic() + self._wait_s, POLL_S[0]
        while ray.util.placement_group_table(place)["state"] != "CREATED":
            if time.monotonic() > deadline:
                ray.util.remove_placement_group(self._places.pop(number))
                raise NoRoomError(
                    f"worker {number} got no place within {self._wait_s:,.0f} s: {self._cluster.describe()}"
                )
            await anyio.sleep(pause_s)
            pause_s = min(POLL_S[1], 2 * pause_s)
        return place

    def free(self) -> None:
        """Give the reserved resources back."""
        for place in self._places.values():
            self._cluster.ray.util.remove_placement_group(place)


class Actor:
    """A worker's process, as the driver sees it."""

    ready: Ready

    def __init__(self, ray: ModuleType, handle: Any) -> None:
        self._ray = ray
        self._handle = handle

    async def start(self) -> None:
        """Raises: UsageError where the worker refuses to score as it should; RunFailedError where it does not start."""
        with anyio.move_on_after(START_LIMIT_S):
            self.ready = await self._ask(self._handle.start.remote())
            return
        raise RunFailedError(f"a worker did not start within {START_LIMIT_S:,.0f} s")

    async def score(self, lease: int, groups: bytes) -> bytes:
        return await self._ask(self._handle.score.remote(lease, groups))

    async def look(self) -> bytes:
        return await self._ask(self._handle.look.remote())

    async def close(self) -> None:
        """End the engine in order if the process still answers, then the process."""
        with suppress(WorkerEndedError), anyio.move_on_after(STOP_LIMIT_S):
            await self._ask(self._handle.stop.remote())
        self._ray.kill(self._handle)

    async def _ask(self, answer: Awaitable[T]) -> T:
        """The answer of a call.

        Raises: UsageError as the worker raised it; WorkerEndedError where it is gone, has given its engine up, or its
            machine has no disk or memory left: another one may do.
        """
        try:
            return await answer
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, UsageError):
                raise UsageError(str(cause)) from error
            if isinstance(cause, RunFailedError):
                raise WorkerEndedError(str(cause)) from error
            if isinstance(cause, OSError | MemoryError):
                raise WorkerEndedError(f"{type(cause).__name__}: {cause}") from error
            raise
        except self._ray.exceptions.RayError as error:
            raise WorkerEndedError(" ".join(_reasons(str(error)))) from error


def _reasons(text: str) -> Iterator[str]:
    """Of Ray's many lines, those that say why."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("The actor is dead because", "The actor died because"))]
    yield (told or lines or ["its process is gone"])[0][:300]
