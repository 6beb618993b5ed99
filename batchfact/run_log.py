"""`log.jsonl` in the journal's folder: what happened in each run on it, one JSON object a line.

Events flow in and are written at once; a reader gets them back, also of a run that is going on, and is told whether one
is. Times of day are for people; spans are counted in `elapsed_s`, which no change of the clock touches. It knows
nothing of what the events mean.
"""

from __future__ import annotations

import io
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

NAME = "log.jsonl"
_ENCODE = msgspec.json.Encoder(enc_hook=str).encode


Count = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0)]


class Event(Struct, frozen=True, kw_only=True):
    """One line as it is read back: the facts that are read by programs. Lines hold more, for people.

    `rows` are those of the input in `run_started`, and of one part in `committed`; the counts and tokens beside it are
    the run's so far. `scoring_s` are seconds since the engine was ready. `worker` is the number of a cluster's worker,
    and `worker_rows` the rows by it so far.
    """

    event: str
    time: str | None = None
    elapsed_s: Seconds = 0.0
    rows: Count | None = None
    committed: Count = 0
    statuses: dict[str, Count] = {}
    labels: dict[str, Count] = {}
    prompt_tokens: Count = 0
    cached_tokens: Count = 0
    output_tokens: Count = 0
    scoring_s: Seconds = 0.0
    exit_code: int | None = None
    message: str | None = None
    phase: str | None = None
    in_flight: Count | None = None
    reason: str | None = None
    worker: Count | None = None
    host: str | None = None
    worker_rows: dict[str, Count] = {}


_DECODE = msgspec.json.Decoder(Event).decode


class RunLog:
    """The log, open for one run, which holds a lock on it: so a reader can tell that a run is going on.

    A log that cannot be written costs no row: `fault` then says why, and no more is written.
    """

    def __init__(self, folder: Path) -> None:
        self.fault: str | None = None
        self._started = time.monotonic()
        self._file: io.FileIO | None = None
        try:
            self._file = io.FileIO(folder / NAME, "a+")
            _hold(self._file)
            if self._file.seek(0, io.SEEK_END):
                self._file.seek(-1, io.SEEK_END)
                if self._file.read(1) != b"\n":  # a kill cut the last line
                    self._file.write(b"\n")
        except OSError as error:
            self._fail(error)

    def write(self, event: str, **facts: object) -> None:
        """One event with its facts, which must be plain values."""
        if self._file is None:
            return
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "elapsed_s": round(time.monotonic() - self._started, 3),
            "event": event,
            **facts,
        }
        try:
            self._file.write(_ENCODE(line) + b"\n")
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _fail(self, error: OSError) -> None:
        self.fault = str(error)
        self.close()


def read_log(folder: Path) -> Iterator[Event]:
    """The events from the first one on; lines that a kill cut are left out. Nothing where there is no log."""
    try:
        lines = (folder / NAME).open("rb")
    except FileNotFoundError:
        return
    with lines:
        for line in lines:
            try:
                yield _DECODE(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue


def incidents(folder: Path) -> dict[str, int]:
    """How often an engine was started again, and a request given up that ended it, in all runs on the journal."""
    counts = Counter(event.event for event in read_log(folder))
    return {"engine_restarts": counts["engine_restarting"], "requests_given_up": counts["request_given_up"]}


class Throughput(Struct, frozen=True, kw_only=True):
    """What the runs on a journal, or on those of a job array, took that started an engine, each up to its last commit.

    `rows` and tokens are those of these runs: of a row that was asked again each time. `duration_s` is from each run's
    start, `scoring_s` without the engine's start-up.
    """

    runs: int
    rows: int
    duration_s: float
    scoring_s: float
    pairs_per_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


def throughput(*folders: Path) -> Throughput | None:
    """Summed over all runs on these journals; None where their logs hold none that scored."""
    last: list[Event] = []
    for event in itertools.chain.from_iterable(read_log(folder) for folder in folders):
        if event.event == "run_started":
            last.append(event)
        elif event.event == "committed" and last:
            last[-1] = event
    scored = [event for event in last if event.scoring_s > 0 and event.committed]
    if not scored:
        return None
    rows, scoring_s = sum(event.committed for event in scored), sum(event.scoring_s for event in scored)
    return Throughput(
        runs=len(scored),
        rows=rows,
        duration_s=round(sum(event.elapsed_s for event in scored), 3),
        scoring_s=round(scoring_s, 3),
        pairs_per_s=round(rows / scoring_s, 3),
        prompt_tokens=sum(event.prompt_tokens for event in scored),
        cached_tokens=sum(event.cached_tokens for event in scored),
        output_tokens=sum(event.output_tokens for event in scored),
    )


def is_held(folder: Path) -> bool | None:
    """Whether a run is going on; None where this system cannot tell."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        with (folder / NAME).open("rb") as log:
            fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return None
    return False


def _hold(log: io.FileIO) -> None:
    """Lock the log until it is closed; a reader that looks just now is gone in a moment."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(log, fcntl.LOCK_EX)
