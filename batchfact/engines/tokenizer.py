"""A Hugging Face fast tokenizer behind the `Tokenizer` protocol.

A model folder flows in; ids, text and rendered chats flow out. It knows nothing of prompts, segments or engines, and
runs no code that a model folder brings along.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from batchfact.errors import UsageError
from batchfact.records import Message

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


Kind = TypeVar("Kind", bound="FastTokenizer")


class FastTokenizer:
    """Two copies of the Rust tokenizer: whether markers become special tokens is a state of it, not an argument.

    With one copy per setting no thread ever flips the state under another one; the Rust code releases the GIL.
    """

    def __init__(self, pretrained: Any) -> None:
        self.pretrained = pretrained
        """The Hugging Face object, for libraries that ask for it; its state is never changed."""
        self._marked: Backend = _copy_of(pretrained.backend_tokenizer, split_markers=False)
        self._plain: Backend = _copy_of(pretrained.backend_tokenizer, split_markers=True)
        self.bos_id: int | None = _wanted_bos(pretrained)
        self.special_ids = frozenset(
            number for number, token in self._plain.get_added_tokens_decoder().items() if token.special
        )
        """Ids that `decode` leaves out."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        backend = self._marked if special else self._plain
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._plain.decode(ids, skip_special_tokens=True)
        return text

    def render_chat(self, messages: Sequence[Message]) -> str | None:
        if not self.pretrained.chat_template:
            return None
        turns = [{"role": message.role, "content": message.content} for message in messages]
        rendered: str = self.pretrained.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return rendered


class EncoderDecoderTokenizer(FastTokenizer):
    """For models whose decoder begins a text of its own, while the whole prompt is the encoder's."""

    def __init__(self, pretrained: Any) -> None:
        super().__init__(pretrained)
        ids = pretrained("x", add_special_tokens=True)["input_ids"]
        self.end_ids: tuple[int, ...] = (ids[-1],) if ids[-1] in self.special_ids else ()
        """What the tokenizer puts behind a text for the encoder: T5's end-of-sequence."""

    def spell(self, word: str) -> list[int]:
        return self.encode(word, special=False)


@overload
def load_tokenizer(folder: Path) -> FastTokenizer: ...
@overload
def load_tokenizer(folder: Path, kind: type[Kind]) -> Kind: ...
def load_tokenizer(folder: Path, kind: type[FastTokenizer] = FastTokenizer) -> FastTokenizer:
    """The tokenizer of a model folder, from its files alone: no network, no remote code.

    Raises: UsageError where the folder holds no tokenizer that the fast implementation can read.
    """
    from transformers import AutoTokenizer

    try:
        pretrained = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UsageError(f"{folder} holds no tokenizer that can be loaded: {_first_line(error)}") from error
    if not getattr(pretrained, "is_fast", False):
        raise UsageError(f"{folder} has only a slow tokenizer; add its tokenizer.json to the folder")
    return kind(pretrained)


def _copy_of(backend: Backend, *, split_markers: bool) -> Backend:
    copied = copy.deepcopy(backend)
    copied.no_truncation()
    copied.no_padding()
    copied.encode_special_tokens = split_markers
    return copied


def _wanted_bos(pretrained: Any) -> int | None:
    """The BOS where the tokenizer puts one in front by itself: SmolLM2 names a BOS and never adds it."""
    bos: int | None = pretrained.bos_token_id
    if bos is None:
        return None
    ids = pretrained("x", add_special_tokens=True)["input_ids"]
    return bos if ids[:1] == [bos] else None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
