"""`batchfact doctor`: what is wrong with this machine or installation, and how to put it right."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(
    model: Annotated[str | None, typer.Option(help="The model to look for (default: that of run).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON list, for programs.")] = False,
) -> None:
    """Check installation, GPU, memory, model cache and disk, and say what to fix. Exit 1 if something is wrong."""
    from batchfact.config import DEFAULT_MODEL
    from batchfact.diagnosis import diagnose

    checks = diagnose(model or DEFAULT_MODEL)
    if as_json:
        import msgspec

        print(msgspec.json.encode(checks).decode())
    else:
        from rich.console import Console
        from rich.markup import escape

        console = Console(soft_wrap=True, highlight=False)
        colours = {"ok": "green", "warning": "yellow", "error": "red"}
        for check in checks:
            console.print(f"[{colours[check.level]}]{check.level:8}[/]{escape(f'{check.name}: {check.found}')}")
            if check.fix and check.level != "ok":
                console.print(f"        fix: {escape(check.fix)}")
    if any(check.level == "error" for check in checks):
        raise typer.Exit(1)
