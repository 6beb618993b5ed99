"""What is evaluated: the rows of one scored file as arrays, and the name of the system that scored them.

Nothing is read here; `reading` makes these, and anything else that has labels and scores may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from batchfact.config import FoldPolicy, Identity
from batchfact.evaluate.metrics import Labels, Scores

Texts = NDArray[np.object_]
Counts = NDArray[np.int64]

UNKNOWN_LENGTH = -1
_REPEATED = ("seed", "temperature", "instruction", "demonstrations")
"""Settings that may differ between repeated runs of one system."""
_NOT_NAMED = (*_REPEATED, "model", "paradigm", "document_column", "summary_column", "reasoning")


class Rows(Struct, frozen=True, kw_only=True):
    """Rows as arrays of one length.

    `gold` and `predicted` are labels (1, 0, -1 none), `ratings` human scores, `scores` and `raw_scores` P(consistent);
    NaN for none. `num_judged` counts a row's ok findings. Lengths are in words, -1 where the text is not there. Texts
    are str, or None; `error_types` are tuples of names.
    """

    ids: Texts
    gold: Labels
    ratings: Scores
    predicted: Labels
    scores: Scores
    raw_scores: Scores
    num_judged: Counts
    statuses: Texts
    datasets: Texts
    splits: Texts
    summarizers: Texts
    error_types: Texts
    summary_words: Counts
    document_words: Counts

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> Rows:
        """The rows that a mask marks, or those at the places given."""
        return Rows(**{name: getattr(self, name)[chosen] for name in self.__struct_fields__})

    def by_dataset(self) -> dict[str, NDArray[np.intp]]:
        """The places of each data set's rows, by name."""
        return {name: np.flatnonzero(self.datasets == name) for name in sorted(set(self.datasets.tolist()))}


def join_rows(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, one part after the other."""
    return Rows(**{name: np.concatenate([getattr(each, name) for each in parts]) for name in Rows.__struct_fields__})


class Origin(NamedTuple):
    """The run that wrote a shard, by all that it says of itself, and the shard's first row in that run's input."""

    run: str
    first_row: int


class Run(Struct, frozen=True, kw_only=True):
    """One scored file: its rows and what made it.

    `system` names model, paradigm and settings: what repeated runs have in common; `repeat` names what they may differ
    in. `base_system` is the system without its number of shots. `score_column` is a column made elsewhere, None for
    batchfact's own verdicts; `facts` is then the file's metadata.
    """

    file: str
    system: str
    repeat: str
    base_system: str
    shots: int
    has_upper_bounds: bool
    rows: Rows
    score_column: str | None = None
    facts: Mapping[str, Any] = {}
    origin: Origin | None = None
    notes: tuple[str, ...] = ()


def join_shards(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs, with shards of one run, named one by one, as one; one that is there twice stays a run of its own."""
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        key: tuple[object, ...] = (run.origin.run, run.score_column) if run.origin else (id(run),)
        same = groups.setdefault(key, [])
        if any(each.origin == run.origin for each in same):
            same = groups.setdefault((id(run),), [])
        same.append(run)
    return tuple(_joined(same) for same in groups.values())


def _joined(shards: Sequence[Run]) -> Run:
    if len(shards) == 1:
        return shards[0]
    files = [run.file for run in shards]
    notes = [note for run in shards for note in run.notes]
    return msgspec.structs.replace(
        shards[0],
        file=", ".join(files),
        rows=join_rows([run.rows for run in shards]),
        notes=(*notes, f"{' and '.join(files)} are taken together: they are shards of one run"),
    )


def system_name(facts: Mapping[str, Any], *, with_shots: bool = True) -> str:
    """Model, paradigm and every setting that is not the default, but for what repeated runs may differ in."""
    identity, fold = facts["identity"], facts["fold"]
    words = [str(identity["model"]), str(identity["paradigm"])]
    if identity.get("reasoning") and identity["paradigm"] != "cot":
        words.append("reasoning")
    defaults = msgspec.to_builtins(Identity()) | msgspec.to_builtins(FoldPolicy())
    settings = {**identity, **fold}
    if settings.get("calibration"):
        words.append("calibrated")
    for name, default in defaults.items():
        value = settings.get(name, default)
        if name in _NOT_NAMED or name == "calibration" or value == default:
            continue
        if name == "threshold" and settings.get("calibration"):
            continue
        if name == "shots":
            words.extend([f"{value}-shot"] if with_shots else [])
        elif value is True:
            words.append(name.replace("_", " "))
        else:
            words.append(f"{name.replace('_', ' ')} {value}")
    return " ".join(words)


def repeat_name(identity: Mapping[str, Any], file: str) -> str:
    said = [f"{name} {identity[name]}" for name in ("instruction", "seed", "temperature") if identity.get(name)]
    return ", ".join([PurePath(file).name, *said])
