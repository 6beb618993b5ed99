"""Ctrl-C: once ends the run in order, twice ends it at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import psutil

from batchfact.errors import BatchfactError

EXIT_CODE = 130


class InterruptedRunError(BatchfactError):
    """The user stopped the run; finished rows are in the journal."""

    exit_code = EXIT_CODE

    def __init__(self, journal: Path, num_rows: int) -> None:
        super().__init__(
            f"stopped: {num_rows:,} rows of this run are kept in {journal}; the same command goes on from there"
        )


class Stopping:
    """`scope` is cancelled by the first signal; `was_stopped` then says so."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.was_stopped = False

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Listen for SIGINT and SIGTERM in the block; only the main thread can, elsewhere nothing is listened for."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen)
            yield
            tasks.cancel_scope.cancel()

    async def _listen(self) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                if self.was_stopped:
                    end_at_once()
                self.was_stopped = True
                sys.stderr.write("\nstopping: keeping the finished rows (again to stop at once)\n")
                self.scope.cancel()


def end_at_once() -> None:
    """End this process and the engine's without any clean-up; the journal holds what was committed."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()
    sys.stderr.write("\x1b[?25h")
    sys.stderr.flush()
    os._exit(EXIT_CODE)
