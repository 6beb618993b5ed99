"""The connection to a Ray cluster: one of its own on this machine, or one that is there.

An address and the wanted workers flow in; a `Cluster` flows out, or an error that says what is wrong with it.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import ModuleType

import anyio
import anyio.to_thread
from msgspec import Struct

from batchfact.errors import UsageError

OBJECT_STORE_BYTES = 256 << 20
"""Of a cluster of our own: leases and replies alone go through it."""
OWN_SETTINGS = {"prestart_worker_first_driver": False, "worker_register_timeout_seconds": 600}
"""Ray starts processes ahead, and the driver waits for them: without end, where a busy machine needs over a minute."""
CONNECT_LIMIT_S = 10.0
SHUTDOWN_LIMIT_S = 30.0


class Cluster(Struct, frozen=True):
    """A cluster that this process is connected to. `bundle` is what one worker needs."""

    ray: ModuleType
    bundle: dict[str, float]
    num_workers: int
    is_own: bool

    def cores_of(self, number: int) -> tuple[int, ...] | None:
        """A worker's share of this machine's cores, where all workers are on it and none has a GPU; None elsewhere."""
        if not self.is_own or "GPU" in self.bundle or not hasattr(os, "sched_getaffinity"):
            return None
        cores = sorted(os.sched_getaffinity(0))
        return tuple(cores[number % len(cores) :: self.num_workers])

    def describe(self) -> str:
        """What a worker needs and what the cluster has, in words."""
        total, free = self.ray.cluster_resources(), self.ray.available_resources()
        needs = " and ".join(f"{amount:g} {name}" for name, amount in self.bundle.items())
        has = ", ".join(f"{total.get(name, 0):g} {name} ({free.get(name, 0):g} free)" for name in self.bundle)
        return f"each worker needs {needs} on one machine; the cluster has {has}"


def import_ray() -> ModuleType:
    """Raises: UsageError where Ray is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Else Ray warns of a change to come, and hides the GPUs of a machine from workers that ask for none.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise UsageError("--executor ray needs Ray: pip install 'batchfact[ray]'") from error
    return ray


@asynccontextmanager
async def connected(address: str | None, num_workers: int, gpus: float) -> AsyncIterator[Cluster]:
    """Connect, or start a cluster on this machine where there is no address; the end of the block undoes it.

    Raises: UsageError where there is no such cluster, its versions are others, or this machine has too few GPUs.
    """
    ray = import_ray()
    bundle = {"CPU": 1.0, **({"GPU": float(gpus)} if gpus else {})}
    cluster = Cluster(ray, bundle, num_workers, is_own=address is None)
    try:
        # In a thread: it takes seconds, and there it leaves Python's signal handlers alone.
        await anyio.to_thread.run_sync(partial(_connect, cluster, address))
        _take_back_sigterm()
        if cluster.is_own:
            _check_gpus(cluster)
        yield cluster
    finally:
        with anyio.move_on_after(SHUTDOWN_LIMIT_S, shield=True):
            await anyio.to_thread.run_sync(ray.shutdown, abandon_on_cancel=True)


def _connect(cluster: Cluster, address: str | None) -> None:
    ray = cluster.ray
    if address is not None and address != "auto":
        _reach(address)
    own = {
        "num_cpus": cluster.num_workers,
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_system_config": OWN_SETTINGS,
        **({} if "GPU" in cluster.bundle else {"num_gpus": 0}),
    }
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level="CRITICAL",
            **(own if address is None else {}),
        )
    except ConnectionError as error:
        raise UsageError(f"--ray-address {address}: there is no Ray cluster ({_first_line(error)})") from error
    except RuntimeError as error:
        if "ersion mismatch" not in str(error):
            raise
        raise UsageError(
            f"--ray-address {address}: the cluster and this process need the same Ray and Python: "
            f"{' '.join(str(error).split())}"
        ) from error


def _take_back_sigterm() -> None:
    """Ray's library takes SIGTERM from Python, and would end the run without committing what is finished."""
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _reach(address: str) -> None:
    """Raises: UsageError where nothing answers at HOST:PORT: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_LIMIT_S).close()
    except OSError as error:
        raise UsageError(
            f"--ray-address {address} cannot be reached ({error}); is it the port of `ray start --head` (6379)?"
        ) from error


def _check_gpus(cluster: Cluster) -> None:
    """Raises: UsageError where this machine can never hold all workers."""
    wanted = cluster.num_workers * cluster.bundle.get("GPU", 0)
    total = cluster.ray.cluster_resources().get("GPU", 0)
    if wanted > total:
        raise UsageError(
            f"--workers {cluster.num_workers} with {cluster.bundle['GPU']:g} GPUs each need {wanted:g}, this machine "
            f"has {total:g}: take fewer, or name a cluster with --ray-address"
        )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
