"""What a model's folder holds: its files, its configuration, and whether an engine could load it.

A folder flows in; the names of its files, facts of its config.json, or one sentence on what is wrong flow out. Only
safetensors count as weights: a pickle can run code.
"""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import msgspec
from msgspec import Struct

CONFIG_FILES = ("config.json", "generation_config.json")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
WEIGHTS = "*.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
# A repository may hold the same weights once more in its authors' own layout.
DUPLICATE_WEIGHTS = "consolidated*.safetensors"


class Config(Struct, frozen=True, kw_only=True):
    """The few facts of config.json that decide whether and how a model can run."""

    model_type: str = ""
    is_encoder_decoder: bool = False
    max_position_embeddings: int | None = None
    auto_map: dict[str, object] = {}


class _Index(Struct, frozen=True):
    weight_map: dict[str, str]


def wanted(name: str) -> bool:
    """Whether a file of a model's folder or repository, named relative to it, decides the model's answers."""
    if fnmatch(name, WEIGHTS):
        return "/" not in name and not fnmatch(name, DUPLICATE_WEIGHTS)
    return name in (*CONFIG_FILES, *TOKENIZER_FILES, WEIGHTS_INDEX)


def model_files(folder: Path) -> list[Path]:
    """The files that decide the model's answers, sorted by name."""
    return sorted(path for path in folder.iterdir() if wanted(path.name))


def read_config(folder: Path) -> Config:
    """Raises: OSError or msgspec.MsgspecError; `problem_with` says it in a sentence."""
    return msgspec.json.decode((folder / "config.json").read_bytes(), type=Config)


def problem_with(folder: Path) -> str | None:
    """Why no engine could load the folder, as the end of a sentence; None if it is complete."""
    if not folder.is_dir():
        return f"{folder} is no folder"
    if not (folder / "config.json").is_file():
        return "config.json is missing"
    try:
        config = read_config(folder)
        missing = _missing_weights(folder)
    except (OSError, msgspec.MsgspecError) as error:
        return f"its configuration cannot be read ({error})"
    if missing:
        return missing
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        return "the tokenizer is missing (tokenizer.json or tokenizer.model)"
    return code_needed(config)


def code_needed(config: Config) -> str | None:
    """Why the model needs code from its repository to load, as the end of a sentence; None if it does not."""
    if "AutoConfig" not in config.auto_map:
        return None
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if config.model_type in CONFIG_MAPPING_NAMES:
        return None
    return (
        f"its architecture {config.model_type!r} comes as code in the repository, which batchfact never runs; "
        "convert it to an architecture that transformers knows, or choose another model"
    )


def _missing_weights(folder: Path) -> str | None:
    if (folder / WEIGHTS_INDEX).is_file():
        shards = set(msgspec.json.decode((folder / WEIGHTS_INDEX).read_bytes(), type=_Index).weight_map.values())
        absent = sorted(shard for shard in shards if not (folder / shard).is_file())
        return f"{len(absent)} of its {len(shards)} weight files are missing ({absent[0]})" if absent else None
    if any(path.match(WEIGHTS) for path in model_files(folder)):
        return None
    return no_safetensors(any(_is_pickle(path.name) for path in folder.iterdir()))


def no_safetensors(has_pickles: bool) -> str:
    if has_pickles:
        return (
            "its weights are pickles (.bin or .pt), which can run code; "
            "save them again with transformers' save_pretrained, which writes safetensors, and register that folder"
        )
    return "it has no safetensors weights"


def _is_pickle(name: str) -> bool:
    return name.endswith((".bin", ".pt", ".pth", ".ckpt"))


def has_pickles(names: list[str]) -> bool:
    return any(map(_is_pickle, names))
