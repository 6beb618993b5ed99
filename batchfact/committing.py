"""Takes finished outcomes to the journal in parts: one when enough rows have come, or when enough time has passed."""

from __future__ import annotations

from collections.abc import Callable

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from batchfact.journal import Journal
from batchfact.records import Outcome

FIRST_SECONDS = 1.0
"""The first part waits so long after the first outcome, and each next one twice as long, up to `max_seconds`: whoever
watches a run sees its first rows soon."""


class Committer:
    """A killed run loses at most the rows that wait here: `max_rows`, or those of the last `max_seconds`.

    Args:
        committed: called with every part once it is durable.
    """

    def __init__(
        self, journal: Journal, *, max_rows: int, max_seconds: float, committed: Callable[[list[Outcome]], None]
    ) -> None:
        self.journal = journal
        self.max_rows = max_rows
        self.max_seconds = max_seconds
        self.committed = committed
        self._part: list[Outcome] = []
        self._has_begun = anyio.Event()
        self._lock = anyio.Lock()

    async def run(self, outcomes: MemoryObjectReceiveStream[Outcome]) -> None:
        """Commit until the stream ends. When another stage fails, what had arrived is still committed."""
        async with outcomes:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._flush_by_time)
                    async for outcome in outcomes:
                        self._part.append(outcome)
                        self._has_begun.set()
                        if len(self._part) >= self.max_rows:
                            await self._flush()
                    tasks.cancel_scope.cancel()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._flush()

    async def _flush_by_time(self) -> None:
        await self._has_begun.wait()
        seconds = min(FIRST_SECONDS, self.max_seconds)
        while True:
            await anyio.sleep(seconds)
            await self._flush()
            seconds = min(2 * seconds, self.max_seconds)

    async def _flush(self) -> None:
        async with self._lock:
            part, self._part = self._part, []
            if not part:
                return
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self.journal.append, part)
            self.committed(part)
            await anyio.to_thread.run_sync(self.journal.compact_if_needed)
