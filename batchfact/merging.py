"""Joins the journals of a job array into one output: what `batchfact merge` does.

Folders of journals and the input flow in; the output flows out, in input order, or one sentence on why these journals
do not belong together. No model is needed.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from batchfact.config import FoldPolicy, RunConfig
from batchfact.errors import RunFailedError, UsageError
from batchfact.journal import Journal, pending, read_run
from batchfact.metadata import describe_run
from batchfact.preparation import absolute
from batchfact.records import Outcome, Pair, Rejected
from batchfact.reducing import calibration_notes, options_of
from batchfact.run_file import RunFile, differences
from batchfact.run_log import incidents, throughput
from batchfact.settings import make_config
from batchfact.sharding import FOLDER_NAME, MAX_COUNT, JobShard, parse_shard, shard_folders
from batchfact.sink import Totals, check_output, merge
from batchfact.source import Source, open_source


class _ShardJournal(Struct, frozen=True, kw_only=True):
    """A job shard's journal, not opened yet."""

    shard: JobShard
    folder: Path
    run: RunFile


def merge_journals(
    paths: Sequence[str],
    output: str,
    *,
    options: Mapping[str, Any],
    warn: Callable[[str], None] = lambda _: None,
) -> Totals:
    """Write the output of a job array.

    Args:
        paths: the shards' journals, or the folder they lie in, then the input that all of them were made from.
        options: fold and column options by name; None keeps what the shards had.
        warn: is told of damage in the journals, and of a calibration for other weights or prompts.

    Raises:
        UsageError: a shard is missing, there twice, unfinished or of another run; another input; an unusable option.
        RunFailedError: a row's text has changed since it was scored, or the output cannot be written.
    """
    folders, inputs = _split(paths)
    shards = _check_set([_read_shard(folder) for folder in folders])
    first = shards[0].run
    config = _common_config(shards, inputs, output, options)
    source = open_source(
        inputs, document_column=first.identity["document_column"], summary_column=first.identity["summary_column"]
    )
    if found := differences(first.identity["input"], source.fingerprint()):
        raise UsageError(f"the shards were scored from another input than {' '.join(inputs)}: {found}")
    is_ours = all(shard.run.runtime.get("output") == absolute(output) for shard in shards)
    check_output(source, output, config.columns, will_resume=is_ours)
    for note in calibration_notes(config, first.identity):
        warn(note)
    with ExitStack() as stack:
        journals = []
        for shard in shards:
            run = shard.run
            journals.append(stack.enter_context(Journal.open(shard.folder, run.identity, run.fold, run.runtime)))
            for warning in journals[-1].warnings:
                warn(f"shard {shard.shard}: {warning}")
        _refuse_unfinished(source, config.runtime.limit, shards, journals)
        return merge(
            source,
            _JobArray(shards, journals),
            output,
            config.fold,
            config.columns,
            _describe(config, shards),
            limit=config.runtime.limit,
        )


# Which journals


def _split(paths: Sequence[str]) -> tuple[list[Path], tuple[str, ...]]:
    """The journals' folders, and the inputs: what is no journal."""
    folders: list[Path] = []
    inputs = []
    for given in paths:
        folder = Path(given).expanduser()
        if read_run(folder) is not None:
            folders.append(folder)
        elif within := [each for each in shard_folders(folder) if read_run(each) is not None]:
            folders += within
        elif folder.name.endswith(".journal") or FOLDER_NAME.fullmatch(folder.name):
            raise UsageError(f"there is no journal in {given}; batchfact run --shard makes it")
        else:
            inputs.append(given)
    if not folders:
        raise UsageError(f"none of {', '.join(paths)} is a journal; merge takes JOURNAL... INPUT... OUTPUT")
    if not inputs:
        raise UsageError("no input was given; merge takes JOURNAL... INPUT... OUTPUT")
    return folders, tuple(inputs)


def _read_shard(folder: Path) -> _ShardJournal:
    run = read_run(folder)
    assert run is not None, "only journals come here"
    if "shard" not in run.identity:
        raise UsageError(f"{folder} is the journal of a whole run, not of a shard; batchfact reduce folds it again")
    return _ShardJournal(shard=parse_shard(run.identity["shard"]), folder=folder, run=run)


def _check_set(shards: list[_ShardJournal]) -> list[_ShardJournal]:
    """All shards of one job array, in order.

    Raises: UsageError where one is missing, there twice, or of another run.
    """
    first = shards[0]
    there: dict[int, _ShardJournal] = {}
    for each in shards:
        if each.shard.count != first.shard.count:
            raise UsageError(
                f"{first.folder} is shard {first.shard} and {each.folder} is shard {each.shard}: they are of two job "
                "arrays"
            )
        twin = there.setdefault(each.shard.index, each)
        if twin is not each:
            raise UsageError(f"shard {each.shard} is there twice: {twin.folder} and {each.folder}; leave one out")
        if found := differences(_identity(first), _identity(each)):
            raise UsageError(f"{each.folder} is of another run than {first.folder}: {found}")
    missing = [f"{index}/{first.shard.count}" for index in range(1, first.shard.count + 1) if index not in there]
    if missing:
        raise UsageError(
            f"shard {', '.join(missing[:10])}{' and more' if len(missing) > 10 else ''} of the job array is missing: "
            "run it, or name its journal too"
        )
    return [there[index] for index in sorted(there)]


def _identity(shard: _ShardJournal) -> dict[str, Any]:
    return {name: value for name, value in shard.run.identity.items() if name != "shard"}


def _common_config(
    shards: list[_ShardJournal], inputs: tuple[str, ...], output: str, options: Mapping[str, Any]
) -> RunConfig:
    """How all shards are folded.

    Raises: UsageError where they were run with different options that are not given now, or where rows that early exit
        left unfinished would be folded in another way.
    """
    first = shards[0]
    kept = options_of(first.run, options)
    for each in shards[1:]:
        if found := differences(kept, options_of(each.run, options)):
            raise UsageError(
                f"shards {first.shard} and {each.shard} were run with other options: {found}; give them here"
            )
        if (one := _limit(first)) != (other := _limit(each)):
            raise UsageError(
                f"shard {first.shard} was run {one} and shard {each.shard} {other}; give all shards the same limit"
            )
    config = make_config(inputs, output, {**kept, "limit": first.run.runtime.get("limit")})
    if _has_early_exit(shards) and config.fold != msgspec.convert(first.run.fold["policy"], FoldPolicy):
        raise UsageError(
            "rows were scored with --early-exit: their scores are only upper bounds, so they cannot be folded in "
            "another way"
        )
    return config


def _limit(shard: _ShardJournal) -> str:
    limit = shard.run.runtime.get("limit")
    return "without --limit" if limit is None else f"with --limit {limit}"


def _has_early_exit(shards: list[_ShardJournal]) -> bool:
    return any(shard.run.runtime.get("early_exit") for shard in shards)


def _describe(config: RunConfig, shards: list[_ShardJournal]) -> dict[str, Any]:
    """The output's metadata, as those of one run."""
    happened: Counter[str] = Counter()
    for shard in shards:
        happened.update(incidents(shard.folder))
    runtime = {"inputs": [absolute(place) for place in config.inputs], "early_exit": _has_early_exit(shards)}
    took = throughput(*(shard.folder for shard in shards))
    return describe_run(_identity(shards[0]), config.fold, config.columns, runtime, happened, took)


# Their rows


class _JobArray:
    """The open journals of all shards as one."""

    def __init__(self, shards: list[_ShardJournal], journals: list[Journal]) -> None:
        self.folder = shards[0].folder.parent
        self._shards = [each.shard for each in shards]
        self._journals = journals
        if sum(journal.num_parts for journal in journals) > MAX_COUNT:
            for journal in journals:
                journal.compact()

    @property
    def spill_dir(self) -> Path:
        return self._journals[0].spill_dir

    @property
    def num_bytes(self) -> int:
        return sum(journal.num_bytes for journal in self._journals)

    def outcomes(self) -> Iterator[Outcome]:
        """Raises: RunFailedError where a row is on two shards."""
        before, its_shard = -1, self._shards[0]
        rows = heapq.merge(*map(_of_shard, self._shards, self._journals), key=lambda each: each[1].row)
        for shard, outcome in rows:
            if outcome.row == before:
                raise RunFailedError(
                    f"row {before} is on two shards, {its_shard} and {shard}: its document was edited between their "
                    "runs; run these two again with --restart"
                )
            before, its_shard = outcome.row, shard
            yield outcome


def _of_shard(shard: JobShard, journal: Journal) -> Iterator[tuple[JobShard, Outcome]]:
    return ((shard, outcome) for outcome in journal.outcomes())


def _refuse_unfinished(source: Source, limit: int | None, shards: list[_ShardJournal], journals: list[Journal]) -> None:
    """Raises: UsageError where rows are missing, with the shards that lack them."""
    num_rows = source.num_rows if limit is None else min(source.num_rows, limit)
    if sum(_num_done(journal, limit) for journal in journals) >= num_rows:
        return
    lacking = []
    for each, journal in zip(shards, journals, strict=True):
        num_missing = sum(1 for _ in pending(_rows_of(each.shard, source, num_rows), journal.committed()))
        if num_missing:
            lacking.append(f"{each.shard} lacks {num_missing:,} rows")
    raise UsageError(f"not all shards are finished: {', '.join(lacking)}; run them again as before, then merge")


def _num_done(journal: Journal, limit: int | None) -> int:
    """Finished rows, without those beyond the limit, of a run with a larger one."""
    if limit is None:
        return journal.num_rows
    return sum(1 for row, _ in journal.committed() if row < limit)


def _rows_of(shard: JobShard, source: Source, num_rows: int) -> Iterator[Pair | Rejected]:
    return (row for row in source.pairs(stop=num_rows) if shard.holds(row.document_hash))
