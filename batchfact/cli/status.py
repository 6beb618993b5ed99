"""`batchfact status`: how far a job is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from batchfact.watching import ArrayStatus, JobStatus


def status(
    output: Annotated[str, typer.Argument(help="The output of the run; its journal is beside it.")],
    journal: Annotated[str | None, typer.Option(help="The journal's folder (default: OUTPUT.journal).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object, for programs.")] = False,
) -> None:
    """Show rows done, rate, time left and errors of a job that goes on or has ended; the job is not disturbed."""
    from pathlib import Path

    import msgspec
    from rich.console import Console

    from batchfact.journal import default_folder, read_run
    from batchfact.watching import array_status, job_status

    folder = Path(journal) if journal else default_folder(output)
    array = array_status(folder) if read_run(folder) is None else None
    if as_json:
        print(msgspec.json.encode(array or job_status(folder)).decode())
    elif array is not None:
        Console().print(_array_table(output, array), markup=False)
    else:
        Console().print(_job_table(output, job_status(folder)), markup=False)


def _array_table(output: str, array: ArrayStatus) -> Table:
    from rich.table import Table

    from batchfact.durations import duration

    table = Table(title=output, title_justify="left", box=None, padding=(0, 2))
    for name in ("shard", "state", "rows done", "rows/s", "ETA", "message"):
        table.add_column(name, header_style="dim")
    for shard, status in array.shards.items():
        table.add_row(
            shard,
            status.state + (f" ({status.phase})" if status.phase else ""),
            _rows_done(status),
            f"{status.rows_per_s:,.2f}" if status.rows_per_s is not None else "",
            duration(status.eta_s) if status.eta_s is not None else "",
            status.message or "",
        )
    for shard in array.missing:
        table.add_row(shard, "not begun")
    table.add_row("all", "", f"{array.rows_done:,}", f"{array.rows_per_s:,.2f}" if array.rows_per_s is not None else "")
    return table


def _job_table(output: str, found: JobStatus) -> Table:
    from rich.table import Table

    from batchfact.durations import duration

    table = Table(title=output, title_justify="left", show_header=False, box=None, padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    table.add_row("state", found.state + (f" ({found.phase})" if found.phase else ""))
    table.add_row("rows done", _rows_done(found))
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
    _add_workers(table, found)
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
    return table


def _rows_done(status: JobStatus) -> str:
    """With the rows that there are, of which a shard knows about how many until it is finished."""
    if status.rows is None:
        return f"{status.rows_done:,}"
    if status.shard is not None:
        return f"{status.rows_done:,}" + ("" if status.state == "finished" else f" of about {status.rows:,}")
    return f"{status.rows_done:,} of {status.rows:,} ({status.rows_done / max(status.rows, 1):.1%})"


def _add_workers(table: Table, status: JobStatus) -> None:
    """Each with its rows and machine, and of a run that goes on how many are up."""
    is_running = status.state == "running"
    if status.workers and is_running:
        table.add_row("workers up", f"{sum(each.is_up for each in status.workers)} of {len(status.workers)}")
    for each in status.workers:
        again = f", started again {each.restarts:,} times" if each.restarts else ""
        where = (each.host or "not started") + (", down" if each.host and is_running and not each.is_up else "")
        table.add_row(f"worker {each.worker}", f"{each.rows:,} rows, {where}{again}")
