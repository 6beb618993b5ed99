"""batchfact as `batchfact run` has it: from Parquet to Parquet, with its journal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import anyio
import pyarrow.parquet as pq

from batchfact.pipeline import run
from batchfact.progress import Progress
from batchfact.records import Usage
from bench.throughput.prompts import config_of
from bench.throughput.task import ArmRecord, FindingRow, Task

WRITING = "writing the output"
"""The phase of a run in which the engine is gone and the output is made."""


class TimedProgress(Progress):
    """A run's counters that also note every answer's tokens and time, and when the first rows were in the journal."""

    calls: list[tuple[int, int, int]]
    answered_at: list[float]
    committed_at: float | None
    merging_at: float | None
    idle_since: float | None
    idle_s: float

    def facts(self) -> dict[str, object]:
        """What a run records with each commit."""
        if self.committed_at is None and self.num_done:
            self.committed_at = time.monotonic()
        return super().facts()

    def begin(self, phase: str) -> None:
        super().begin(phase)
        if phase == WRITING:
            self.merging_at = time.monotonic()

    def add_tokens(self, usage: Usage) -> None:
        super().add_tokens(usage)
        self.calls.append((usage.prompt, usage.cached, usage.output))
        self.answered_at.append(time.monotonic())

    def enter_engine(self) -> None:
        if self.num_in_flight == 0:
            since = self.idle_since or self.engine_ready_at
            assert since is not None
            self.idle_s += time.monotonic() - since
        super().enter_engine()

    def leave_engine(self) -> None:
        super().leave_engine()
        if self.num_in_flight == 0:
            self.idle_since = time.monotonic()


def score(task: Task) -> ArmRecord:
    _override(task.overrides)
    output = task.folder / "out.parquet"
    watched: list[TimedProgress] = []

    def watch(progress: Progress) -> None:
        progress.__class__ = TimedProgress  # the run makes its own counters; these only note more
        assert isinstance(progress, TimedProgress)
        progress.calls, progress.answered_at, progress.committed_at, progress.merging_at = [], [], None, None
        progress.idle_since, progress.idle_s = None, 0.0
        watched.append(progress)

    async def score_all() -> None:
        await run(config_of(task, output), watch=watch)

    anyio.run(score_all)
    written_at = time.monotonic()
    progress = watched[0]
    assert progress.engine_ready_at is not None
    assert progress.merging_at is not None
    assert progress.committed_at is not None
    return ArmRecord(
        ready_at=progress.engine_ready_at,
        first_row_at=progress.committed_at,
        finished_at=progress.answered_at[-1],
        findings=_read_findings(output),
        calls=progress.calls,
        output_s=written_at - progress.merging_at,
        idle_s=progress.idle_s,
        same_prompts=1.0,
    )


def _read_findings(output: Path) -> dict[int, list[FindingRow]]:
    table = pq.read_table(output, columns=["number", "batchfact_findings"])
    return {
        row["number"]: [(each["label"], each["score"], each["status"]) for each in row["batchfact_findings"] or ()]
        for row in table.to_pylist()
    }


def _override(overrides: Mapping[str, float]) -> None:
    """Set constants of batchfact, named module.NAME, for this process."""
    for name, value in overrides.items():
        module, _, constant = name.rpartition(".")
        owner = import_module(f"batchfact.{module}")
        before = getattr(owner, constant)  # an unknown one is an error
        setattr(owner, constant, type(before)(value))
