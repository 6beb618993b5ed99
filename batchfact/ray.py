"""`score_dataset`: pairs in a Ray Dataset to verdicts, for those whose pipeline is on Ray already.

A thin wrapper on the worker of `--executor ray`. Ray Data leases, retries and places; there is no journal.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from batchfact import preparation
from batchfact.api import check_columns, config_of, groups_of, texts_of, with_verdicts
from batchfact.errors import UsageError
from batchfact.executors.ray import default_gpus
from batchfact.executors.ray_cluster import import_ray
from batchfact.executors.worker import Assignment, Worker, assign
from batchfact.records import DocumentGroup
from batchfact.scheduler import rejected_outcome
from batchfact.source import rows_of

if TYPE_CHECKING:
    import ray.data


def score_dataset(
    dataset: ray.data.Dataset,
    *,
    workers: int = 1,
    gpus_per_worker: float | None = None,
    batch_rows: int = 1024,
    **options: Any,
) -> ray.data.Dataset:
    """The dataset with the output's columns behind its own; lazy, as all of Ray Data.

    Args:
        dataset: rows with a document and a summary column, both text or null.
        workers: actors, each with an engine of its own.
        gpus_per_worker: None takes what the engine needs: `tensor_parallel_size`, or none on CPUs.
        batch_rows: rows that a worker gets at once; pairs of one document share its prefix within such a batch, so
            sort or partition by document before. A worker scores up to four batches side by side.
        options: those of the command line with underscores: `model`, `paradigm`, `threshold`, ...

    Raises: UsageError for a wrong option or a missing column, a model that cannot be had, or where Ray is not
        installed. What fails later comes as Ray Data raises it.
    """
    import_ray()
    if workers < 1 or batch_rows < 1:
        raise UsageError(f"workers and batch_rows must be at least 1, got {workers} and {batch_rows}")
    config = config_of(options)
    schema = dataset.schema()
    check_columns([] if schema is None else schema.names, config)
    method = preparation.prepare_method(config, log_file=None, compiles=config.runtime.compile == "on")
    assignment = assign(config, method)
    gpus = default_gpus(method, config.runtime) if gpus_per_worker is None else gpus_per_worker
    return dataset.map_batches(
        DatasetWorker,
        fn_constructor_args=(assignment,),
        batch_format="pyarrow",
        batch_size=batch_rows,
        concurrency=workers,
        num_cpus=1,
        **({"num_gpus": gpus} if gpus else {}),
    )


class DatasetWorker:
    """Scores tables, several at once; Ray Data makes an actor of it."""

    def __init__(self, assignment: Assignment) -> None:
        self._config = assignment.config
        self._worker = Worker(assignment, os.getpid())
        self._numbers = count()
        self._starting = asyncio.Lock()
        self._is_started = False
        # Ray Data asks for this thread's event loop next. Ray takes uvloop where it is there, which makes none unasked.
        asyncio.set_event_loop(asyncio.new_event_loop())

    async def __call__(self, table: pa.Table) -> AsyncIterator[pa.Table]:
        async with self._starting:
            if not self._is_started:
                await self._worker.start()
                self._is_started = True
        items = list(groups_of(rows_of(texts_of(table, self._config)), max(table.num_rows, 1)))
        groups = [item for item in items if isinstance(item, DocumentGroup)]
        outcomes = [rejected_outcome(item) for item in items if not isinstance(item, DocumentGroup)]
        if groups:
            outcomes += await self._worker.outcomes(next(self._numbers), groups)
        yield with_verdicts(table, sorted(outcomes, key=lambda outcome: outcome.row), self._config)
