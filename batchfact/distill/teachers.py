"""What teachers said: outputs of `batchfact run --reasoning`, read back by the pairs that they scored.

Output files flow in; for a pair, its reasoning and window verdicts flow out. Whether they are used is decided in
`examples`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from batchfact.config import Paradigm
from batchfact.distill.recipe import Teacher
from batchfact.errors import UsageError
from batchfact.metadata import read_description
from batchfact.records import Label

Texts = tuple[str, str]


class Said(Struct, frozen=True):
    """What a teacher said of characters `start` to `end` of a summary."""

    start: int
    end: int
    label: Label | None
    reasoning: str | None


class Answer(Struct, frozen=True):
    """One pair's verdict by one paradigm; `label` None where it was not scored."""

    label: Label | None
    said: tuple[Said, ...]

    @property
    def reasoning(self) -> str | None:
        """The reasoning of all windows, joined; None where one of them has none (Xu 2024, section 4.1)."""
        reasons = [each.reasoning for each in self.said]
        return " ".join(reason for reason in reasons if reason) if reasons and all(reasons) else None


class Answers(Struct, frozen=True):
    """One teacher's answers, by stripped document and summary."""

    name: str
    summ_nli: Mapping[Texts, Answer]
    sent_nli: Mapping[Texts, Answer]


def read_teacher(teacher: Teacher, folder: Path, wanted: frozenset[Texts]) -> Answers:
    """What a teacher said of the `wanted` pairs; files are below `folder`.

    Raises: UsageError for a file that is no output of `batchfact run`, is of another paradigm, or has no reasoning.
    """
    if not teacher.summ_nli and not teacher.sent_nli:
        raise UsageError(f"the teacher {teacher.name} needs files: summ_nli, sent_nli or both")
    by_paradigm: dict[Paradigm, tuple[str, ...]] = {"summ-nli": teacher.summ_nli, "sent-nli": teacher.sent_nli}
    summ_nli, sent_nli = (
        {key: answer for file in files for key, answer in _read(folder / file, paradigm, teacher.name, wanted)}
        for paradigm, files in by_paradigm.items()
    )
    return Answers(teacher.name, summ_nli, sent_nli)


def _read(path: Path, paradigm: Paradigm, teacher: str, wanted: frozenset[Texts]) -> Iterable[tuple[Texts, Answer]]:
    try:
        with pq.ParquetFile(path) as parquet:
            made = _metadata(path, parquet.schema_arrow, teacher)
            identity, prefix = made["identity"], made["columns"]["column_prefix"]
            if identity["paradigm"] != paradigm:
                raise UsageError(f"the teacher {teacher}: {path} was scored by {identity['paradigm']}, not {paradigm}")
            if not identity["reasoning"]:
                raise UsageError(f"the teacher {teacher}: {path} has no reasoning; score it with --reasoning")
            texts = [identity["document_column"], identity["summary_column"]]
            columns = [*texts, f"{prefix}label", f"{prefix}findings"]
            if absent := [name for name in columns if name not in parquet.schema_arrow.names]:
                raise UsageError(f"the teacher {teacher}: {path} lacks the column {absent[0]!r}; keep it in the output")
            for batch in parquet.iter_batches(1024, columns=columns):
                for row in batch.to_pylist():
                    key = ((row[texts[0]] or "").strip(), (row[texts[1]] or "").strip())
                    if key in wanted:
                        yield key, _answer(row[f"{prefix}label"], row[f"{prefix}findings"], row[texts[1]])
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"the teacher {teacher}: {path} cannot be read ({str(error).splitlines()[0]})") from error


def _metadata(path: Path, schema: pa.Schema, teacher: str) -> dict[str, Any]:
    found = read_description(schema.metadata)
    if not found:
        raise UsageError(f"the teacher {teacher}: {path} is no output of `batchfact run`")
    return found


def _answer(label: Label | None, findings: list[dict[str, Any]] | None, summary: str) -> Answer:
    """Offsets become those of the stripped summary, which is what examples are cut from."""
    moved = len(summary) - len(summary.lstrip())
    return Answer(
        label,
        tuple(
            Said(each["start"] - moved, each["end"] - moved, each["label"], (each["reasoning"] or "").strip() or None)
            for each in findings or ()
        ),
    )
