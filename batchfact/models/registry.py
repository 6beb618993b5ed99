"""Names of models: the shipped registry, the user's own, local folders and Hugging Face ids.

A name flows in, a `ModelEntry` flows out. Nothing is fetched and no weights are looked at here.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from batchfact.config import Paradigm
from batchfact.errors import UsageError, nearest
from batchfact.models.folder import problem_with, read_config
from batchfact.models.paths import config_folder
from batchfact.prompts.loader import PromptVariant
from batchfact.toml_text import toml_lines, toml_value

EXPORTED = "batchfact.json"
"""The file of a trained model's folder that says what it was trained for."""
PromptStyle = Literal["chat", "plain", "encoder-decoder"]


class Wheel(
    Struct, frozen=True, kw_only=True, tag_field="kind", tag="wheel", omit_defaults=True, forbid_unknown_fields=True
):
    """A pinned Python wheel with a GGUF file inside; `file` is a pattern that names exactly one of its files."""

    package: str
    version: str
    sha256: str
    file: str


class HuggingFace(
    Struct,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    tag="hugging-face",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """A repository of the Hugging Face Hub; `revision` None is its main branch, `gated` asks for a licence first."""

    repo: str
    revision: str | None = None
    gated: bool = False


class Folder(
    Struct, frozen=True, kw_only=True, tag_field="kind", tag="folder", omit_defaults=True, forbid_unknown_fields=True
):
    """A folder on this machine, with config.json, safetensors and a tokenizer."""

    path: Path


class AdapterFolder(
    Struct, frozen=True, kw_only=True, tag_field="kind", tag="adapter", omit_defaults=True, forbid_unknown_fields=True
):
    """A low-rank adapter on another model of the registry; the two are merged once, on this machine.

    `base_digest` is the hash of the weights that it belongs to. The adapter lies in `path`, or, shipped, in
    `adapters/PACKAGED` beside this file.
    """

    base: str
    base_digest: str
    path: Path | None = None
    packaged: str | None = None

    @property
    def folder(self) -> Path:
        return self.path or Path(__file__).parent / "adapters" / str(self.packaged)


class Untrained(
    Struct, frozen=True, kw_only=True, tag_field="kind", tag="untrained", omit_defaults=True, forbid_unknown_fields=True
):
    """A model that the user has to train first; `how` finishes the sentence that says so."""

    base: str
    how: str


Source = Wheel | HuggingFace | Folder | AdapterFolder | Untrained


class TrainedMode(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A paradigm that a model was tuned for, with or without written reasoning."""

    paradigm: Paradigm
    reasoning: bool


class Excerpts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of each document: sentences aligned with a window, and tokens aligned with a whole summary."""

    align_sentences: int
    context_tokens: int


class ModelEntry(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is known of a model before its weights are here.

    `prompt_style` chat means the tokenizer's chat template where it has one; encoder-decoder means a plain prompt, and
    an engine that runs such models. `prompts` says which variant of the shipped templates it was tuned for, `trained`
    in which ways, and `prompt_digests` with which texts of these templates. `excerpts` is set for a model that was
    tuned on excerpts of documents: runs in these ways align all documents so, unless told otherwise. `labels` are the
    model's words for yes and no, in this order, where they are not " Yes" and " No". `parameters` are billions,
    `context` is tokens; both None if unknown. `calibration` is a file that `batchfact calibrate` wrote, in this
    package's folder or with its whole path; runs use it unless told otherwise.
    """

    name: str
    source: Source
    prompt_style: PromptStyle = "chat"
    prompts: PromptVariant = "full"
    reasoning: bool = False
    labels: tuple[str, str] | None = None
    trained: tuple[TrainedMode, ...] = ()
    prompt_digests: Mapping[str, str] = {}
    excerpts: Excerpts | None = None
    parameters: float | None = None
    context: int | None = None
    licence: str | None = None
    note: str | None = None
    calibration: str | None = None

    @property
    def calibration_file(self) -> Path | None:
        return Path(__file__).parent / self.calibration if self.calibration else None


def list_models() -> tuple[ModelEntry, ...]:
    """Shipped models in their file's order, then the user's own; a user's entry replaces a shipped one of its name.

    Raises: UsageError if the user's registry file cannot be read.
    """
    return tuple((shipped_models() | user_models()).values())


def find_model(name: str) -> ModelEntry:
    """The model behind `name`: a registered name, else an existing local folder, else a Hugging Face `owner/name`.

    A `owner/name@revision` pins the revision. The user's entries come before the shipped ones, so that
    `llama2-7b-distilled` is the user's own once it is registered.

    Raises: UsageError for anything else, with the nearest name.
    """
    known = shipped_models() | user_models()
    if name in known:
        return known[name]
    if source := _source_of(name):
        return _described(name, source)
    if _reads_as_path(name):
        raise UsageError(f"--model {name}: there is no such folder")
    raise UsageError(
        f"--model {name} is no folder, Hugging Face id (owner/name) or name that `batchfact models list` shows"
        f"{nearest(name, known)}"
    )


def registered(name: str) -> ModelEntry | None:
    """The entry of a registered name; None for folders and Hugging Face ids."""
    return (shipped_models() | user_models()).get(name)


def known_entry(name: str) -> ModelEntry | None:
    """What is known of a model beforehand: a registered name's entry, or that of a folder that `batchfact distill
    export` wrote; None for other folders and for Hugging Face ids.

    Raises: UsageError if the user's registry, or the folder's entry, cannot be read.
    """
    return registered(name) or read_exported(Path(name).expanduser())


def add_model(name: str, where: str) -> ModelEntry:
    """Register a local folder or a Hugging Face id under `name`, in the user's registry.

    A shipped name keeps what is known of it (prompt style, label words, trained modes) and gets the new source. For a
    new name the folder's own files tell the context and whether there is a chat template.

    Raises: UsageError for a name that cannot be used, or a folder that no engine could load.
    """
    refuse_pinned(name)
    shipped = shipped_models().get(name)
    source = _source_of(where)
    if source is None:
        raise UsageError(f"{where} is neither an existing folder nor a Hugging Face id (owner/name)")
    exported = read_exported(source.path) if isinstance(source, Folder) else None
    if isinstance(source, Folder) and exported is None and (problem := problem_with(source.path)):
        raise UsageError(f"{where} cannot be registered: {problem}")
    if exported:
        entry = msgspec.structs.replace(exported, name=name)
    elif shipped:
        # Weights of one's own need a calibration of their own.
        entry = msgspec.structs.replace(shipped, source=source, calibration=None)
    else:
        entry = _described(name, source)
    register(entry)
    return entry


def register(entry: ModelEntry) -> None:
    """Put an entry into the user's registry, in the place of an older one of its name.

    Raises: UsageError for a name that cannot be used, or a registry that cannot be written.
    """
    refuse_pinned(entry.name)
    _write_user_models(user_models() | {entry.name: entry})


def refuse_pinned(name: str) -> None:
    """Raises: UsageError for a name that is none, or that of a shipped model with weights of its own."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", name):
        raise UsageError(f"a model's name is letters, digits and . _ + - only, got {name!r}")
    shipped = shipped_models().get(name)
    if shipped and isinstance(shipped.source, Wheel | AdapterFolder):
        raise UsageError(f"{name} is pinned by batchfact and cannot be replaced; choose another name")


@cache
def shipped_models() -> dict[str, ModelEntry]:
    return _decode(files("batchfact.models").joinpath("registry.toml").read_bytes())


def user_registry() -> Path:
    return config_folder() / "models.toml"


def user_models() -> dict[str, ModelEntry]:
    """The user's entries by name, empty without a file. Raises: UsageError if the file is not a registry."""
    path = user_registry()
    try:
        return _decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path} is no readable model registry ({error}); correct it or remove it") from error


def _decode(toml: bytes) -> dict[str, ModelEntry]:
    tables = msgspec.toml.decode(toml, type=dict[str, dict[str, object]])
    named = {name: {"name": name} | fields for name, fields in tables.items()}
    return msgspec.convert(named, dict[str, ModelEntry], dec_hook=_from_toml)


def _from_toml(wanted: type, value: object) -> object:
    if wanted is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(wanted)


def _source_of(where: str) -> Source | None:
    path = Path(where).expanduser()
    if where and path.is_dir():
        return Folder(path=path.resolve())
    if _reads_as_path(where):
        return None
    found = re.fullmatch(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?", where)
    return HuggingFace(repo=found["repo"], revision=found["revision"]) if found else None


def _reads_as_path(name: str) -> bool:
    return (
        name.startswith((".", "/", "~")) or (os.sep != "/" and os.sep in name) or name.partition("@")[0].count("/") > 1
    )


def _described(name: str, source: Source) -> ModelEntry:
    """What a folder's own files say of it; whoever needs them says what is wrong with them."""
    if not isinstance(source, Folder):
        return ModelEntry(name=name, source=source)
    if exported := read_exported(source.path):
        return msgspec.structs.replace(exported, name=name)
    try:
        config = read_config(source.path)
    except (OSError, msgspec.MsgspecError):
        return ModelEntry(name=name, source=source)
    return ModelEntry(
        name=name,
        source=source,
        prompt_style="encoder-decoder" if config.is_encoder_decoder else "chat",
        context=config.max_position_embeddings,
    )


def read_exported(folder: Path) -> ModelEntry | None:
    """The entry that `batchfact distill export` put beside a model, its source being where it lies now; None without.

    Raises: UsageError if it cannot be read.
    """
    path = folder / EXPORTED
    if not path.is_file():
        return None
    try:
        entry = msgspec.json.decode(path.read_bytes(), type=ModelEntry, dec_hook=_from_toml)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path} cannot be read ({error})") from error
    if isinstance(entry.source, AdapterFolder):
        moved: Source = msgspec.structs.replace(entry.source, path=folder.resolve(), packaged=None)
    else:
        moved = Folder(path=folder.resolve())
    return msgspec.structs.replace(entry, source=moved)


def _write_user_models(entries: dict[str, ModelEntry]) -> None:
    text = "# Models registered with `batchfact models add`; the form is that of batchfact's own registry.toml.\n"
    for name, entry in entries.items():
        fields = msgspec.to_builtins(entry, enc_hook=str)
        del fields["name"]
        text += f"\n[{toml_value(name)}]\n{toml_lines(fields)}"
    path = user_registry()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as draft:
            draft.write(text)
        Path(draft.name).replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); set BATCHFACT_CONFIG_DIR") from error
