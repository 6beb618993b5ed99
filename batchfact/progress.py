"""What a run has done so far: plain counters that the stages add to and a display reads. It draws nothing itself."""

from __future__ import annotations

import time
from collections import Counter
from typing import Protocol

from batchfact.records import Usage


class Record(Protocol):
    """Writes an event down, with its facts."""

    def __call__(self, event: str, **facts: object) -> None: ...


def forget(event: str, **facts: object) -> None:
    """Records nothing: pairs in memory have no journal."""


class WorkerProgress:
    """Counters of one worker on a cluster, over all processes that had its number."""

    def __init__(self) -> None:
        self.host = ""
        self.is_up = False
        self.rows = 0
        self.restarts = 0
        self.num_in_flight = 0
        self.looks = (0, 0)
        """Restarts and given-up requests that its process has told of."""


class Progress:
    """Counters of one run. Rows are counted where they are committed, tokens where the engine's answer arrives.

    `num_rows` is the whole input, `num_resumed` what the journal held before; times are seconds of a monotonic clock.
    What happens once is also recorded as an event, in the journal's log where there is one.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.num_resumed = 0
        self.phase = "reading the input"
        self.statuses: Counter[str] = Counter()
        self.labels: Counter[str] = Counter()
        self.num_asked = 0
        self.num_asked_unscored = 0
        self.num_merged = 0
        self.num_in_flight = 0
        self.usage = Usage()
        self.num_restarts = 0
        self.num_given_up = 0
        self.workers: dict[int, WorkerProgress] = {}
        self.warnings: list[str] = []
        self.record: Record = forget
        self.started_at = time.monotonic()
        self.engine_ready_at: float | None = None
        self.scored_at: float | None = None

    @property
    def num_done(self) -> int:
        """Rows committed by this run."""
        return self.statuses.total()

    @property
    def num_unscored(self) -> int:
        return self.num_done - self.statuses["ok"]

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_at

    @property
    def scoring_s(self) -> float:
        """Seconds since the engine was ready, up to the last committed row; start-up is not in it."""
        if self.engine_ready_at is None:
            return 0.0
        return (self.scored_at or time.monotonic()) - self.engine_ready_at

    @property
    def pairs_per_s(self) -> float | None:
        return self.num_done / self.scoring_s if self.scoring_s > 0 else None

    @property
    def eta_s(self) -> float | None:
        """Seconds until all rows are committed at the rate so far; None while there is no rate."""
        rate = self.pairs_per_s
        return (self.num_rows - self.num_resumed - self.num_done) / rate if rate else None

    @property
    def cached_share(self) -> float | None:
        return self.usage.cached / self.usage.prompt if self.usage.prompt else None

    def begin(self, phase: str) -> None:
        """What is done from now on."""
        self.phase = phase
        self.record("phase", phase=phase)

    def facts(self) -> dict[str, object]:
        """The counters as an event holds them."""
        return {
            "committed": self.num_done,
            "resumed": self.num_resumed,
            "statuses": dict(self.statuses),
            "labels": dict(self.labels),
            "prompt_tokens": self.usage.prompt,
            "cached_tokens": self.usage.cached,
            "output_tokens": self.usage.output,
            "scoring_s": round(self.scoring_s, 3),
        }

    def warn(self, warning: str) -> None:
        """Something that the user should know although the run goes on; the display prints it."""
        self.warnings.append(warning)
        self.record("warning", message=warning)

    def add_tokens(self, usage: Usage) -> None:
        self.usage += usage

    def enter_engine(self) -> None:
        """One more request is with the engine."""
        self.num_in_flight += 1

    def leave_engine(self) -> None:
        self.num_in_flight -= 1
