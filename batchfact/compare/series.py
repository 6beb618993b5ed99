"""Cells that share an engine, one after the other in this process.

Orders flow in; an event for each beginning and each end flows out. It knows nothing of the experiment: an order is what
`batchfact run INPUT OUTPUT --config OPTIONS` would be given.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import anyio
import msgspec
from msgspec import Struct

from batchfact import pipeline
from batchfact.errors import BatchfactError, root_cause
from batchfact.lending import EngineLender
from batchfact.progress import Progress
from batchfact.settings import make_config
from batchfact.stopping import InterruptedRunError

Watch = Callable[[Progress], None]


class Order(Struct, frozen=True):
    """One run: its input, its output, and the file with its options."""

    input: str
    output: str
    options: str


class Began(Struct, frozen=True, tag="began"):
    """From now on what happens to the process happens to this output's run."""

    output: str


class Ended(Struct, frozen=True, tag="ended"):
    """The run has ended in order, in whatever way."""

    output: str
    message: str | None = None
    """Why it failed."""


Event = Began | Ended
DECODE = msgspec.json.Decoder(Event).decode


class Series(Struct, frozen=True):
    """Runs that can use one engine, and the file that its log goes to."""

    orders: tuple[Order, ...]
    log_file: str


async def run_series(
    series: Series, *, tell: Callable[[Event], None], display: Callable[[], AbstractContextManager[Watch]]
) -> None:
    """Run every order, whatever becomes of those before it.

    Args:
        tell: hears each event as it happens.
        display: shows one run, whose counters are given to what it yields.
    Raises: InterruptedRunError after a Ctrl-C.
    """
    try:
        async with anyio.create_task_group() as tasks:
            lender = EngineLender(tasks, Path(series.log_file))
            for order in series.orders:
                tell(Began(order.output))
                tell(Ended(order.output, await _run(order, lender, display)))
            await lender.close()
    except BaseExceptionGroup as group:
        raise root_cause(group) from group


async def _run(order: Order, lender: EngineLender, display: Callable[[], AbstractContextManager[Watch]]) -> str | None:
    """Why it failed; None where it did not."""
    try:
        config = make_config((order.input,), order.output, {}, file=Path(order.options))
        with display() as watch:
            await pipeline.run(config, watch=watch, engines=lender.lend)
    except InterruptedRunError:
        raise
    except BatchfactError as error:
        return str(error)
    return None
