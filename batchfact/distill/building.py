"""`batchfact distill build`: labelled files and teachers' outputs become the file of training examples.

A recipe and its files flow in; the file and a report (Xu 2024, Table 7) flow out. It needs the base model's tokenizer,
never its weights.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from batchfact import __version__
from batchfact.config import Identity, Paradigm
from batchfact.distill.duplicates import near_duplicate_clusters
from batchfact.distill.example_files import Made, Origin, Placed, write_examples
from batchfact.distill.examples import make_examples, plain_sentences
from batchfact.distill.labelled import Labelled, read_labelled
from batchfact.distill.recipe import Recipe
from batchfact.distill.splits import Folds, Row, Split, assign_sides
from batchfact.distill.teachers import Answers, read_teacher
from batchfact.distill.weights import balanced_weights
from batchfact.engines.tokenizer import FastTokenizer, load_tokenizer
from batchfact.errors import UsageError
from batchfact.models import ModelEntry, find_model, locate, model_digest
from batchfact.models.registry import TrainedMode
from batchfact.output_files import refuse_overwriting
from batchfact.paradigms import template_names
from batchfact.preparation import make_prompts
from batchfact.prompts.loader import PromptBook
from batchfact.records import Label


class Counted(Struct, frozen=True, kw_only=True):
    """One side of one data set, or of all: Table 7's figures and what is behind them.

    `examples` are prompts, `with_reasoning` the share of them that learn reasoning (R-ratio), `summary_tokens` the mean
    length of the summaries in the base model's tokens.
    """

    data_set: str
    split: Split
    summaries: int
    consistent: int
    documents: int
    examples: int
    with_reasoning: float
    summary_tokens: float


class Built(Struct, frozen=True, kw_only=True):
    """What was built: counts by data set and side, and rows that were left out by reason."""

    counted: tuple[Counted, ...]
    left_out: dict[str, int]


class Kept(Struct, frozen=True, kw_only=True):
    """A labelled pair on its side."""

    pair: Labelled
    split: Split
    document_key: str


NO_FOLDS = Folds()


def build(
    recipe: Recipe, output: Path, *, data: Path, folds_file: Path | None = None, folds: Folds = NO_FOLDS
) -> Built:
    """Write the training examples of `recipe` to `output`; the recipe's paths are below `data`.

    Raises: UsageError for a recipe, file, model or split that cannot be used, and for an output that is an input.
    """
    refuse_overwriting(output, _read_files(recipe, data, folds_file))
    base = base_entry(recipe)
    folder = locate(base)
    tokenizer = load_tokenizer(folder)
    prompts = _prompts(recipe, base, tokenizer)
    left_out: Counter[str] = Counter()
    pairs: list[Labelled] = []
    for entry in recipe.data:
        found, unusable = read_labelled(entry, data)
        pairs += found
        left_out["no text or no label"] += unusable
    kept = _split(recipe, pairs, _read_folds(folds_file, recipe, folds), folds)
    left_out["excluded by its fold, or a near duplicate on the other side"] = len(pairs) - len(kept)
    if not any(each.split == "train" for each in kept):
        raise UsageError("no row is left to train on; see the recipe's sides, rules and folds")
    wanted = frozenset((each.pair.document, each.pair.summary) for each in kept)
    teachers = {teacher.name: read_teacher(teacher, data, wanted) for teacher in recipe.teachers}
    placed = list(_place(recipe, kept, teachers, prompts))
    made = Made(
        recipe=recipe.name,
        base=recipe.base,
        base_digest=model_digest(folder),
        prompts=recipe.prompts,
        prompt_style=base.prompt_style,
        prompt_digests={name: prompts.digests[name] for name in trained_templates(recipe)},
        modes=trained_modes(recipe),
        origins=_origins(recipe, kept),
        batchfact_version=__version__,
    )
    write_examples(output, iter(placed), made)
    return Built(counted=tuple(_count(recipe, kept, placed, tokenizer)), left_out=dict(left_out))


def base_entry(recipe: Recipe) -> ModelEntry:
    """The base model with the recipe's prompts in place of its own.

    Raises: UsageError for a model that is not known, or that has an encoder.
    """
    entry = find_model(recipe.base)
    style = recipe.prompt_style or entry.prompt_style
    if "encoder-decoder" in (style, entry.prompt_style):
        raise UsageError(f"{recipe.base} is an encoder-decoder; a scorer is trained from a decoder")
    return msgspec.structs.replace(entry, prompts=recipe.prompts, prompt_style=style)


def trained_modes(recipe: Recipe) -> tuple[TrainedMode, ...]:
    """The paradigms and modes that the recipe's examples tune a model for."""
    return tuple(
        TrainedMode(paradigm=paradigm, reasoning=reasoning)
        for paradigm in _paradigms(recipe)
        for reasoning in ((True, False) if recipe.build.reasoning else (False,))
    )


def _paradigms(recipe: Recipe) -> list[Paradigm]:
    units = {unit for entry in recipe.data for unit in entry.units}
    named: tuple[tuple[str, Paradigm], ...] = (("summary", "summ-nli"), ("window", "sent-nli"))
    return [paradigm for unit, paradigm in named if unit in units]


def trained_templates(recipe: Recipe) -> list[str]:
    """The prompts that the recipe's examples are rendered with."""
    return [
        name
        for mode in trained_modes(recipe)
        for name in template_names(Identity(paradigm=mode.paradigm), reasoning=mode.reasoning)
    ]


def _prompts(recipe: Recipe, base: ModelEntry, tokenizer: FastTokenizer) -> PromptBook:
    """The templates as a run compiles them, with every label word checked."""
    books = [
        make_prompts(Identity(paradigm=mode.paradigm), base, tokenizer, reasoning=mode.reasoning)
        for mode in trained_modes(recipe)
    ]
    return books[0]


def _split(recipe: Recipe, pairs: Sequence[Labelled], fold_of: dict[tuple[str, str], int], folds: Folds) -> list[Kept]:
    entries = {entry.name: entry for entry in recipe.data}
    keys = _document_keys(pairs)
    rows = [
        Row(
            cluster=keys[pair.document],
            side=entries[pair.data_set].side,
            is_synthetic=entries[pair.data_set].synthetic,
            fold=fold_of.get((pair.data_set, pair.id)),
        )
        for pair in pairs
    ]
    sides = assign_sides(rows, folds, test_share=recipe.build.test_share, seed=recipe.build.seed)
    return [
        Kept(pair=pair, split=side, document_key=keys[pair.document])
        for pair, side in zip(pairs, sides, strict=True)
        if side
    ]


def _document_keys(pairs: Sequence[Labelled]) -> dict[str, str]:
    """For each document the least of the digests of its near duplicates, so that a key is the same in any order."""
    documents = sorted({pair.document for pair in pairs})
    clusters = near_duplicate_clusters(documents).tolist()
    least: dict[int, str] = {}
    for document, cluster in zip(documents, clusters, strict=True):
        digest = hashlib.blake2b(document.encode(), digest_size=8).hexdigest()
        least[cluster] = min(least.get(cluster, digest), digest)
    return {document: least[cluster] for document, cluster in zip(documents, clusters, strict=True)}


def _read_files(recipe: Recipe, data: Path, folds_file: Path | None) -> Iterator[Path]:
    """All files with rows that the recipe has read."""
    yield from (data / entry.path for entry in recipe.data)
    yield from (data / file for teacher in recipe.teachers for file in (*teacher.summ_nli, *teacher.sent_nli))
    yield from [folds_file] if folds_file else []


def _read_folds(file: Path | None, recipe: Recipe, folds: Folds) -> dict[tuple[str, str], int]:
    """(data set, id) to fold, from a Parquet file with the columns file (a path's stem), id and fold."""
    if file is None:
        if folds.exclude or folds.test:
            raise UsageError("--exclude-folds and --test-folds need --folds FILE")
        return {}
    try:
        rows = pq.read_table(file, columns=["file", "id", "fold"]).to_pylist()
    except (OSError, pa.ArrowException, KeyError) as error:
        raise UsageError(
            f"--folds {file} is no Parquet file with the columns file, id and fold ({str(error).splitlines()[0]})"
        ) from error
    names: dict[str, list[str]] = defaultdict(list)
    for entry in recipe.data:
        names[Path(entry.path).stem].append(entry.name)
    return {(name, str(row["id"])): int(row["fold"]) for row in rows for name in names.get(row["file"], ())}


def _place(recipe: Recipe, kept: Sequence[Kept], teachers: dict[str, Answers], prompts: PromptBook) -> Iterator[Placed]:
    """Examples with their weights, those of one document together."""
    entries = {entry.name: entry for entry in recipe.data}
    weights = _weights(recipe, kept)
    supported: dict[str, set[str]] = defaultdict(set)
    for each in kept:
        if each.pair.label == "consistent":
            supported[each.pair.document].update(plain_sentences(each.pair.summary))
    for each in sorted(kept, key=lambda each: (each.split, each.document_key, each.pair.document)):
        entry = entries[each.pair.data_set]
        preferred = [teachers[name] for name in (entry.teachers if entry.teachers is not None else teachers)]
        examples = make_examples(
            each.pair,
            entry,
            preferred,
            prompts,
            reasoning=recipe.build.reasoning,
            supported=supported[each.pair.document],
        )
        for example in examples:
            weight = weights.get((entry.name, each.pair.label), 1.0)
            yield Placed(
                example=example,
                split=each.split,
                weight=weight if entry.example_weight is None else entry.example_weight,
                document_key=each.document_key,
            )


def _weights(recipe: Recipe, kept: Sequence[Kept]) -> dict[tuple[str, Label], float]:
    """Weights by data set and label; sets with a fixed example weight are left out, but their labels count as seen."""
    fixed = {entry.name for entry in recipe.data if entry.example_weight is not None}
    trained = Counter((each.pair.data_set, each.pair.label) for each in kept if each.split == "train")
    if len(labels := {label for _, label in trained}) < 2:
        raise UsageError(
            f"all training rows are {', '.join(labels)}: nothing can be learnt from one label; add data of the other"
        )
    return balanced_weights(
        {key: count for key, count in trained.items() if key[0] not in fixed},
        {entry.name: entry.weight for entry in recipe.data},
        balance=recipe.build.balance,
        most=recipe.build.max_weight,
    )


def _origins(recipe: Recipe, kept: Sequence[Kept]) -> tuple[Origin, ...]:
    rows = Counter(each.pair.data_set for each in kept if each.split == "train")
    return tuple(
        Origin(name=entry.name, licence=entry.licence, rows=rows[entry.name])
        for entry in recipe.data
        if rows[entry.name]
    )


def _count(
    recipe: Recipe, kept: Sequence[Kept], placed: Sequence[Placed], tokenizer: FastTokenizer
) -> Iterator[Counted]:
    """Each data set's sides, then both sides over all."""
    names = [entry.name for entry in recipe.data]
    for data_set in (*names, "all"):
        for split in ("train", "test"):
            pairs = [each for each in kept if each.split == split and data_set in (each.pair.data_set, "all")]
            if not pairs:
                continue
            examples = [each for each in placed if each.split == split and data_set in (each.example.data_set, "all")]
            tokens = [len(tokenizer.encode(each.pair.summary, special=False)) for each in pairs]
            yield Counted(
                data_set=data_set,
                split="train" if split == "train" else "test",
                summaries=len(pairs),
                consistent=sum(each.pair.label == "consistent" for each in pairs),
                documents=len({each.pair.document for each in pairs}),
                examples=len(examples),
                with_reasoning=sum(each.example.source is not None for each in examples) / len(examples),
                summary_tokens=sum(tokens) / len(tokens),
            )
