"""The Python API: `score` for pairs at hand, `Scorer` for streams. Both run the stages that the command line runs."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeGuard, TypeVar

import anyio
import msgspec
import pyarrow as pa
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec import Struct

from batchfact import preparation
from batchfact.assembly import Assembler
from batchfact.config import RunConfig, Runtime
from batchfact.engines.base import Engine
from batchfact.errors import UsageError, nearest, root_cause
from batchfact.grouping import group_pairs
from batchfact.paradigms.fold import fold_outcome
from batchfact.pipeline import STREAM_BUFFER, Item, early_exit, produce, sampling
from batchfact.preparation import Method
from batchfact.progress import Progress
from batchfact.records import DocumentGroup, Outcome, Pair, Rejected, Unscored, Usage, Verdict
from batchfact.scheduler import Scheduler
from batchfact.settings import make_config
from batchfact.sink import VERDICT_FIELDS, verdict_columns
from batchfact.source import rows_of

if TYPE_CHECKING:
    import pandas as pd

PairLike = tuple[str | None, str | None] | Mapping[str, Any]
T = TypeVar("T")


class Scored(Struct, frozen=True, kw_only=True):
    """One pair's result: `row` counts the pairs as they came in; `usage` is what it cost."""

    row: int
    verdict: Verdict | Unscored
    usage: Usage


class Scorer:
    """A started engine that scores streams of pairs.

        async with Scorer(model="smollm2-135m", paradigm="sent-nli") as scorer:
            async for scored in scorer.score(pairs):
                print(scored.row, scored.verdict)

    Options are those of the command line with underscores: `window_sentences=2`, `threshold=0.4`, `engine_args={...}`.
    With `shots`, a pair on a document that is drawn from `demonstrations` is an error: what a stream will bring is not
    known when they are drawn, so leave such documents out of the file.

    Raises:
        UsageError: an unknown option or model, before anything loads.
        RunFailedError: the engine cannot start, or died.
    """

    def __init__(self, **options: Any) -> None:
        self.config = _config(options)
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.method: Method = await anyio.to_thread.run_sync(_method, self.config)
        async with AsyncExitStack() as stack:
            self.engine: Engine = await stack.enter_async_context(self.method.engine.open(self.method.spec))
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self._exit = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._tasks.cancel_scope.cancel()
        try:
            await self._exit.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as group:
            raise root_cause(group) from group

    async def score(
        self, pairs: Iterable[PairLike] | AsyncIterable[PairLike], *, look_ahead: int = 1024
    ) -> AsyncGenerator[Scored]:
        """Score pairs as they come; results come in the order in which they finish, each with its row.

        Args:
            pairs: (document, summary) tuples, or mappings with the document and summary columns.
            look_ahead: rows within which pairs of one document are brought together.
        """
        async with aclosing(self.outcomes(pairs, look_ahead=look_ahead)) as outcomes:
            async for outcome in outcomes:
                yield Scored(row=outcome.row, verdict=fold_outcome(outcome, self.config.fold), usage=outcome.usage)

    async def outcomes(
        self, pairs: Iterable[PairLike] | AsyncIterable[PairLike], *, look_ahead: int
    ) -> AsyncGenerator[Outcome]:
        """The same before folding, as a journal would keep it."""
        send_items, items = anyio.create_memory_object_stream[Item](STREAM_BUFFER)
        send_outcomes, outcomes = anyio.create_memory_object_stream[Outcome](STREAM_BUFFER)
        self._tasks.start_soon(self._produce, pairs, look_ahead, send_items)
        self._tasks.start_soon(self._answer, items, send_outcomes)
        async with outcomes:
            async for outcome in outcomes:
                yield outcome

    async def _produce(
        self,
        pairs: Iterable[PairLike] | AsyncIterable[PairLike],
        look_ahead: int,
        send_items: MemoryObjectSendStream[Item],
    ) -> None:
        async with send_items:
            with _until_reader_leaves():
                if isinstance(pairs, AsyncIterable):
                    await self._produce_chunks(pairs, look_ahead, send_items)
                else:
                    texts = (_texts(pair, self.config) for pair in pairs)
                    await produce(_groups(rows_of(texts), look_ahead), send_items.clone())

    async def _produce_chunks(
        self, pairs: AsyncIterable[PairLike], look_ahead: int, send_items: MemoryObjectSendStream[Item]
    ) -> None:
        """Group an async stream chunk by chunk: unlike an iterator it cannot be read ahead from a worker thread."""
        row, chunk = 0, list[tuple[str | None, str | None]]()
        numbers = itertools.count()
        async for pair in pairs:
            chunk.append(_texts(pair, self.config))
            if len(chunk) == look_ahead:
                await _send_chunk(chunk, row, numbers, send_items)
                row, chunk = row + len(chunk), []
        await _send_chunk(chunk, row, numbers, send_items)

    async def _answer(
        self,
        items: MemoryObjectReceiveStream[Item],
        send_outcomes: MemoryObjectSendStream[Outcome],
    ) -> None:
        assembler = Assembler(self.engine.tokenizer)
        scheduler = Scheduler(
            self.engine,
            assembler,
            self.method.paradigm,
            Progress(0),
            decides=early_exit(self.config),
            sampling=sampling(self.config),
        )
        async with items, send_outcomes:
            with _until_reader_leaves():
                await scheduler.run(_calibrated(items, assembler, self.method), send_outcomes)


def score(pairs: Any, **options: Any) -> Any:
    """Score pairs and wait for all of them.

    Args:
        pairs: a sequence of (document, summary) tuples or mappings, a pandas DataFrame, or a pyarrow Table.
        options: those of the command line with underscores: `model`, `paradigm`, `threshold`, ...

    Returns: for a sequence a list of `Verdict` and `Unscored`, in order; for a DataFrame or Table the same with the
        output's columns behind its own.

    Raises: UsageError for a wrong option or a missing column; RunFailedError if the engine cannot go on.
    """
    if isinstance(pairs, pa.Table):
        return _score_table(pairs, options)
    if _is_data_frame(pairs):
        table = _score_table(pa.Table.from_pandas(pairs, preserve_index=False), options)
        scored = table.to_pandas()
        scored.index = pairs.index
        return scored
    return [fold_outcome(outcome, _config(options).fold) for outcome in _score_all(list(pairs), options)]


def _score_table(table: pa.Table, options: dict[str, Any]) -> pa.Table:
    config = _config(options)
    check_table(table, config)
    columns = [config.identity.document_column, config.identity.summary_column]
    texts = list(zip(*(table.column(name).to_pylist() for name in columns), strict=True))
    arrays, _ = verdict_columns(_score_all(texts, options), config.fold)
    for field, array in zip(VERDICT_FIELDS, arrays, strict=True):
        table = table.append_column(field.with_name(config.columns.column_prefix + field.name), array)
    return table


def _score_all(pairs: Sequence[PairLike], options: dict[str, Any]) -> list[Outcome]:
    async def run() -> list[Outcome]:
        async with Scorer(**options) as scorer:
            outcomes = [outcome async for outcome in scorer.outcomes(pairs, look_ahead=max(len(pairs), 1))]
        return sorted(outcomes, key=lambda outcome: outcome.row)

    return run_to_end(run)


def run_to_end(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run async work from sync code; beside a running event loop (as in Jupyter) in a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return anyio.run(work)
    with ThreadPoolExecutor(1, "batchfact") as thread:
        return thread.submit(anyio.run, work).result()


def check_table(table: pa.Table, config: RunConfig) -> None:
    """Raises: UsageError if a column is missing."""
    for name in (config.identity.document_column, config.identity.summary_column):
        if name not in table.column_names:
            raise UsageError(f"there is no column {name!r}{nearest(name, table.column_names)}")


def _is_data_frame(pairs: object) -> TypeGuard[pd.DataFrame]:
    """Without importing pandas, which need not be installed."""
    pandas_module = sys.modules.get("pandas")
    return pandas_module is not None and isinstance(pairs, pandas_module.DataFrame)


def _config(options: dict[str, Any]) -> RunConfig:
    return make_config((), "", {name.replace("_", "-"): value for name, value in options.items()})


def _method(config: RunConfig) -> Method:
    log_file = None if config.runtime.verbose else Path(tempfile.gettempdir()) / f"batchfact-{os.getpid()}.log"
    return preparation.prepare_method(config, log_file=log_file, compiles=config.runtime.compile == "on")


def _texts(pair: PairLike, config: RunConfig) -> tuple[str | None, str | None]:
    if isinstance(pair, Mapping):
        return pair[config.identity.document_column], pair[config.identity.summary_column]
    document, summary = pair
    return document, summary


def _groups(rows: Iterator[Pair | Rejected], look_ahead: int) -> Iterator[Item]:
    """Groups in memory: pairs that are at hand need no spill files, but a very long sequence may."""
    with tempfile.TemporaryDirectory(prefix="batchfact-") as folder:
        yield from group_pairs(
            rows,
            mode="window",
            look_ahead_rows=look_ahead,
            look_ahead_bytes=Runtime().look_ahead_bytes,
            spill_dir=Path(folder),
        )


async def _calibrated(items: AsyncIterable[Item], assembler: Assembler, method: Method) -> AsyncGenerator[Item]:
    is_calibrated = False
    async for item in items:
        if not is_calibrated and isinstance(item, DocumentGroup):
            await anyio.to_thread.run_sync(preparation.calibrate, assembler, method, [item])
            is_calibrated = True
        yield item


@contextmanager
def _until_reader_leaves() -> Iterator[None]:
    """The reader of a stream may stop early; that is its right and ends the stages before it."""
    try:
        yield
    except anyio.BrokenResourceError:
        return
    except BaseExceptionGroup as group:
        _, others = group.split(anyio.BrokenResourceError)
        if others is not None:
            raise


async def _send_chunk(
    chunk: list[tuple[str | None, str | None]],
    first_row: int,
    numbers: Iterator[int],
    send_items: MemoryObjectSendStream[Item],
) -> None:
    for item in _groups(rows_of(chunk, first_row), max(len(chunk), 1)):
        numbered = msgspec.structs.replace(item, number=next(numbers)) if isinstance(item, DocumentGroup) else item
        await send_items.send(numbered)
