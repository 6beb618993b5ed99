"""A model of the Hugging Face Hub: found in the Hub's own cache, or downloaded into it.

Only the configuration, the safetensors weights and the tokenizer are fetched; code and pickled weights never are. What
can be refused is refused before the weights are downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from batchfact.errors import UsageError
from batchfact.models.folder import (
    CONFIG_FILES,
    DUPLICATE_WEIGHTS,
    TOKENIZER_FILES,
    WEIGHTS,
    WEIGHTS_INDEX,
    Config,
    code_needed,
    has_pickles,
    no_safetensors,
    problem_with,
    wanted,
)
from batchfact.models.registry import HuggingFace

ALLOW = [*CONFIG_FILES, *TOKENIZER_FILES, WEIGHTS_INDEX, WEIGHTS]
# The Hub's patterns cross folders: "*.safetensors" would take "original/model.safetensors" too.
IGNORE = ["*/*", DUPLICATE_WEIGHTS]


def cached_snapshot(source: HuggingFace) -> Path | None:
    """The model's complete snapshot in the Hub's cache on this machine, without asking the network."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(
            snapshot_download(
                source.repo,
                revision=source.revision,
                allow_patterns=ALLOW,
                ignore_patterns=IGNORE,
                local_files_only=True,
            )
        )
    except (OSError, ValueError):
        return None
    return folder if problem_with(folder) is None else None


def download_config(name: str, source: HuggingFace) -> Path:
    """The newest config.json and tokenizer of the model's revision, without its weights.

    Raises: UsageError, in one sentence that says what to do, for a model that cannot be had.
    """
    from huggingface_hub import snapshot_download

    with _said_in_one_sentence(name, source):
        return Path(
            snapshot_download(
                source.repo,
                revision=source.revision,
                allow_patterns=[*CONFIG_FILES, *TOKENIZER_FILES],
                ignore_patterns=IGNORE,
            )
        )


def download_snapshot(name: str, source: HuggingFace) -> Path:
    """The model's newest snapshot of its revision, downloaded where it is not in the cache.

    Raises: UsageError, in one sentence that says what to do, for a model that cannot be had or cannot be run.
    """
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download

    with _said_in_one_sentence(name, source):
        listed = HfApi().model_info(source.repo, revision=source.revision)
        names = [file.rfilename for file in listed.siblings or ()]
        if not any(wanted(file) and file.endswith(".safetensors") for file in names):
            raise UsageError(f"{_label(name, source)} cannot be used: {no_safetensors(has_pickles(names))}")
        config = hf_hub_download(source.repo, "config.json", revision=source.revision)
        refuse_unrunnable(name, msgspec.json.decode(Path(config).read_bytes(), type=Config))
        folder = Path(
            snapshot_download(source.repo, revision=source.revision, allow_patterns=ALLOW, ignore_patterns=IGNORE)
        )
    if problem := problem_with(folder):
        raise UsageError(f"{_label(name, source)} cannot be used: {problem}")
    return folder


def refuse_unrunnable(name: str, config: Config) -> None:
    """Raises: UsageError for a model that needs code of its own."""
    if problem := code_needed(config):
        raise UsageError(f"{name} cannot be used: {problem}")


@contextmanager
def _said_in_one_sentence(name: str, source: HuggingFace) -> Iterator[None]:
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise UsageError(
            f"{name} is gated: accept its licence on the Hugging Face page of {source.repo} and log in with "
            f"`hf auth login`, or register a local copy with `batchfact models add {_new_name(name)} FOLDER`"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UsageError(f"{source.repo} has no revision {source.revision!r}; leave it out for the newest") from error
    except errors.RepositoryNotFoundError as error:
        raise UsageError(
            f"there is no model {source.repo} on the Hugging Face Hub, or it is private: check the name, or log in "
            "with `hf auth login`"
        ) from error
    except errors.EntryNotFoundError as error:
        raise UsageError(f"{_label(name, source)} cannot be used: {_first_line(error)}") from error
    except msgspec.MsgspecError as error:
        raise UsageError(f"{_label(name, source)} cannot be used: its config.json is unreadable ({error})") from error
    except errors.OfflineModeIsEnabled as error:
        raise UsageError(
            f"{_label(name, source)} is not on this machine and HF_HUB_OFFLINE forbids to download it: unset it, or "
            f"copy the model here and register its folder with `batchfact models add {_new_name(name)} FOLDER`"
        ) from error
    # The HTTP library under the Hub's client differs by version; its root error is a base of the Hub's own.
    except (*errors.HfHubHTTPError.__bases__, ValueError) as error:
        raise UsageError(
            f"{_label(name, source)} could not be downloaded ({_first_line(error)}); check the network, or copy the "
            f"model here and register its folder with `batchfact models add {_new_name(name)} FOLDER`"
        ) from error


def _label(name: str, source: HuggingFace) -> str:
    return name if source.repo in name else f"{name} ({source.repo})"


def _new_name(name: str) -> str:
    return name if "/" not in name else "NAME"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__).strip().rstrip(".")
