"""Cells run one after the other: those that can use the same engine in one process, which starts it once.

Cells flow in; outputs, and the reasons of those that failed, flow out. A process of their own gives an engine's memory
back whole, on the GPU too. What ends it (a crash, the system's out-of-memory killer) ends one cell: the next process
takes the others. The options lie beside the output in a file that `batchfact run --config` reads, so a cell can be run
by hand.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import IO

import msgspec
from msgspec import Struct

from batchfact.compare.cells import Cell, state_of
from batchfact.compare.parts import write_part
from batchfact.compare.series import DECODE, Ended, Order, Series
from batchfact.durable import durable_file
from batchfact.errors import BatchfactError, RunFailedError
from batchfact.stopping import EXIT_CODE
from batchfact.toml_text import toml_lines

Tell = Callable[[str], None]


class InterruptedComparisonError(BatchfactError):
    """The user stopped the experiment; finished cells and the rows of the begun one are kept."""

    exit_code = EXIT_CODE


def run_cells(cells: Sequence[Cell], results: Path, *, id_column: str, tell: Tell) -> dict[str, str]:
    """Run every cell that is not finished.

    Args:
        results: the folder in which the engines' logs lie too.
        id_column: what the parts of a data set are joined by.
        tell: hears a line for each cell, and what its run says on standard error.
    Returns: for the outputs of cells that failed, why.
    Raises: InterruptedComparisonError after a Ctrl-C, RunFailedError where the results folder cannot be written.
    """
    failed: dict[str, str] = {}
    numbers = {cell.output: f"[{number}/{len(cells)}]" for number, cell in enumerate(cells, 1)}
    with _stopping() as stopping:
        for engine, same in by_engine(cells).items():
            waiting = {cell.output: cell for cell in same}
            log_file = results / "engines" / f"{engine}.log"
            while waiting:
                series = Series(tuple(_order(cell, id_column) for cell in waiting.values()), str(log_file))
                said = _run(series, stopping, tell, numbers)
                if stopping.was_stopped or said.code == EXIT_CODE:
                    raise InterruptedComparisonError(
                        "stopped: finished rows are kept; the same command goes on from there"
                    )
                # A process that ends before its first run would end so for ever.
                done = said.ended or {next(iter(waiting)): None}
                for output, message in done.items():
                    if state_of(waiting.pop(output)) != "finished":
                        failed[output] = message or _reason(said.code, said.lines)
    return failed


def by_engine(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The cells that are not finished, by the name of their engine."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        if state_of(cell) != "finished":
            found.setdefault(cell.engine, []).append(cell)
    return found


def _order(cell: Cell, id_column: str) -> Order:
    """The cell's run, once its input and its options are written."""
    output = Path(cell.output)
    options = output.with_name(output.name + ".toml")
    try:
        if cell.part is not None:
            write_part(cell, cell.part, id_column)
        output.parent.mkdir(parents=True, exist_ok=True)
        with durable_file(options) as file:
            head = f"# batchfact run {cell.input} {cell.output} --config {options}\n"
            file.write((head + toml_lines(cell.options)).encode())
    except OSError as error:
        raise RunFailedError(f"{cell.output} cannot be written: {error}") from error
    return Order(cell.input, cell.output, str(options))


class _Stopping:
    """Who runs now, and whether the user has asked to stop."""

    def __init__(self) -> None:
        self.was_stopped = False
        self.child: subprocess.Popen[str] | None = None

    def watch(self, child: subprocess.Popen[str]) -> None:
        self.child = child
        if self.was_stopped:  # before there was anyone to tell
            child.send_signal(signal.SIGTERM)

    def hear(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # the form of a signal handler
        self.was_stopped = True
        # A terminal sends Ctrl-C to the child too; SIGTERM comes to this process alone.
        if number == signal.SIGTERM and self.child is not None:
            self.child.send_signal(signal.SIGTERM)


@contextlib.contextmanager
def _stopping() -> Iterator[_Stopping]:
    """Let a cell's run end in order on Ctrl-C and SIGTERM, instead of ending here before it."""
    stopping = _Stopping()
    before = {number: signal.signal(number, stopping.hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Said(Struct, frozen=True):
    """What became of a process: its exit code, its lines on standard error, and the runs that ended or were cut off.

    A run that was cut off has no message of its own.
    """

    code: int
    lines: list[str]
    ended: dict[str, str | None]


def _run(series: Series, stopping: _Stopping, tell: Tell, numbers: dict[str, str]) -> _Said:
    lines: list[str] = []
    ended: dict[str, str | None] = {}
    with subprocess.Popen(
        [sys.executable, "-m", "batchfact.cli.cells"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",  # what libraries write must not end the listener, or the run would wait for ever
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        stopping.watch(child)
        listener = Thread(target=_listen, args=(child.stderr, lines, tell))
        listener.start()
        with contextlib.suppress(BrokenPipeError):  # it has ended already: its exit code says why
            child.stdin.write(msgspec.json.encode(series).decode())
            child.stdin.close()
        for line in child.stdout:
            event = DECODE(line)
            if isinstance(event, Ended):
                ended[event.output] = event.message
                if event.message:
                    tell(f"error: {event.message}")
            else:
                ended[event.output] = None
                tell(f"{numbers[event.output]} {event.output}")
        listener.join()
        code = child.wait()
    stopping.child = None
    return _Said(code, lines, ended)


def _listen(stream: IO[str], lines: list[str], tell: Tell) -> None:
    for line in stream:
        if line.strip():
            lines.append(line.rstrip())
            tell(line.rstrip())


def _reason(code: int, said: Sequence[str]) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        return f"its process was ended by {name}" + (", perhaps for lack of memory" if name == "SIGKILL" else "")
    return said[-1] if said else f"exit code {code}"
