"""An adapter's model in the cache: the base is fetched, the adapter merged into it, once.

An adapter and a way to get its base flow in; the merged folder flows out. An adapter only ever meets the weights that
it was trained on: those whose digest it names.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from batchfact.errors import UsageError
from batchfact.models.adapter import ADAPTER_WEIGHTS, MERGE, Adapter, merge
from batchfact.models.digest import file_sha256, model_digest
from batchfact.models.folder import problem_with
from batchfact.models.made_once import made_once
from batchfact.models.paths import cache_folder
from batchfact.models.registry import AdapterFolder
from batchfact.models.wheel import Tell


def merged_folder(name: str, source: AdapterFolder) -> Path:
    """Where the merged model lies; the name changes with the adapter, the base and the way of merging.

    Raises: UsageError if the adapter is not there.
    """
    try:
        digest = file_sha256(source.folder / ADAPTER_WEIGHTS)
    except OSError as error:
        raise UsageError(f"the adapter of {name} is not at {source.folder} ({error.strerror})") from error
    return cache_folder() / "models" / name / f"{digest[:12]}-{source.base_digest[:12]}-{MERGE}"


def is_merged(name: str, source: AdapterFolder) -> bool:
    return (source.folder / ADAPTER_WEIGHTS).is_file() and problem_with(merged_folder(name, source)) is None


def locate_merged(name: str, source: AdapterFolder, locate_base: Callable[[], Path], *, tell: Tell) -> Path:
    """The merged model's folder, made first where it is missing.

    Raises: UsageError for an adapter that is missing or belongs to another base, or a cache that cannot be written.
    """

    def make(draft: Path) -> None:
        base = locate_base()
        if (found := model_digest(base)) != source.base_digest:
            raise UsageError(
                f"{name} is an adapter of another base: it was trained on {source.base} with the digest "
                f"{source.base_digest[:12]}..., which is {found[:12]}... here"
            )
        tell(f"Merging {name} into {source.base}")
        merge(base, Adapter(source.folder), draft / "model")

    return made_once(name, merged_folder(name, source), make)
