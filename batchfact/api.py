"""The Python API: `score` for pairs at hand, `Scorer` for streams. Both run the stages that the command line runs."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import tempfile
import warnings
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeGuard, TypeVar

import anyio
import msgspec
import pyarrow as pa
from anyio.from_thread import start_blocking_portal
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec import Struct

from batchfact import preparation
from batchfact.assembly import Assembler
from batchfact.config import RunConfig, Runtime
from batchfact.errors import UsageError, nearest, root_cause
from batchfact.executors import local
from batchfact.executors.local import Item
from batchfact.grouping import group_pairs
from batchfact.paradigms.fold import fold_outcome
from batchfact.pipeline import STREAM_BUFFER, produce
from batchfact.preparation import Method
from batchfact.progress import Progress
from batchfact.records import DocumentGroup, Outcome, Pair, Rejected, Unscored, Usage, Verdict
from batchfact.settings import make_config
from batchfact.sink import VERDICT_FIELDS, verdict_columns
from batchfact.source import rows_of

if TYPE_CHECKING:
    import pandas as pd

Texts = tuple[str | None, str | None]
PairLike = Texts | Mapping[str, Any]
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
        self.config = config_of(options)
        self._exit = AsyncExitStack()
        self._is_proven = False

    async def __aenter__(self) -> Self:
        method = await anyio.to_thread.run_sync(_method, self.config)
        self.method: Method = method
        for note in method.notes:
            warnings.warn(note, stacklevel=2)
        self._assembler = Assembler(method.tokenizer)
        async with AsyncExitStack() as stack:
            progress = Progress(0)
            self._scheduler = await stack.enter_async_context(
                local.started(method, self._assembler, self.config, progress)
            )
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self._exit = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._tasks.cancel_scope.cancel()
        # Without the block's own error: a task group would wrap it.
        await self._exit.aclose()

    async def score(
        self, pairs: Iterable[PairLike] | AsyncIterable[PairLike], *, look_ahead: int = 1024
    ) -> AsyncGenerator[Scored]:
        """Score pairs as they come; results come in the order in which they finish, each with its row.

        An async stream is scored as its pairs arrive. An iterator is read ahead from a worker thread; one that waits
        for results before it gives more pairs should be made an async stream. Several calls may run side by side.

        Args:
            pairs: (document, summary) tuples, or mappings with the document and summary columns.
            look_ahead: rows within which pairs of one document are brought together.

        Raises: UsageError for something that is no pair; RunFailedError if the engine died.
        """
        async with aclosing(self.outcomes(pairs, look_ahead=look_ahead)) as outcomes:
            async for outcome in outcomes:
                yield Scored(row=outcome.row, verdict=fold_outcome(outcome, self.config.fold), usage=outcome.usage)

    async def outcomes(
        self, pairs: Iterable[PairLike] | AsyncIterable[PairLike], *, look_ahead: int
    ) -> AsyncGenerator[Outcome]:
        """The same before folding, as a journal would keep it."""
        send_outcomes, outcomes = anyio.create_memory_object_stream[Outcome](STREAM_BUFFER)
        failure: list[BaseException] = []
        self._tasks.start_soon(self._run_stream, pairs, look_ahead, send_outcomes, failure)
        async with outcomes:
            async for outcome in outcomes:
                yield outcome
        if failure:
            raise failure[0]

    async def _run_stream(
        self,
        pairs: Iterable[PairLike] | AsyncIterable[PairLike],
        look_ahead: int,
        send_outcomes: MemoryObjectSendStream[Outcome],
        failure: list[BaseException],
    ) -> None:
        """One stream's stages. Its failure is its own reader's to see: other streams of the scorer go on."""
        send_items, items = anyio.create_memory_object_stream[Item](STREAM_BUFFER)
        async with send_outcomes:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._produce, pairs, look_ahead, send_items)
                    tasks.start_soon(self._answer, items, send_outcomes)
            except BaseExceptionGroup as group:
                error = root_cause(group)
                # A reader that leaves early breaks the stream; that is its right.
                if not isinstance(error, anyio.BrokenResourceError):
                    failure.append(error)

    async def _produce(
        self,
        pairs: Iterable[PairLike] | AsyncIterable[PairLike],
        look_ahead: int,
        send_items: MemoryObjectSendStream[Item],
    ) -> None:
        if isinstance(pairs, AsyncIterable):
            async with send_items:
                await self._produce_chunks(pairs, look_ahead, send_items)
        else:
            texts = (_texts(pair, row, self.config) for row, pair in enumerate(pairs))
            await produce(groups_of(rows_of(texts), look_ahead), send_items)

    async def _produce_chunks(
        self, pairs: AsyncIterable[PairLike], look_ahead: int, send_items: MemoryObjectSendStream[Item]
    ) -> None:
        """Group what has arrived, at most `look_ahead` pairs at a time; a slow stream is not waited for."""
        send_texts, texts = anyio.create_memory_object_stream[Texts](look_ahead)

        async def read() -> None:
            async with send_texts:
                row = 0
                async for pair in pairs:
                    await send_texts.send(_texts(pair, row, self.config))
                    row += 1

        async with anyio.create_task_group() as tasks, texts:
            tasks.start_soon(read)
            row, numbers = 0, itertools.count()
            async for first in texts:
                chunk = [first]
                with suppress(anyio.WouldBlock, anyio.EndOfStream):
                    while len(chunk) < look_ahead:
                        chunk.append(texts.receive_nowait())
                await _send_chunk(chunk, row, numbers, send_items)
                row += len(chunk)

    async def _answer(
        self, items: MemoryObjectReceiveStream[Item], send_outcomes: MemoryObjectSendStream[Outcome]
    ) -> None:
        async with items:
            await self._scheduler.run(self._proven(items), send_outcomes)

    async def _proven(self, items: AsyncIterable[Item]) -> AsyncGenerator[Item]:
        """The items, with the assembly proven on the first document."""
        async for item in items:
            if not self._is_proven and isinstance(item, DocumentGroup):
                self._is_proven = True
                await anyio.to_thread.run_sync(preparation.prove_joins, self._assembler, self.method, item)
            yield item


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
    policy = config_of(options).fold
    return [fold_outcome(outcome, policy) for outcome in _score_all(list(pairs), options)]


def _score_table(table: pa.Table, options: dict[str, Any]) -> pa.Table:
    config = config_of(options)
    check_columns(table.column_names, config)
    return with_verdicts(table, _score_all(texts_of(table, config), options), config)


def texts_of(table: pa.Table, config: RunConfig) -> list[Texts]:
    """The documents and summaries of a table.

    Raises: UsageError for a column that holds anything but text or null.
    """
    names = (config.identity.document_column, config.identity.summary_column)
    columns = [table.column(name).to_pylist() for name in names]
    for name, column in zip(names, columns, strict=True):
        if kinds := {type(each).__name__ for each in column} - {"str", "NoneType"}:
            raise UsageError(f"the column {name!r} must hold text or null, got {', '.join(sorted(kinds))}")
    return list(zip(*columns, strict=True))


def with_verdicts(table: pa.Table, outcomes: Sequence[Outcome], config: RunConfig) -> pa.Table:
    """The table with the output's columns behind its own; `outcomes` are those of its rows, in order."""
    arrays, _ = verdict_columns(outcomes, config.fold)
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
    with start_blocking_portal("asyncio") as portal:
        future = portal.start_task_soon(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise


def check_columns(names: Sequence[str], config: RunConfig) -> None:
    """Raises: UsageError if a column is missing, or would stand there twice."""
    for name in (config.identity.document_column, config.identity.summary_column):
        if name not in names:
            raise UsageError(f"there is no column {name!r}{nearest(name, names)}")
    for field in VERDICT_FIELDS:
        if config.columns.column_prefix + field.name in names:
            raise UsageError(
                f"there is a column {config.columns.column_prefix + field.name!r} already; choose another column_prefix"
            )


def _is_data_frame(pairs: object) -> TypeGuard[pd.DataFrame]:
    """Without importing pandas, which need not be installed."""
    pandas_module = sys.modules.get("pandas")
    return pandas_module is not None and isinstance(pairs, pandas_module.DataFrame)


FILE_OPTIONS = frozenset(
    {"group", "look-ahead-rows", "look-ahead-bytes", "journal", "shard", "restart", "retry-status", "limit"}
    | {"executor", "ray-address", "workers", "gpus-per-worker", "worker-wait-seconds", "max-unscored"}
    | {"metrics-port", "metrics-host", "part-rows", "part-seconds", "keep-columns", "drop-document", "quiet"}
)
"""Options of a run over files, which mean nothing for pairs in memory."""


def config_of(options: dict[str, Any]) -> RunConfig:
    """Options with underscores as a configuration.

    Raises: UsageError for one that is unknown, wrong, or for files only.
    """
    named = {name.replace("_", "-"): value for name, value in options.items()}
    for name in FILE_OPTIONS & named.keys():
        raise UsageError(f"{name.replace('-', '_')} is for runs over files; pairs in memory have no use for it")
    return make_config((), "", named)


def _method(config: RunConfig) -> Method:
    log_file = None if config.runtime.verbose else Path(tempfile.gettempdir()) / f"batchfact-{os.getpid()}.log"
    return preparation.prepare_method(config, log_file=log_file, compiles=config.runtime.compile == "on")


def _texts(pair: PairLike, row: int, config: RunConfig) -> Texts:
    """A pair's two texts.

    Raises: UsageError, naming the row, for anything that is no pair of texts.
    """
    names = (config.identity.document_column, config.identity.summary_column)
    try:
        texts = tuple(pair[name] for name in names) if isinstance(pair, Mapping) else tuple(pair)
    except (KeyError, TypeError) as error:
        raise UsageError(f"pair {row} has no {' and '.join(map(repr, names))}: {error!r}") from error
    if len(texts) != 2 or not all(text is None or isinstance(text, str) for text in texts):
        kinds = ", ".join(type(text).__name__ for text in texts)
        raise UsageError(f"pair {row} must be a document and a summary, both text or None, got ({kinds})")
    return texts[0], texts[1]


def groups_of(rows: Iterator[Pair | Rejected], look_ahead: int) -> Iterator[Item]:
    """Groups in memory: pairs that are at hand need no spill files, but a very long sequence may."""
    with tempfile.TemporaryDirectory(prefix="batchfact-") as folder:
        yield from group_pairs(
            rows,
            mode="window",
            look_ahead_rows=look_ahead,
            look_ahead_bytes=Runtime().look_ahead_bytes,
            spill_dir=Path(folder),
        )


async def _send_chunk(
    chunk: list[Texts],
    first_row: int,
    numbers: Iterator[int],
    send_items: MemoryObjectSendStream[Item],
) -> None:
    for item in groups_of(rows_of(chunk, first_row), max(len(chunk), 1)):
        numbered = msgspec.structs.replace(item, number=next(numbers)) if isinstance(item, DocumentGroup) else item
        await send_items.send(numbered)
