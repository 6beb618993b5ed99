"""`batchfact distill`: train a small scorer from labelled pairs; each command hands a file or a folder to the next."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from batchfact.cli.options import split_words
from batchfact.errors import UsageError

if TYPE_CHECKING:
    from batchfact.distill.building import Built

app = typer.Typer(no_args_is_help=True)

RecipeFile = Annotated[
    Path, typer.Option("--recipe", help="The TOML file that says what is trained, from what and how.")
]
ExamplesFile = Annotated[Path, typer.Argument(metavar="EXAMPLES", help="The file of training examples.")]
NUMBERS = "Numbers, comma-separated."


@app.command()
def synthesize(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="INPUT... OUTPUT", help="Parquet files with documents, then the file to write."),
    ],
    claims: Annotated[int, typer.Option(help="Most claims on a document.")] = 12,
    passage_words: Annotated[
        str | None,
        typer.Option(
            metavar="LEAST,MOST", help="Take a passage of so many words of each document (default: all of it)."
        ),
    ] = None,
    max_documents: Annotated[int | None, typer.Option(help="Draw so many documents of each file.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same file.")] = 0,
    document_column: Annotated[str, typer.Option(help="The column with the documents.")] = "document",
    where: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Only rows such as `domain != x`; may be repeated.")
    ] = None,
    true_summaries: Annotated[
        str | None,
        typer.Option(metavar="RULE", help="Rows whose summary is true, such as `label = 1`, to make claims of too."),
    ] = None,
) -> None:
    """Make labelled pairs from raw text: true claims taken from it, false ones with one thing changed."""
    from batchfact.distill.synthesizing import Plan
    from batchfact.distill.synthesizing import synthesize as make

    if len(paths) < 2:
        raise UsageError("synthesize takes at least an input and an output")
    plan = Plan(
        claims_a_document=claims,
        passage_words=_pair(passage_words),
        max_documents=max_documents,
        seed=seed,
        document_column=document_column,
        where=tuple(where or ()),
        true_summaries=true_summaries,
    )
    made = make(paths[:-1], paths[-1], plan)
    for how, number in made.items():
        print(f"{how.replace('_', ' '):25}{number:>9,}")
    print(f"{paths[-1]} is written")


@app.command()
def build(
    output: Annotated[
        Path, typer.Argument(metavar="EXAMPLES", help="The Parquet file to write; the recipe names the inputs.")
    ],
    recipe: RecipeFile,
    data: Annotated[Path, typer.Option(help="The folder that the recipe's paths lie in.")] = Path(),
    folds: Annotated[
        Path | None, typer.Option(help="Parquet with a fixed split: file (a data set's file name), id, fold.")
    ] = None,
    exclude_folds: Annotated[str | None, typer.Option(help=f"Folds that are for neither side. {NUMBERS}")] = None,
    test_folds: Annotated[
        str | None, typer.Option(help=f"Folds to test with (default: a share of the documents). {NUMBERS}")
    ] = None,
) -> None:
    """Make training examples from labelled pairs and from what teachers wrote about them (Xu 2024, section 4.1)."""
    from batchfact.distill.building import build as make
    from batchfact.distill.recipe import read_recipe
    from batchfact.distill.splits import Folds

    chosen = Folds(exclude=_numbers(exclude_folds, "--exclude-folds"), test=_numbers(test_folds, "--test-folds"))
    _print_built(make(read_recipe(recipe), output, data=data, folds_file=folds, folds=chosen))
    print(f"{output} is written")


@app.command()
def train(
    examples: ExamplesFile,
    output: Annotated[Path, typer.Argument(metavar="FOLDER", help="Checkpoints and the trained model go here.")],
    recipe: RecipeFile,
    start: Annotated[Path | None, typer.Option(help="An adapter of the same base to begin from.")] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Drop the training that the folder holds.")] = False,
) -> None:
    """Train the recipe's base on EXAMPLES. The same command goes on after a kill.

    On several GPUs: accelerate launch --config_file FILE -m batchfact distill train ...
    """
    from batchfact.distill.recipe import read_recipe

    chosen = read_recipe(recipe)
    _require_packages("train")
    from batchfact.distill.training import train as run

    trained = run(chosen, examples, output, start=start, restart=restart, tell=_tell())
    if not trained.is_main:
        return
    for name, value in trained.metrics.items():
        print(f"{name.removeprefix('eval_').replace('_', ' '):25}{value:>9.4f}")
    print(f"{trained.model} holds the model after {trained.steps:,} steps")


@app.command()
def export(
    trained: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A training's folder, a checkpoint, or an adapter.")
    ],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="The folder to write.")],
    recipe: RecipeFile,
    form: Annotated[
        Literal["adapter", "merged"] | None,
        typer.Option(help="An adapter alone, or all weights (default: as trained)."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Its name in the registry (default: the recipe's).")] = None,
    examples: Annotated[
        Path | None, typer.Option(help="What it was trained on, where the folder does not say it.")
    ] = None,
    metrics: Annotated[Path | None, typer.Option(help="JSON with measures for the model card.")] = None,
    register: Annotated[bool, typer.Option("--register/--no-register", help="Make the name known to `run`.")] = True,
) -> None:
    """Write a trained model as a folder with a model card, and register it."""
    from batchfact.distill.exporting import export as write
    from batchfact.distill.recipe import read_recipe

    done = write(
        trained,
        output,
        read_recipe(recipe),
        form=form,
        name=name,
        examples=examples,
        metrics=metrics,
        registers=register,
        tell=_tell(),
    )
    print(f"{done.folder} is written")
    if done.is_registered:
        print(f"{done.entry.name} is registered; use it with --model {done.entry.name}")


def _print_built(built: Built) -> None:
    """Table 7 of the paper, by data set."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("data set", "side", "documents", "summaries", "consistent", "mean tokens", "examples", "R-ratio"):
        table.add_column(heading, justify="left" if heading in {"data set", "side"} else "right")
    for each in built.counted:
        counts = (each.documents, each.summaries, each.consistent)
        table.add_row(
            each.data_set,
            each.split,
            *(f"{count:,}" for count in counts),
            f"{each.summary_tokens:.1f}",
            f"{each.examples:,}",
            f"{each.with_reasoning:.0%}",
        )
    Console().print(table)
    for reason, rows in built.left_out.items():
        if rows:
            print(f"left out, {reason}: {rows:,}")


def _require_packages(command: str) -> None:
    from importlib.util import find_spec

    missing = [name for name in ("torch", "peft", "accelerate", "sklearn", "matplotlib") if find_spec(name) is None]
    if missing:
        raise UsageError(f"distill {command} needs {', '.join(missing)}: pip install 'batchfact[distill]'")


def _tell() -> Callable[[str], None]:
    return lambda said: print(said, file=sys.stderr, flush=True)


def _numbers(text: str | None, option: str) -> frozenset[int]:
    words = split_words(text) or []
    if not all(word.isdecimal() for word in words):
        raise UsageError(f"{option} takes numbers, comma-separated, got {text!r}")
    return frozenset(map(int, words))


def _pair(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    words = split_words(text) or []
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        raise UsageError(f"--passage-words takes two numbers, LEAST,MOST, got {text!r}")
    return int(words[0]), int(words[1])
