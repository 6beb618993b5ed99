"""Folds a kept journal again: other thresholds, aggregation or columns, without a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from batchfact.config import Identity, RunConfig
from batchfact.errors import UsageError
from batchfact.journal import Journal, default_folder, read_run
from batchfact.metadata import describe_run
from batchfact.preparation import absolute
from batchfact.run_file import RunFile
from batchfact.run_log import incidents, throughput
from batchfact.settings import fitted_otherwise, make_config
from batchfact.sink import Totals, check_output, merge
from batchfact.source import open_source


def reduce_journal(
    output: str,
    *,
    to: str | None,
    inputs: tuple[str, ...],
    journal: str | None,
    options: Mapping[str, Any],
    warn: Callable[[str], None] = lambda _: None,
) -> Totals:
    """Merge the journal of `output` with its input again.

    Args:
        options: fold and column options by name; None keeps what the journal's last run used.
        warn: is told, before anything is merged, of damage in the journal, which explains a merge that fails, and of a
            calibration for other weights or prompts.

    Raises:
        UsageError: no journal there, or an unusable option.
        RunFailedError: the journal lacks rows of the input, or their text has changed.
    """
    folder = Path(journal) if journal else default_folder(output)
    kept = read_run(folder)
    if kept is None:
        raise UsageError(f"there is no journal in {folder}; batchfact run makes it, --journal names another folder")
    identity, runtime = dict(kept.identity), dict(kept.runtime)
    if shard := identity.get("shard"):
        raise UsageError(f"{folder} holds the rows of shard {shard} alone; batchfact merge folds all shards together")
    if runtime.get("early_exit"):
        raise UsageError(
            f"the rows in {folder} were scored with --early-exit: their scores are only upper bounds; "
            "run again with --restart and without it"
        )
    given = options_of(kept, options)
    target = to or output
    config = make_config(inputs or tuple(runtime["inputs"]), target, given)
    source = open_source(
        config.inputs, document_column=identity["document_column"], summary_column=identity["summary_column"]
    )
    # Beside its journal, an output may have been moved; elsewhere, it must be the one that the journal is of.
    is_its_own = to is None and (journal is None or runtime.get("output") == absolute(output))
    check_output(source, target, config.columns, will_resume=is_its_own)
    for note in calibration_notes(config, identity):
        warn(note)
    fold = {"policy": config.fold, "columns": config.columns} if to is None else kept.fold
    with Journal.open(folder, kept.identity, fold, runtime) as opened:
        for warning in opened.warnings:
            warn(warning)
        return merge(
            source,
            opened,
            target,
            config.fold,
            config.columns,
            describe_run(
                identity,
                config.fold,
                config.columns,
                {**runtime, "inputs": config.inputs},
                incidents(folder),
                throughput(folder),
            ),
            limit=runtime.get("limit"),
        )


def options_of(kept: RunFile, given: Mapping[str, Any]) -> dict[str, Any]:
    """The method and the fold of a journal's last run as options, but those that are given now.

    Args:
        given: fold and column options by name; one that is None is not given.
    """
    policy, columns = kept.fold["policy"], kept.fold["columns"]
    method = {name: kept.identity[name] for name in Identity.__struct_fields__ if name in kept.identity}
    # A fold without calibration does not want any.
    before = {**method, **policy, **columns, "calibration": policy.get("calibration") or "none"}
    options = {name.replace("_", "-"): value for name, value in before.items()}
    options |= {name: value for name, value in given.items() if value is not None}
    if options["calibration"] != before["calibration"]:
        # They were for scores as they were before; a calibration brings its own.
        if given.get("threshold") is None:
            del options["threshold"]
        if given.get("aggregation") is None and options["calibration"] != "none":
            del options["aggregation"]
    return options


def calibration_notes(config: RunConfig, identity: Mapping[str, Any]) -> tuple[str, ...]:
    """What to tell of a calibration that was fitted with other weights or prompts than a journal's rows have."""
    if config.fold.calibration is None:
        return ()
    note = fitted_otherwise(config.fold.calibration, model_digest=identity["model_digest"], prompts=identity["prompts"])
    return (note,) if note else ()
