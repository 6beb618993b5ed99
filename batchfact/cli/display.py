"""What a run shows: a live display on a terminal, plain lines elsewhere, and the closing table.

It reads counters only.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Self

import psutil
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from batchfact.durations import duration
from batchfact.pipeline import RunReport
from batchfact.progress import Progress
from batchfact.sink import Totals

LINE_SECONDS = 10.0
REFRESHES_PER_SECOND = 2


class RunDisplay(AbstractContextManager["RunDisplay"]):
    """Shows a run's progress on standard error until the block ends; `quiet` shows nothing."""

    def __init__(self, *, quiet: bool) -> None:
        self.console = Console(stderr=True)
        self.progress: Progress | None = None
        self._live: Live | None = None
        self._lines: _LineWriter | None = None
        if quiet:
            return
        if self.console.is_terminal:
            self._live = Live(
                get_renderable=self._render,
                console=self.console,
                refresh_per_second=REFRESHES_PER_SECOND,
                transient=True,
            )
        else:
            self._lines = _LineWriter(self._line)

    def watch(self, progress: Progress) -> None:
        self.progress = progress

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        if self._lines:
            self._lines.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
        if self._lines:
            self._lines.stop()

    def _render(self) -> RenderableType:
        return progress_view(self.progress) if self.progress else Text("checking the input and the model")

    def _line(self) -> str | None:
        return progress_line(self.progress) if self.progress else None


@contextmanager
def shown(*, quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Show one run in the block, whose counters are given to what is yielded; its warnings come at the end."""
    display = RunDisplay(quiet=quiet)
    try:
        with display:
            yield display.watch
    finally:
        for warning in display.progress.warnings if display.progress else ():
            print(f"warning: {warning}", file=sys.stderr)


class _LineWriter:
    """Prints a line every ten seconds, and whenever the phase changes, from a thread of its own."""

    def __init__(self, line: Callable[[], str | None]) -> None:
        self._line = line
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress lines", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        last_phase, due_at = "", 0.0
        while not self._ended.wait(0.2):
            line = self._line()
            if line is None:
                continue
            phase = line.partition(":")[0]
            if phase != last_phase or time.monotonic() >= due_at:
                print(line, file=sys.stderr, flush=True)
                last_phase, due_at = phase, time.monotonic() + LINE_SECONDS


def progress_line(progress: Progress) -> str:
    """One plain line: `scoring: 120/475 rows, 4.1 pairs/s, ...`."""
    words = [f"{_rows_so_far(progress):,}/{progress.num_rows:,} rows"]
    words += [f"{name} {text}" for name, text in _figures(progress)]
    return f"{progress.phase}: " + ", ".join(words)


def progress_view(progress: Progress) -> RenderableType:
    """The live display: phase, bar, figures, rows per status."""
    done = _rows_so_far(progress)
    head = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=max(progress.num_rows, 1), completed=done, width=40)
    head.add_row(Text(progress.phase, style="bold"), bar, f"{done:,}/{progress.num_rows:,} rows")
    figures = Table.grid(padding=(0, 2))
    for name, text in _figures(progress):
        figures.add_row(Text(name, style="dim"), text)
    return Group(head, figures)


def _rows_so_far(progress: Progress) -> int:
    """Rows committed, or rows written while the output is being written."""
    return progress.num_merged or progress.num_resumed + progress.num_done


def _figures(progress: Progress) -> list[tuple[str, str]]:
    figures = [("elapsed", duration(progress.elapsed_s))]
    if progress.eta_s is not None and progress.phase == "scoring":
        figures.append(("ETA", duration(progress.eta_s)))
    if progress.pairs_per_s:
        figures.append(("pairs/s", f"{progress.pairs_per_s:,.2f}"))
    if progress.usage.prompt and progress.scoring_s:
        figures.append(("prompt tokens/s", f"{progress.usage.prompt / progress.scoring_s:,.0f}"))
        figures.append(("cached", f"{progress.cached_share or 0:.0%}"))
    if progress.workers:
        num_up = sum(each.is_up for each in progress.workers.values())
        figures.append(("workers", f"{num_up}/{len(progress.workers)}"))
    if progress.phase == "scoring":
        figures.append(("in flight", f"{progress.num_in_flight:,}"))
    if progress.num_restarts:
        figures.append(("engine restarts", f"{progress.num_restarts:,}"))
    figures += [(status, f"{rows:,}") for status, rows in sorted(progress.statuses.items())]
    return figures


def closing_table(report: RunReport) -> Table:
    """Labels, statuses, speed and cost of a finished run."""
    totals, progress = report.totals, report.progress
    shard = report.config.runtime.shard
    title = report.config.output if shard is None else f"{report.config.output}, shard {shard} (not written yet)"
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_row("rows", f"{totals.rows:,}")
    for label, rows in sorted(totals.labels.items()):
        table.add_row(label, f"{rows:,}")
    for status, rows in sorted(totals.statuses.items()):
        table.add_row(f"status {status}", f"{rows:,}")
    table.add_row("findings", f"{totals.findings:,}")
    if totals.excerpted:
        table.add_row("of them by parts of the document", f"{totals.excerpted:,}")
    if progress.num_resumed:
        table.add_row("rows from the journal", f"{progress.num_resumed:,}")
    if progress.pairs_per_s:
        table.add_row("pairs/s (start-up left out)", f"{progress.pairs_per_s:,.2f}")
    usage = totals.usage
    table.add_row("prompt tokens", f"{usage.prompt:,}")
    if usage.prompt:
        table.add_row("of them from the prefix cache", f"{usage.cached:,} ({usage.cached / usage.prompt:.1%})")
    table.add_row("generated tokens", f"{usage.output:,}")
    if progress.num_restarts:
        table.add_row("engine started again", f"{progress.num_restarts:,}")
    if progress.num_given_up:
        table.add_row("requests that ended the engine", f"{progress.num_given_up:,}")
    table.add_row("time", duration(progress.elapsed_s))
    table.add_row("peak memory (without the engine)", f"{peak_memory_bytes() / 2**30:.2f} GiB")
    return table


def totals_table(output: str, totals: Totals) -> Table:
    """Labels and statuses of an output that was written without a run."""
    table = Table(title=output, title_justify="left", show_header=False, box=None, padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_row("rows", f"{totals.rows:,}")
    for name, rows in [*sorted(totals.labels.items()), *sorted(totals.statuses.items())]:
        table.add_row(name, f"{rows:,}")
    return table


def peak_memory_bytes() -> int:
    """This process's highest resident memory so far."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
