"""The file of few-shot examples: read, checked, and made into the prefix of a run's prompts.

A labelled Parquet file and the run's input flow in; the rendered prefix, with its digest and the documents in it, flows
out, or a UsageError that says what the file lacks. It starts no engine and knows no paradigm's steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from batchfact.config import Identity
from batchfact.errors import UsageError, nearest
from batchfact.gold import gold_label
from batchfact.input_files import open_filesystem
from batchfact.paradigms import template_names
from batchfact.paradigms.shots import Demonstration, digest, draw, render
from batchfact.prompts.loader import PromptBook
from batchfact.records import Label, Prompt
from batchfact.source import Source
from batchfact.text.sentences import sentences

EXTRA_COLUMN = {"cot": "reasoning", "sbs": "sentence_labels"}
"""The column that a paradigm needs beside document, summary and label."""
LEAST_ROOM = 256
"""Tokens that the demonstrations must leave for a document, a summary and the answer."""


class Shown(Struct, frozen=True, kw_only=True):
    """The demonstrations of a run: the prefix of its prompts, and the documents in it."""

    prompt: Prompt = ()
    digest: str | None = None
    documents: frozenset[str] = frozenset()


def prepare_shots(
    identity: Identity,
    prompts: PromptBook,
    count_tokens: Callable[[Prompt], int],
    max_model_len: int | None,
    source: Source | None,
) -> Shown:
    """Draw the demonstrations that `identity` asks for and check that they leave room for a document.

    Args:
        max_model_len: tokens of the longest prompt, None where it is not known.
        source: the input, whose documents are never shown; None where it is not known yet (a stream).
    Raises: UsageError for a file that cannot be used, too few demonstrations, or too many tokens.
    """
    if identity.demonstrations is None:
        return Shown()
    template = prompts[template_names(identity, reasoning=False)[0]]
    candidates = read_demonstrations(identity)
    scored = source.documents_among({each.document for each in candidates}) if source else frozenset()
    free = [each for each in candidates if each.document not in scored]
    try:
        drawn = draw(free, identity.shots, seed=identity.seed)
    except UsageError as error:
        left_out = len(candidates) - len(free)
        why = f" ({left_out} were left out because their documents are in the input)" if left_out else ""
        raise UsageError(f"{error}{why}") from error
    prompt = render(template, drawn, sentences_per_window=identity.window_sentences)
    _check_room(identity, count_tokens(prompt), max_model_len)
    return Shown(prompt=prompt, digest=digest(prompt), documents=frozenset(each.document for each in drawn))


def read_demonstrations(identity: Identity) -> list[Demonstration]:
    """The rows of the file that can be shown; rows without a label, a text or what the paradigm needs are left out.

    Raises: UsageError for a file that is missing or no Parquet, a missing column, a label that is none, or no usable
        row.
    """
    file, extra = str(identity.demonstrations), EXTRA_COLUMN.get(identity.paradigm)
    columns = [identity.document_column, identity.summary_column, "label", *([extra] if extra else [])]
    rows = _read_rows(file, columns, identity.paradigm)
    found, skipped = [], 0
    for number, row in enumerate(rows):
        document, summary, label = row[columns[0]], row[columns[1]], _label(row["label"], f"{file}, row {number}")
        if label is None or not all(isinstance(text, str) and text.strip() for text in (document, summary)):
            skipped += 1
            continue
        each = Demonstration(document=document, summary=summary, label=label)
        complete = _with_extra(each, extra, row.get(extra or ""), f"{file}, row {number}")
        if complete is None:
            skipped += 1
        else:
            found.append(complete)
    if not found:
        wanted = {
            "reasoning": " and a reasoning",
            "sentence_labels": " and as many sentence_labels as the summary has sentences",
        }.get(extra or "", "")
        raise UsageError(
            f"--demonstrations {file} has no usable row ({skipped} left out): each needs a document, a summary, a "
            f"label{wanted}"
        )
    return found


def _check_room(identity: Identity, num_tokens: int, limit: int | None) -> None:
    if limit is not None and num_tokens + LEAST_ROOM > limit:
        raise UsageError(
            f"--shots {identity.shots}: the demonstrations have {num_tokens:,} tokens and the context {limit:,}, of "
            f"which {LEAST_ROOM} at least are needed for a document; take fewer shots or shorter demonstrations, or "
            "raise --max-model-len if the model allows it"
        )


def _read_rows(file: str, columns: list[str], paradigm: str) -> Iterator[dict[str, Any]]:
    filesystem, path = open_filesystem(file)
    try:
        with pq.ParquetFile(path, filesystem=filesystem) as parquet:
            names = parquet.schema_arrow.names
            for column in columns:
                if column not in names:
                    needs = f", which --paradigm {paradigm} needs" if column in EXTRA_COLUMN.values() else ""
                    raise UsageError(
                        f"--demonstrations {file} has no column {column!r}{needs}; its columns are {', '.join(names)}"
                        f"{nearest(column, names)}"
                    )
            for batch in parquet.iter_batches(256, columns=columns):
                yield from batch.to_pylist()
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise UsageError(f"--demonstrations {file} cannot be read: {str(error).splitlines()[0]}") from error


def _with_extra(each: Demonstration, extra: str | None, value: Any, place: str) -> Demonstration | None:
    """The demonstration with what its paradigm needs; None where the row lacks it."""
    if extra is None:
        return each
    if extra == "reasoning":
        usable = isinstance(value, str) and value.strip()
        return msgspec.structs.replace(each, reasoning=value) if usable else None
    if not isinstance(value, list) or len(value) != len(sentences(each.summary)):
        return None
    labels = tuple(label for label in (_label(item, place) for item in value) if label is not None)
    return msgspec.structs.replace(each, sentence_labels=labels) if len(labels) == len(value) else None


def _label(value: object, place: str) -> Label | None:
    """Raises: UsageError for a value that is no label."""
    try:
        return gold_label(value)
    except ValueError as error:
        raise UsageError(f"--demonstrations {place}: {error}") from None
