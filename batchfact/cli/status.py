"""`batchfact status`: how far a job is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from batchfact.watching import WorkerStatus


def status(
    output: Annotated[str, typer.Argument(help="The output of the run; its journal is beside it.")],
    journal: Annotated[str | None, typer.Option(help="The journal's folder (default: OUTPUT.journal).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object, for programs.")] = False,
) -> None:
    """Show rows done, rate, time left and errors of a job that goes on or has ended; the job is not disturbed."""
    from pathlib import Path

    from batchfact.journal import default_folder
    from batchfact.watching import job_status

    found = job_status(Path(journal) if journal else default_folder(output))
    if as_json:
        import msgspec

        print(msgspec.json.encode(found).decode())
        return

    from rich.console import Console
    from rich.table import Table

    from batchfact.cli.display import duration

    table = Table(title=output, title_justify="left", show_header=False, box=None, padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    table.add_row("state", found.state + (f" ({found.phase})" if found.phase else ""))
    total = "" if found.rows is None else f" of {found.rows:,} ({found.rows_done / max(found.rows, 1):.1%})"
    table.add_row("rows done", f"{found.rows_done:,}{total}")
    if found.rows_per_s is not None:
        table.add_row("rows/s", f"{found.rows_per_s:,.2f}")
    if found.eta_s is not None:
        table.add_row("ETA", duration(found.eta_s))
    for name, rows in [*sorted(found.labels.items()), *sorted(found.statuses.items())]:
        table.add_row(name, f"{rows:,}")
    if found.engine_restarts:
        table.add_row("engine started again", f"{found.engine_restarts:,}")
    if found.requests_given_up:
        table.add_row("requests that ended the engine", f"{found.requests_given_up:,}")
    _add_workers(table, found.workers)
    table.add_row("runs", f"{found.runs:,}")
    if found.started:
        table.add_row("last run began", found.started)
        table.add_row("last event", found.updated)
    if found.exit_code is not None:
        table.add_row("exit code", str(found.exit_code))
    if found.message:
        table.add_row("message", found.message)
    for warning in found.warnings:
        table.add_row("warning", warning)
    Console().print(table, markup=False)


def _add_workers(table: Table, workers: Sequence[WorkerStatus]) -> None:
    """How many there are, and each with its rows and machine."""
    if workers:
        table.add_row("workers up", f"{sum(each.is_up for each in workers)} of {len(workers)}")
    for each in workers:
        again = f", started again {each.restarts:,} times" if each.restarts else ""
        where = (each.host or "not started yet") if each.is_up or not each.host else f"{each.host}, down"
        table.add_row(f"worker {each.worker}", f"{each.rows:,} rows, {where}{again}")
