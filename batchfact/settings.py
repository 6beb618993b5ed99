"""Options by name, from the command line and from a TOML file, made into one `RunConfig`.

Names are those of the command line without dashes in front (`window-sentences`). What the command line gives goes
before the file, the file before the defaults.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from batchfact.calibration import Calibration, read_calibration
from batchfact.config import BASE_MODEL, CHEN, DEFAULT_MODEL, FoldPolicy, Identity, OutputOptions, RunConfig, Runtime
from batchfact.errors import UsageError, nearest
from batchfact.models import ModelEntry, TrainedMode, known_entry, registered
from batchfact.sharding import parse_shard

SECTIONS: dict[str, type[Struct]] = {
    "identity": Identity,
    "fold": FoldPolicy,
    "columns": OutputOptions,
    "runtime": Runtime,
}
OPTION_OF_FIELD = {"kv_cache_bytes": "kv-cache-memory", "engine_args": "engine-arg"}
"""Fields whose option has another name than theirs; both names are understood."""

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def option_names() -> dict[str, tuple[str, str]]:
    """For each option its section and field."""
    fields = [(section, field) for section, kind in SECTIONS.items() for field in kind.__struct_fields__]
    by_field = {field.replace("_", "-"): (section, field) for section, field in fields}
    renamed = {OPTION_OF_FIELD[field]: (section, field) for section, field in fields if field in OPTION_OF_FIELD}
    return by_field | renamed


def make_config(
    inputs: tuple[str, ...], output: str, options: Mapping[str, Any], *, file: Path | None = None
) -> RunConfig:
    """Decode options into a checked configuration; an option that is None was not given.

    Raises: UsageError for an unknown name, a wrong type or a value out of range.
    """
    given = {**(read_options(file) if file else {}), **{name: v for name, v in options.items() if v is not None}}
    known = option_names()
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for name, value in given.items():
        if name not in known:
            raise UsageError(f"there is no option {name!r}{nearest(name, known)}")
        section, field = known[name]
        sections[section][field] = _PARSERS[field](value) if field in _PARSERS else value
    chosen = sections["fold"].pop("calibration", None)
    made: dict[str, Any] = {section: _convert(sections[section], kind) for section, kind in SECTIONS.items()}
    if "model" not in sections["identity"]:
        made["identity"] = msgspec.structs.replace(made["identity"], model=default_model(made["identity"]))
    made["identity"] = with_own_excerpts(made["identity"], sections["identity"])
    entry = None if made["runtime"].base_url else known_entry(made["identity"].model)
    calibration = _calibration(chosen, entry)
    facts = method_facts(made["identity"], entry)
    if "aggregation" not in sections["fold"]:
        aggregation = default_aggregation(made["identity"], calibration, facts)
        made["fold"] = msgspec.structs.replace(made["fold"], aggregation=aggregation)
    config = RunConfig(inputs=inputs, output=output, **made)
    why = calibration and unfit(calibration, facts, config.fold.aggregation)
    if why and chosen is not None:
        raise UsageError(f"--calibration does not fit: {why}; fit one with batchfact calibrate, or give none")
    if calibration is None or why:
        return config
    threshold = sections["fold"].get("threshold", calibration.threshold)
    fold = msgspec.structs.replace(config.fold, calibration=calibration, threshold=threshold)
    return msgspec.structs.replace(config, fold=fold)


def _calibration(chosen: Any, entry: ModelEntry | None) -> Calibration | None:
    """The calibration that was named, or else the model's own; whether it is for the run's method is not looked at.

    Args:
        chosen: a file, `none`, the calibration itself (also as run.json holds it), or None for the model's own.
    Raises: UsageError if the one that was named cannot be read.
    """
    if chosen == "none":
        return None
    if chosen is None:
        return read_calibration(entry.calibration_file) if entry and entry.calibration_file else None
    return read_calibration(Path(chosen)) if isinstance(chosen, str | Path) else _convert(chosen, Calibration)


def default_aggregation(identity: Identity, calibration: Calibration | None, facts: Mapping[str, Any]) -> str:
    """How findings are put together unless told: as a calibration for this method was fitted, else as in the papers.

    A rating is a number for the whole summary, so no single window decides there.
    """
    if calibration and calibration.fitted and unfit(calibration, facts, calibration.fitted.aggregation) is None:
        return calibration.fitted.aggregation
    if not identity.rating:
        return "any"
    return "share" if identity.paradigm == "qg-qa" else "mean"


def method_facts(identity: Identity, entry: ModelEntry | None) -> dict[str, Any]:
    """What a calibration must agree with, beside the aggregation (`unfit`)."""
    return {
        "paradigm": identity.paradigm,
        "reasoning": reasons(identity, entry),
        "rating": identity.rating,
        "label_mode": identity.label_mode,
    }


def reasons(identity: Identity, entry: ModelEntry | None) -> bool:
    """Whether the model reasons before each label: what is asked for, or else what the model was made for."""
    if identity.paradigm in CHEN:
        return identity.paradigm == "cot"
    return (entry is not None and entry.reasoning) if identity.reasoning is None else identity.reasoning


def default_model(identity: Identity) -> str:
    """The embedded model for a method: the tuned one for what it was tuned for, else its base.

    Tuning on labels alone took the small model's gift of writing: questions, reasoning and free answers need the base.
    """
    tuned = registered(DEFAULT_MODEL)
    assert tuned is not None, f"{DEFAULT_MODEL} is in the registry"
    is_plain = identity.label_mode == "probability" and identity.window_context == "none" and not identity.rating
    mode = TrainedMode(paradigm=identity.paradigm, reasoning=reasons(identity, tuned))
    return DEFAULT_MODEL if is_plain and mode in tuned.trained else BASE_MODEL


def with_own_excerpts(identity: Identity, given: Container[str]) -> Identity:
    """The identity with the excerpts that its model was tuned on, but for the settings that were given."""
    entry = known_entry(identity.model)
    mode = TrainedMode(paradigm=identity.paradigm, reasoning=reasons(identity, entry))
    if entry is None or entry.excerpts is None or mode not in entry.trained:
        return identity
    own = {"long_documents": "align", **msgspec.structs.asdict(entry.excerpts)}
    return msgspec.structs.replace(identity, **{name: value for name, value in own.items() if name not in given})


def unfit(calibration: Calibration, facts: Mapping[str, Any], aggregation: str) -> str | None:
    """Why a calibration means nothing for a run's method and aggregation; None where it may be used."""
    if facts["label_mode"] == "parse":
        return "it is for probabilities, and --label-mode parse has none"
    if calibration.fitted is None:
        return None
    here = {**facts, "aggregation": aggregation}
    for name in ("paradigm", "reasoning", "rating", "aggregation"):
        fitted = getattr(calibration.fitted, name)
        if fitted != here[name]:
            return f"it was fitted with {name} {fitted}, this run has {here[name]}"
    return None


def fitted_otherwise(calibration: Calibration, *, model_digest: str, prompts: Mapping[str, str]) -> str | None:
    """What to tell where a calibration may be used, but was fitted with other weights or prompts than a run has."""
    if calibration.fitted is None:
        return None
    pairs = {
        "model weights": (calibration.fitted.model_digest, model_digest),
        "prompts": (calibration.fitted.prompts, prompts),
    }
    others = [name for name, (fitted, here) in pairs.items() if fitted != here]
    return f"the calibration was fitted with other {' and '.join(others)}" if others else None


def read_options(file: Path) -> dict[str, Any]:
    """Options of a TOML file, flat; `window_sentences` and `window-sentences` are the same.

    Raises: UsageError if the file is not there or not TOML, or holds an unknown option.
    """
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--config {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {file} is not TOML: {error}") from error
    options = {name.replace("_", "-"): value for name, value in found.items()}
    known = option_names()
    for name in options:
        if name not in known:
            raise UsageError(f"--config {file}: there is no option {name!r}{nearest(name, known)}")
    return options


def parse_bytes(size: str | int) -> int:
    """`4GiB`, `512 MB` or a plain number as bytes.

    Raises: UsageError for anything else.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?\s*", str(size).lower())
    if match is None:
        raise UsageError(f"--kv-cache-memory takes a size such as 4GiB, got {size!r}")
    return int(float(match[1]) * _UNITS[match[2]])


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "kv_cache_bytes": parse_bytes,
    "shard": lambda text: msgspec.to_builtins(parse_shard(text)),
}
"""Fields whose text has a form of its own."""


def parse_pairs(words: list[str], option: str) -> dict[str, str]:
    """`K=V` words as a dict.

    Raises: UsageError for a word without `=`.
    """
    for word in words:
        if "=" not in word:
            raise UsageError(f"{option} takes NAME=VALUE, got {word!r}")
    return dict(word.split("=", 1) for word in words)


def _decode(kind: type, value: Any) -> Any:
    """Paths, which msgspec does not know."""
    if kind is Path and isinstance(value, str):
        return Path(value).expanduser()
    raise NotImplementedError(f"{kind} from {value!r}")


def _convert(values: dict[str, Any], kind: type[Struct]) -> Any:
    try:
        return msgspec.convert(values, kind, dec_hook=_decode)
    except msgspec.ValidationError as error:
        field = re.search(r"\$\.(\w+)", str(error))
        name = OPTION_OF_FIELD.get(field[1], field[1].replace("_", "-")) if field else ""
        reason = re.sub(r" - at `\$.*", "", str(error))
        raise UsageError(f"--{name}: {reason}" if name else reason) from error
