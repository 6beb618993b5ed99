"""Finds summaries that say things their document does not support.

import batchfact

verdicts = batchfact.score([("The shop sold 3 lamps.", "Four lamps were sold.")])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["BatchfactError", "Pair", "Scored", "Scorer", "Unscored", "Verdict", "__version__", "score"]

if TYPE_CHECKING:
    from batchfact.api import Scored, Scorer, score
    from batchfact.errors import BatchfactError
    from batchfact.records import Pair, Unscored, Verdict

_HOMES = {
    "BatchfactError": "batchfact.errors",
    "Pair": "batchfact.records",
    "Scored": "batchfact.api",
    "Scorer": "batchfact.api",
    "Unscored": "batchfact.records",
    "Verdict": "batchfact.records",
    "score": "batchfact.api",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, so that the command line's help stays quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'batchfact' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
