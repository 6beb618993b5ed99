"""What each of vLLM's own processes runs before anything else, and where vLLM's log goes.

vLLM spawns its processes, and Python's spawn first imports the parent's main module in the child: a script without a
`__main__` guard would run again in there. While the engine starts, `stand_in_for_main` names this module as the main
one instead, so the child imports this file, which moves the child's output away from the terminal, keeps Ctrl-C (which
the terminal sends to every process) for the parent alone to handle, and ends the child when its parent is gone.

Imports the standard library only: it runs before torch and vLLM load.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TextIO

LOG_FILE_VARIABLE = "BATCHFACT_ENGINE_LOG"
PARENT_VARIABLE = "BATCHFACT_ENGINE_PARENT"
PARENT_CHECK_S = 0.5
LOG_FORMAT = "%(levelname)s %(asctime)s %(processName)s [%(filename)s:%(lineno)d] %(message)s"
LOGGERS = ("vllm", "transformers", "py.warnings")
MODULE = "batchfact.engines.vllm_process"


@contextmanager
def stand_in_for_main() -> Iterator[None]:
    """Let processes spawned inside import this module where they would import the caller's main one."""
    main = sys.modules["__main__"]
    stand_in = ModuleType("__main__")
    stand_in.__spec__ = ModuleSpec(MODULE, None)
    sys.modules["__main__"] = stand_in
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        del os.environ[PARENT_VARIABLE]


@contextmanager
def log_to(stream: TextIO) -> Iterator[None]:
    """Send the log of vLLM and of the libraries below it to `stream`, and to nothing else."""
    before = {name: (list(logger.handlers), logger.propagate, logger.level) for name, logger in _loggers()}
    direct_log(stream)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for name, logger in _loggers():
            logger.handlers[:], logger.propagate, level = before[name]
            logger.setLevel(level)


def direct_log(stream: TextIO) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    for name, logger in _loggers():
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO if name == "vllm" else logging.WARNING)


def prepare_child() -> None:
    """Run in a process of vLLM's before it imports vLLM."""
    # Threads and processes started from here inherit the mask, and vLLM's own handler for the signal never runs.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # Asking the system for the parent here would be too late for one that died meanwhile.
    parent = int(os.environ[PARENT_VARIABLE])
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    threading.Thread(target=_end_with_parent, args=(parent,), name="end-with-parent", daemon=True).start()
    log_file = os.environ.get(LOG_FILE_VARIABLE)
    if log_file is None:
        os.dup2(2, 1)  # standard output may be the user's data
    else:
        target = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(target, 1)
        os.dup2(target, 2)
        os.close(target)
    direct_log(sys.stderr)


def _end_with_parent(parent: int) -> None:
    """End at once when the parent is gone: by itself the engine would go on holding memory and cores."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)


def _loggers() -> list[tuple[str, logging.Logger]]:
    return [(name, logging.getLogger(name)) for name in LOGGERS]


if __name__ == "__mp_main__":
    prepare_child()
