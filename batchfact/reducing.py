"""Folds a kept journal again: other thresholds, aggregation or columns, without a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from batchfact.config import Identity
from batchfact.errors import UsageError
from batchfact.journal import Journal, default_folder, read_run
from batchfact.metadata import describe_run
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
    if runtime.get("early_exit"):
        raise UsageError(
            f"the rows in {folder} were scored with --early-exit: their scores are only upper bounds; "
            "run again with --restart and without it"
        )
    before = _options_of(kept)
    given = {**before, **{name: value for name, value in options.items() if value is not None}}
    if given["calibration"] != before["calibration"] and options.get("threshold") is None:
        del given["threshold"]  # it was for scores as they were before
    target = to or output
    config = make_config(inputs or tuple(runtime["inputs"]), target, given)
    source = open_source(
        config.inputs, document_column=identity["document_column"], summary_column=identity["summary_column"]
    )
    check_output(source, target, config.columns, will_resume=to is None)
    if config.fold.calibration and (
        note := fitted_otherwise(
            config.fold.calibration, model_digest=identity["model_digest"], prompts=identity["prompts"]
        )
    ):
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


def _options_of(kept: RunFile) -> dict[str, Any]:
    """The method and the fold of a journal's last run as options; a fold without calibration does not want any."""
    policy, columns = kept.fold["policy"], kept.fold["columns"]
    method = {name: kept.identity[name] for name in Identity.__struct_fields__ if name in kept.identity}
    options = {**method, **policy, **columns, "calibration": policy.get("calibration") or "none"}
    return {name.replace("_", "-"): value for name, value in options.items()}
