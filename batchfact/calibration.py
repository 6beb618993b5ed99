"""From a folded score to a calibrated one: a small logistic model, fitted once on labelled rows.

Numbers flow in and out; a calibration is read from and written to a TOML file. How one is fitted is not known here
(`evaluate/calibrating.py`), nor which rows it is for.
"""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from batchfact.durable import durable_file
from batchfact.errors import UsageError
from batchfact.toml_text import toml_lines

MARGIN = 1e-7
"""Scores nearer to 0 or 1 than this are taken as this far away: a float32 column, which is fitted on, holds no more."""

_HEAD = """\
# Made by `batchfact calibrate`; read by `--calibration FILE` of run and reduce.
# score = sigmoid(logit(raw score) / temperature + count_weight * ln(judged findings) + bias)
"""


class Fitted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a calibration was fitted on; `prompts` are the templates' digests, `datasets` the rows of each data set."""

    model: str
    model_digest: str
    paradigm: str
    reasoning: bool
    rating: bool
    aggregation: Literal["any", "mean"]
    prompts: dict[str, str]
    rows: int
    datasets: dict[str, int]
    batchfact_version: str


class Calibration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The logistic model, and the threshold that was best on its scores.

    `temperature` divides the logit of the raw score; `count_weight` is for the natural logarithm of the number of
    findings that were judged, since the lowest of many is lower than that of few; `bias` moves all scores.

    Raises: ValueError for numbers that could turn scores around or give none.
    """

    temperature: float
    count_weight: float
    bias: float
    threshold: float
    fitted: Fitted | None = None

    def __post_init__(self) -> None:
        numbers = (self.temperature, self.count_weight, self.bias)
        if not all(map(math.isfinite, numbers)) or self.temperature <= 0:
            raise ValueError("temperature must be above 0, and it, count_weight and bias finite")
        if not 0 < self.threshold < 1:
            raise ValueError("threshold must lie between 0 and 1")

    def calibrate(self, score: float, num_judged: int) -> float:
        """P(consistent) in [0, 1]; it never falls where `score` rises.

        Args:
            score: the raw score in [0, 1].
            num_judged: findings behind it, at least 1.
        """
        return sigmoid(logit(score) / self.temperature + self.count_weight * math.log(num_judged) + self.bias)


def logit(score: float) -> float:
    """The log-odds of a probability, of at most about 16 in size."""
    clipped = min(max(score, MARGIN), 1 - MARGIN)
    return math.log(clipped / (1 - clipped))


def sigmoid(log_odds: float) -> float:
    return 1 / (1 + math.exp(-log_odds)) if log_odds >= 0 else 1 - 1 / (1 + math.exp(log_odds))


def read_calibration(path: Path) -> Calibration:
    """Raises: UsageError if the file is not there or holds no calibration."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Calibration)
    except OSError as error:
        raise UsageError(f"--calibration {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"--calibration {path} is no calibration that `batchfact calibrate` wrote: {error}") from error


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration, whole or not at all. Raises: UsageError where it cannot be written."""
    if not path.name:
        raise UsageError(f"{path} is no name of a file; give one such as calibration.toml")
    fields = msgspec.to_builtins(calibration)
    fitted = fields.pop("fitted")
    text = _HEAD + toml_lines(fields) + (f"\n[fitted]\n{toml_lines(fitted)}" if fitted else "")
    try:
        with durable_file(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
