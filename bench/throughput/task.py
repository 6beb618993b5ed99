"""What every arm is given, and what it gives back: one task and one record, as JSON between processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

FindingRow = tuple[str | None, float | None, str]
"""Label, score and status of one finding."""
Calls = list[tuple[int, int, int]]
"""For each request that reached the engine: its prompt tokens, those of them that were cached, its output tokens."""


class Task(Struct, frozen=True, kw_only=True):
    """One arm on one input. `options` are batchfact's own, by their names on the command line."""

    arm: str
    input: Path
    folder: Path
    model: str
    paradigm: str = "sent-nli"
    reasoning: bool = False
    dtype: str | None = None
    device: str = "cpu"
    kv_cache_bytes: int = 256 << 20
    max_model_len: int = 4096
    compile: bool = False
    options: Mapping[str, str | bool | int] = {}
    overrides: Mapping[str, float] = {}
    """Constants of batchfact that an ablation sets, as module.NAME."""


def encode_task(task: Struct) -> bytes:
    return msgspec.json.encode(task, enc_hook=str, order="sorted")


def decode_task(text: bytes) -> Task:
    return msgspec.json.decode(text, type=Task, dec_hook=lambda kind, value: kind(value))


class ArmRecord(Struct, kw_only=True):
    """What one arm did. Times are of the system's monotonic clock, so that the harness's own can be compared.

    `ready_at`: the engine could take its first request. `first_row_at`: the first row's answer was in the caller's
    hands. `finished_at`: the last one was. `findings` are by the number of the pair. `same_prompts` is the share of
    requests whose prompt had the ids that batchfact makes. `output_s` is what batchfact needs for its output file
    after that, which the other arms do not write. `idle_s` is how long the engine had no request at all meanwhile.
    `probe_s` is what the arm did to find out when its engine is ready, and a user would not.
    """

    ready_at: float
    first_row_at: float
    finished_at: float
    findings: dict[int, list[FindingRow]]
    calls: Calls
    prepare_s: float = 0.0
    output_s: float | None = None
    idle_s: float | None = None
    probe_s: float = 0.0
    same_prompts: float | None = None


class Result(Struct, kw_only=True):
    """What an arm's process leaves: a record, or why this arm is not for here."""

    record: ArmRecord | None = None
    not_run: str | None = None


class ArmUnavailableError(Exception):
    """The arm cannot run here, for a reason that is told in the table; not a failure."""
