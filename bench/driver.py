"""CPU time that the driver of many workers spends on a lease, and on reading and committing its pairs."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from batchfact.config import FoldPolicy
from batchfact.executors.driver import Driver, Limits, RemoteWorker
from batchfact.executors.messages import Delivery, Look, decode_groups, encode
from batchfact.executors.worker import Ready
from batchfact.grouping import group_pairs
from batchfact.journal import Journal
from batchfact.paradigms.fold import fold_outcome
from batchfact.progress import Progress
from batchfact.records import DocumentGroup, Finding, Outcome, Pair, Usage
from batchfact.source import open_source
from bench.facts import command_line, write_result
from bench.inputs import write_input

FINDINGS = 3
PART_ROWS = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=40_000, help="four to a document, three findings each")
    parser.add_argument("--document-bytes", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--lease-rows", type=int, nargs="+", default=[4, 64, 256])
    parser.add_argument("--ray", action="store_true", help="reach the workers as actors of a Ray cluster started here")


def measure(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="batchfact-bench-") as name:
        folder = Path(name)
        write_input(folder / "in.parquet", args.rows, args.document_bytes)
        started = time.process_time()
        groups = list(read_groups(folder))
        read_s = time.process_time() - started
        leases = [measure_leases(groups, args.workers, rows, use_ray=args.ray) for rows in args.lease_rows]
        commit_s = measure_commits(groups, folder)
    result: dict[str, Any] = {
        "command": command_line("bench", sys.argv[1:]),
        "rows": args.rows,
        "document_bytes": args.document_bytes,
        "workers": args.workers,
        "through_ray": args.ray,
        "leases": leases,
        "read_and_group_us_a_pair": round(read_s / args.rows * 1e6, 1),
        "fold_and_commit_us_a_pair": round(commit_s / args.rows * 1e6, 1),
    }
    print(result)
    write_result("driver-ray" if args.ray else "driver", result)


def read_groups(folder: Path) -> Iterator[DocumentGroup]:
    source = open_source((str(folder / "in.parquet"),), document_column="document", summary_column="summary")
    items = group_pairs(
        source.pairs(), mode="window", look_ahead_rows=65_536, look_ahead_bytes=256 << 20, spill_dir=folder / "spill"
    )
    return (item for item in items if isinstance(item, DocumentGroup))


def measure_commits(groups: list[DocumentGroup], folder: Path) -> float:
    """Seconds of CPU for folding and committing an outcome of each pair."""
    outcomes = [outcome_of(pair) for group in groups for pair in group.pairs]
    policy = FoldPolicy()
    with Journal.open(folder / "journal", {}, {}, {}, restart=False) as journal:
        started = time.process_time()
        for first in range(0, len(outcomes), PART_ROWS):
            part = outcomes[first : first + PART_ROWS]
            journal.append(part)
            for outcome in part:
                fold_outcome(outcome, policy)
            journal.compact_if_needed()
        return time.process_time() - started


def outcome_of(pair: Pair) -> Outcome:
    findings = tuple(Finding(start=i, end=i + 9, logprobs=(-0.2 - i, -1.9)) for i in range(FINDINGS))
    return Outcome(row=pair.row, text_hash=pair.text_hash, findings=findings, usage=Usage(900, 800, 3))


class Echo:
    """A worker that answers at once; `spent_s` is its own CPU time, which is not the driver's."""

    ready = Ready("here", 0)

    def __init__(self) -> None:
        self.spent_s = 0.0

    async def score(self, lease: int, groups: bytes) -> bytes:
        started = time.thread_time()
        pairs = (pair for group in decode_groups(groups) for pair in group.pairs)
        reply = encode(Delivery(lease, tuple(map(outcome_of, pairs))))
        self.spent_s += time.thread_time() - started
        await anyio.lowlevel.checkpoint()
        return reply

    async def look(self) -> bytes:
        return encode(Look((), 0, 0, 0, ()))


class FixedLeases(Driver):
    """Leases of so many rows, whatever is left."""

    num_rows = 1

    def _lease_rows(self) -> int:
        return self.num_rows


def measure_leases(groups: list[DocumentGroup], num_workers: int, lease_rows: int, *, use_ray: bool) -> dict[str, Any]:
    num_rows = sum(len(group.pairs) for group in groups)
    spent_s, echo_s = anyio.run(_drive_ray if use_ray else _drive, groups, num_workers, lease_rows)
    num_leases = -(-num_rows // lease_rows)
    return {
        "rows_a_lease": lease_rows,
        "leases": num_leases,
        "cpu_us_a_lease": round((spent_s - echo_s) / num_leases * 1e6, 1),
        "cpu_us_a_pair": round((spent_s - echo_s) / num_rows * 1e6, 2),
    }


async def _drive(groups: list[DocumentGroup], num_workers: int, lease_rows: int) -> tuple[float, float]:
    echoes = [Echo() for _ in range(num_workers)]

    @asynccontextmanager
    async def launch(number: int) -> AsyncIterator[RemoteWorker]:
        yield echoes[number]

    spent_s = await _run(launch, groups, num_workers, lease_rows)
    return spent_s, sum(echo.spent_s for echo in echoes)


async def _drive_ray(groups: list[DocumentGroup], num_workers: int, lease_rows: int) -> tuple[float, float]:
    """The echoes are actors in two processes, so that all CPU time here is the driver's, Ray's threads included."""
    from batchfact.executors.ray import Actor
    from batchfact.executors.ray_cluster import connected

    async with connected(None, 2, 0) as cluster:
        echo = cluster.ray.remote(Echo)
        actors = [Actor(cluster.ray, echo.options(num_cpus=1).remote()) for _ in range(2)]
        for actor in actors:
            actor.ready = Echo.ready
            await actor.look()

        @asynccontextmanager
        async def launch(number: int) -> AsyncIterator[RemoteWorker]:
            yield actors[number % len(actors)]

        return await _run(launch, groups, num_workers, lease_rows), 0.0


async def _run(launch: Any, groups: list[DocumentGroup], num_workers: int, lease_rows: int) -> float:
    send, receive = anyio.create_memory_object_stream[Outcome](8)
    progress = Progress(sum(len(group.pairs) for group in groups))
    driver = FixedLeases(launch, num_workers, send, progress, Limits())
    driver.num_rows = lease_rows

    async def stream() -> AsyncIterator[DocumentGroup]:
        for group in groups:
            yield group

    async def drive() -> None:
        async with send:
            await driver.run(stream())

    started = time.process_time()
    async with anyio.create_task_group() as tasks, receive:
        tasks.start_soon(drive)
        async for _ in receive:
            pass
    return time.process_time() - started
