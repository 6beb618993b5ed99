"""The command line: parses options, calls one function, prints what it returns.

Heavy imports wait until a command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import sys

import typer

from batchfact.cli import compare, distill, doctor, evaluate, explain, merge, models, plan, reduce, report, run, status
from batchfact.errors import BatchfactError

app = typer.Typer(
    name="batchfact",
    help="Score (document, summary) pairs for factual consistency, offline, with local LLMs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("plan")(plan.plan)
app.command("explain")(explain.explain)
app.command("reduce")(reduce.reduce)
app.command("merge")(merge.merge)
app.command("eval")(evaluate.evaluate)
app.command("compare")(compare.compare)
app.command("calibrate")(evaluate.calibrate)
app.command("report")(report.report)
app.command("status")(status.status)
app.command("doctor")(doctor.doctor)
app.add_typer(distill.app, name="distill", help="Train a small scorer: synthesize, build, train, export.")
app.add_typer(models.app, name="models", help="Models by name: list, show, pull, add.")


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    if version:
        from batchfact import __version__

        print(f"batchfact {__version__}")
        raise typer.Exit


def main() -> None:
    """The console script. Exit codes: 0 done, 1 failed, 2 usage, 3 too many unscored rows, 130 stopped by Ctrl-C."""
    try:
        app()
    except BatchfactError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
