"""Where batchfact keeps what it may fetch again (cache) and what the user told it (configuration)."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """BATCHFACT_CACHE, or the platform's cache folder for this user; it need not exist yet."""
    return _folder("BATCHFACT_CACHE", "user_cache_path")


def config_folder() -> Path:
    """BATCHFACT_CONFIG_DIR, or the platform's configuration folder for this user; it need not exist yet."""
    return _folder("BATCHFACT_CONFIG_DIR", "user_config_path")


def _folder(variable: str, default: str) -> Path:
    if chosen := os.environ.get(variable):
        return Path(chosen).expanduser().absolute()
    import platformdirs

    found: Path = getattr(platformdirs, default)("batchfact", appauthor=False)
    return found
