"""Cells run one after the other, each as `batchfact run` in a process of its own.

Cells flow in; outputs, and the reasons of those that failed, flow out. Its own process gives an engine's memory back
whole, on the GPU too, and what ends it (a crash, the system's out-of-memory killer) ends no other cell. The options lie
beside the output in a file that `batchfact run --config` reads, so a cell can be run by hand.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from batchfact.compare.cells import Cell, state_of
from batchfact.compare.parts import write_part
from batchfact.durable import durable_file
from batchfact.errors import BatchfactError, RunFailedError
from batchfact.stopping import EXIT_CODE
from batchfact.toml_text import toml_lines

Tell = Callable[[str], None]


class InterruptedComparisonError(BatchfactError):
    """The user stopped the experiment; finished cells and the rows of the begun one are kept."""

    exit_code = EXIT_CODE


def run_cells(cells: Sequence[Cell], *, id_column: str, tell: Tell) -> dict[str, str]:
    """Run every cell that is not finished.

    Args:
        id_column: what the parts of a data set are joined by.
        tell: hears a line for each cell, and what its run says on standard error.
    Returns: for the outputs of cells that failed, why.
    Raises: InterruptedComparisonError after a Ctrl-C, RunFailedError where the results folder cannot be written.
    """
    failed: dict[str, str] = {}
    with _stopping() as stopping:
        for number, cell in enumerate(cells, 1):
            if state_of(cell) == "finished":
                continue
            tell(f"[{number}/{len(cells)}] {cell.output}")
            try:
                command = _prepared(cell, id_column)
            except OSError as error:
                raise RunFailedError(f"{cell.output} cannot be written: {error}") from error
            code, said = (EXIT_CODE, []) if stopping.was_stopped else _run(command, stopping, tell)
            if stopping.was_stopped or code == EXIT_CODE:
                raise InterruptedComparisonError("stopped: finished rows are kept; the same command goes on from there")
            if state_of(cell) != "finished":
                failed[cell.output] = _reason(code, said)
    return failed


def _prepared(cell: Cell, id_column: str) -> list[str]:
    """The cell's command line, once its input and its options are written."""
    if cell.part is not None:
        write_part(cell, cell.part, id_column)
    output = Path(cell.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    options = output.with_name(output.name + ".toml")
    with durable_file(options) as file:
        head = f"# batchfact run {cell.input} {cell.output} --config {options}\n"
        file.write((head + toml_lines(cell.options)).encode())
    return [sys.executable, "-m", "batchfact", "run", cell.input, cell.output, "--config", str(options)]


class _Stopping:
    """Who runs now, and whether the user has asked to stop."""

    def __init__(self) -> None:
        self.was_stopped = False
        self.child: subprocess.Popen[str] | None = None

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


def _run(command: Sequence[str], stopping: _Stopping, tell: Tell) -> tuple[int, list[str]]:
    """The exit code, and the lines on standard error."""
    said: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as child:
        stopping.child = child
        assert child.stderr is not None
        for line in child.stderr:
            if line.strip():
                said.append(line.rstrip())
                tell(line.rstrip())
        code = child.wait()
    stopping.child = None
    return code, said


def _reason(code: int, said: Sequence[str]) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        return f"its process was ended by {name}" + (", perhaps for lack of memory" if name == "SIGKILL" else "")
    errors = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
    return (errors or said or [f"exit code {code}"])[-1]
