"""Journal and input to the output Parquet, in input order: all input columns, then the verdict's.

Input batches and the journal's outcomes flow in side by side; findings are folded row by row; a complete output, or
none, flows out. It knows nothing of models or paradigms. `run` ends with it, and `reduce` is it again with another
policy.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from msgspec import Struct

from batchfact.config import FoldPolicy, OutputOptions
from batchfact.disk_space import lacking_space
from batchfact.durable import sync
from batchfact.errors import RunFailedError, UsageError, nearest
from batchfact.input_files import open_filesystem
from batchfact.metadata import METADATA_KEY
from batchfact.object_stores import reason, refuse_unwritable
from batchfact.output_files import check_folder, output_kind, refuse_input, whole_output
from batchfact.paradigms.fold import finding_label, finding_status, fold_outcome, num_judged
from batchfact.records import Finding, Outcome, Usage, Verdict
from batchfact.source import MAX_BATCH_ROWS, Shard, Source, row_hashes

_SPAN = pa.struct([("start", pa.int32()), ("end", pa.int32())])
FINDING = pa.struct(
    [
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("label", pa.string()),
        ("score", pa.float32()),
        ("label_mass", pa.float32()),
        ("question", pa.string()),
        ("entity", pa.string()),
        ("reasoning", pa.string()),
        ("evidence", pa.list_(_SPAN)),
        ("status", pa.string()),
    ]
)
TOKENS = pa.struct([("prompt", pa.int32()), ("cached", pa.int32()), ("output", pa.int32())])
VERDICT_FIELDS = (
    pa.field("label", pa.string()),
    pa.field("score", pa.float32()),
    pa.field("score_raw", pa.float32()),
    pa.field("status", pa.string()),
    pa.field("message", pa.string()),
    pa.field("findings", pa.list_(FINDING)),
    pa.field("tokens", TOKENS),
)
"""The columns of a verdict, without the prefix (DESIGN section 7)."""

_GROUP_ROWS = 65_536
_GROUP_BYTES = 64 << 20


class Totals(Struct, frozen=True, kw_only=True):
    """What the closing table says of the rows written."""

    rows: int = 0
    labels: dict[str, int] = {}
    statuses: dict[str, int] = {}
    findings: int = 0
    excerpted: int = 0
    """Findings that were judged by parts of their document."""
    usage: Usage = Usage()

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            rows=self.rows + other.rows,
            labels=dict(Counter(self.labels) + Counter(other.labels)),
            statuses=dict(Counter(self.statuses) + Counter(other.statuses)),
            findings=self.findings + other.findings,
            excerpted=self.excerpted + other.excerpted,
            usage=self.usage + other.usage,
        )


def check_output(source: Source, output: str, columns: OutputOptions, *, will_resume: bool) -> None:
    """Refuse, before any model loads, an output that could not be written at the end.

    Args:
        output: a path or URI; a folder where the source is one. Missing parent folders are made.
        will_resume: a journal of this output exists, so an output that exists is this run's and may be replaced.
    Raises: UsageError.
    """
    _check_columns(source, columns)
    filesystem, path = open_filesystem(output)
    refuse_input(source, filesystem, path, output)
    kind = output_kind(filesystem, path, output)
    if kind != pafs.FileType.NotFound and not will_resume:
        raise UsageError(f"output {output} exists already; name another, or delete it first")
    wanted = pafs.FileType.Directory if source.is_folder else pafs.FileType.File
    if kind not in (pafs.FileType.NotFound, wanted):
        raise UsageError(
            f"output {output} is a {'file' if source.is_folder else 'folder'}, but the input is "
            f"{'a folder of shards' if source.is_folder else 'one file'}; name another output"
        )
    if isinstance(filesystem, pafs.LocalFileSystem):
        check_folder(Path(path).parent, output)
        lacking = lacking_space(Path(path).parent, _needed_bytes(source, columns))
        if lacking:
            raise UsageError(f"output {output} {lacking}")
    else:
        refuse_unwritable(filesystem, path, output)


class FinishedWork(Protocol):
    """What is merged with the input: one journal, or those of a job array together."""

    folder: Path

    @property
    def spill_dir(self) -> Path:
        """A local folder for what goes to an object store, until it is whole."""

    @property
    def num_bytes(self) -> int:
        """Size of the journals' parts."""

    def outcomes(self) -> Iterator[Outcome]:
        """The newest outcome of each finished row, in row order."""


def merge(
    source: Source,
    journal: FinishedWork,
    output: str,
    policy: FoldPolicy,
    columns: OutputOptions,
    metadata: Mapping[str, Any],
    progress: Callable[[int], None] | None = None,
    *,
    limit: int | None = None,
) -> Totals:
    """Write the output: complete under its name, or not there.

    Args:
        metadata: what the run was; it becomes the file's key-value `batchfact`, as JSON, with the shard's first row in
            the whole input.
        progress: is told the number of rows just written.
        limit: only the first so many rows of the input.
    Returns: counts over all rows written.
    Raises: RunFailedError where a row has no outcome, or one for another text, or where the disk is full.
    """
    filesystem, path = open_filesystem(output)
    is_local = isinstance(filesystem, pafs.LocalFileSystem)
    lacking = lacking_space(
        Path(path).parent if is_local else journal.spill_dir, _needed_bytes(source, columns) + journal.num_bytes
    )
    if lacking:
        raise RunFailedError(f"output {output} {lacking}; all finished rows are kept in {journal.folder}")
    merger = _Merger(
        source=source,
        outcomes=journal.outcomes(),
        policy=policy,
        columns=columns,
        metadata=metadata,
        stop=source.num_rows if limit is None else limit,
    )
    totals = Totals()
    try:
        with whole_output(filesystem, path, journal.spill_dir) as temporary:
            for shard in source.shards:
                if limit is not None and 0 < limit <= shard.first_row:
                    break
                target = temporary / shard.name if source.is_folder else temporary
                target.parent.mkdir(parents=True, exist_ok=True)
                for part in merger.write(shard, target):
                    totals += part
                    if progress is not None:
                        progress(part.rows)
    except OSError as error:
        raise RunFailedError(
            f"output {output} cannot be written: {reason(error)}; all finished rows are kept in {journal.folder}, run "
            "the same command again"
        ) from error
    return totals


def verdict_columns(outcomes: Sequence[Outcome], policy: FoldPolicy) -> tuple[list[pa.Array], Totals]:
    """The arrays of VERDICT_FIELDS for some rows, and the rows' counts."""
    verdicts = [fold_outcome(outcome, policy) for outcome in outcomes]
    scored = [verdict if isinstance(verdict, Verdict) else None for verdict in verdicts]
    statuses = [verdict.status for verdict in verdicts]
    labels = [verdict.label if verdict else None for verdict in scored]
    usages = [outcome.usage for outcome in outcomes]
    tokens = [
        [usage.prompt for usage in usages],
        [usage.cached for usage in usages],
        [usage.output for usage in usages],
    ]
    columns = [
        pa.array(labels, pa.string()),
        pa.array([_number(verdict.score) if verdict else None for verdict in scored], pa.float32()),
        pa.array([_number(verdict.score_raw) if verdict else None for verdict in scored], pa.float32()),
        pa.array(statuses, pa.string()),
        pa.array([verdict.message for verdict in verdicts], pa.string()),
        _findings_column(
            [verdict.findings for verdict in verdicts],
            [num_judged(outcome.findings, policy) for outcome in outcomes],
            policy,
        ),
        pa.StructArray.from_arrays([pa.array(counts, pa.int32()) for counts in tokens], fields=list(TOKENS)),
    ]
    totals = Totals(
        rows=len(outcomes),
        labels=dict(Counter(label for label in labels if label is not None)),
        statuses=dict(Counter(statuses)),
        findings=sum(len(verdict.findings) for verdict in verdicts),
        excerpted=sum(bool(each.left_out) or each.chunk is not None for row in verdicts for each in row.findings),
        usage=Usage(*(sum(counts) for counts in tokens)),
    )
    return columns, totals


def tally(outcomes: Iterable[Outcome], policy: FoldPolicy) -> Iterator[Totals]:
    """The counts of outcomes, some rows at a time, as `merge` would give them."""
    rows = iter(outcomes)
    while some := list(itertools.islice(rows, MAX_BATCH_ROWS)):
        yield verdict_columns(some, policy)[1]


def _findings_column(
    rows: Sequence[tuple[Finding, ...]], judged_counts: Sequence[int], policy: FoldPolicy
) -> pa.ListArray:
    flat = [finding for findings in rows for finding in findings]
    labels = [
        finding_label(finding, policy, judged_count)
        for findings, judged_count in zip(rows, judged_counts, strict=True)
        for finding in findings
    ]
    values = [
        pa.array([finding.start for finding in flat], pa.int32()),
        pa.array([finding.end for finding in flat], pa.int32()),
        pa.array(labels, pa.string()),
        pa.array([_number(finding.score) for finding in flat], pa.float32()),
        pa.array([_number(finding.label_mass) for finding in flat], pa.float32()),
        pa.array([finding.question for finding in flat], pa.string()),
        pa.array([finding.entity for finding in flat], pa.string()),
        pa.array([finding.reasoning for finding in flat], pa.string()),
        _evidence_column(flat),
        pa.array([finding_status(finding, policy) for finding in flat], pa.string()),
    ]
    return pa.ListArray.from_arrays(_offsets(rows), pa.StructArray.from_arrays(values, fields=list(FINDING)))


def _evidence_column(findings: Sequence[Finding]) -> pa.ListArray:
    spans = [span for finding in findings for span in finding.evidence]
    values = [
        pa.array([span.start for span in spans], pa.int32()),
        pa.array([span.end for span in spans], pa.int32()),
    ]
    offsets = _offsets([finding.evidence for finding in findings])
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(values, fields=list(_SPAN)))


def _offsets(lists: Sequence[Sequence[object]]) -> pa.Array:
    return pa.array([0, *itertools.accumulate(len(each) for each in lists)], pa.int32())


def _number(value: float | None) -> float | None:
    """The value, or null in place of a NaN: a number that is not one must not reach a reader."""
    return None if value is None or math.isnan(value) else value


# Shards


class _Merger(Struct, frozen=True, kw_only=True):
    """All that is the same for every shard of one merge."""

    source: Source
    outcomes: Iterator[Outcome]
    policy: FoldPolicy
    columns: OutputOptions
    metadata: Mapping[str, Any]
    stop: int

    def write(self, shard: Shard, target: Path) -> Iterator[Totals]:
        """Write one shard's file; gives the counts of each batch."""
        schema = self.source.schema_of(shard)
        kept = _kept(schema, self.source, self.columns)
        wanted = _output_schema(schema, kept, self.columns, {**self.metadata, "first_row": shard.first_row})
        num_rows = min(shard.rows, self.stop - shard.first_row)
        with (
            target.open("wb") as stream,
            pq.ParquetWriter(stream, wanted, compression="zstd", write_page_checksum=True) as writer,
        ):
            held: list[pa.RecordBatch] = []
            for batch, totals in self._merge(shard, num_rows, kept, wanted):
                held.append(batch)
                if _is_group(held):
                    writer.write_table(pa.Table.from_batches(held), row_group_size=_GROUP_ROWS)
                    held = []
                yield totals
            if held:
                writer.write_table(pa.Table.from_batches(held), row_group_size=_GROUP_ROWS)
        sync(target)

    def _merge(
        self, shard: Shard, num_rows: int, kept: list[int], wanted: pa.Schema
    ) -> Iterator[tuple[pa.RecordBatch, Totals]]:
        done = 0
        for read in self.source.batches(shard):
            batch = read.slice(0, num_rows - done)
            if not batch.num_rows:
                return
            outcomes = self._take(shard, done, batch)
            arrays, totals = verdict_columns(outcomes, self.policy)
            columns = [batch.column(index) for index in kept] + arrays
            yield pa.RecordBatch.from_arrays(columns, schema=wanted), totals
            done += batch.num_rows

    def _take(self, shard: Shard, done: int, batch: pa.RecordBatch) -> list[Outcome]:
        """The outcomes of a batch's rows, each made from the text that is in the row now."""
        outcomes = list(itertools.islice(self.outcomes, batch.num_rows))
        hashes = row_hashes(*self.source.texts(batch))
        for index, text_hash in enumerate(hashes, done):
            row = shard.first_row + index
            place = f"row {row} (row {index} of {shard.path})"
            outcome = outcomes[index - done] if index - done < len(outcomes) else None
            if outcome is None or outcome.row != row:
                raise RunFailedError(f"{place} was never scored; `batchfact run` as before does only what is missing")
            if outcome.text_hash != text_hash:
                raise RunFailedError(
                    f"{place} was scored with another text than it has now: the input was edited; `batchfact run` as "
                    "before does only the changed rows"
                )
        return outcomes


def _is_group(held: Sequence[pa.RecordBatch]) -> bool:
    num_rows, num_bytes = sum(batch.num_rows for batch in held), sum(batch.nbytes for batch in held)
    return bool(num_rows >= _GROUP_ROWS or num_bytes >= _GROUP_BYTES)


def _kept(schema: pa.Schema, source: Source, columns: OutputOptions) -> list[int]:
    """Indices of the input columns that the output has."""
    wanted = set(schema.names if columns.keep_columns is None else columns.keep_columns)
    if columns.drop_document:
        wanted.discard(source.document_column)
    return [index for index, name in enumerate(schema.names) if name in wanted]


def _output_schema(
    schema: pa.Schema, kept: Sequence[int], columns: OutputOptions, metadata: Mapping[str, Any]
) -> pa.Schema:
    fields = [schema.field(index) for index in kept]
    fields += [field.with_name(columns.column_prefix + field.name) for field in VERDICT_FIELDS]
    # As bytes, like the input's: beside a text of the same name the former run's entry would stay, and be read first.
    own = {METADATA_KEY.encode(): json.dumps(metadata, ensure_ascii=False, default=str).encode()}
    return pa.schema(fields, metadata={**(schema.metadata or {}), **own})


# Checks


def _check_columns(source: Source, columns: OutputOptions) -> None:
    names = source.schema.names
    for name in columns.keep_columns or ():
        if name not in names:
            raise UsageError(
                f"--keep-columns names {name!r}, which the input lacks; its columns are {', '.join(names)}"
                f"{nearest(name, names)}"
            )
    kept = {names[index] for index in _kept(source.schema, source, columns)}
    for field in VERDICT_FIELDS:
        if columns.column_prefix + field.name in kept:
            raise UsageError(
                f"the input has a column {columns.column_prefix + field.name!r} already; choose another prefix than "
                f"{columns.column_prefix!r} with --column-prefix, or leave that column out with --keep-columns"
            )


def _needed_bytes(source: Source, columns: OutputOptions) -> int:
    # Nothing is known of the columns' shares, so an output that leaves some out is not refused for the input's size.
    whole = columns.keep_columns is None and not columns.drop_document
    return source.num_bytes if whole else 0
