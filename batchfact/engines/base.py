"""What an engine promises, and how one is found.

Token ids flow in, log-probabilities and text flow out. An engine knows nothing of pairs, paradigms or prompts' meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec import Struct

from batchfact.errors import UsageError, nearest
from batchfact.records import FindingStatus, Finish, Message, Usage

LabelIds = tuple[tuple[int, ...], ...]
"""For each label the ids of its spellings (with and without leading space, other case); no id in two labels."""


class Tokenizer(Protocol):
    """Text to ids and back; safe to call from worker threads."""

    bos_id: int | None
    """The id that must stand first in every prompt, exactly once; None where the model wants none."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Ids of `text` with nothing added; `special` says whether markers in it become special tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out."""

    def render_chat(self, messages: Sequence[Message]) -> str | None:
        """The model's chat template over `messages`, open for the assistant's turn; None for a base model."""


@runtime_checkable
class LabelSpeller(Protocol):
    """What a tokenizer adds where an answer does not go on in the prompt's own text, so no cue stands before it."""

    def spell(self, word: str) -> list[int]:
        """Ids of `word` as the first of an answer."""


@runtime_checkable
class EstimatingTokenizer(Protocol):
    """What a tokenizer adds whose ids are not the model's tokens."""

    ids_a_token: int
    """About how many of its ids make one token."""


class Server(Struct, frozen=True, kw_only=True):
    """A server that runs the model; the key itself stays in the environment variable `api_key_env`."""

    base_url: str
    model: str
    api_key_env: str | None = None


class EngineSpec(Struct, frozen=True, kw_only=True):
    """All that an engine needs to start. `None` leaves a choice to the engine."""

    model: Path
    max_model_len: int | None = None
    dtype: str | None = None
    quantization: str | None = None
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    gpu_memory_utilization: float | None = None
    kv_cache_bytes: int | None = None
    compile: bool = False
    seed: int = 0
    deterministic: bool = False
    """Answers must not depend on what else is asked, as far as the engine can do it; `describe` says how."""
    samples: bool = False
    """Text is written at a temperature above 0, each request with a seed of its own."""
    writes: bool = False
    """Some requests have the model write text: many steps, where a label takes one."""
    log_file: Path | None = None
    """Where the engine's own log goes; None leaves it on standard error."""
    extra: Mapping[str, str] = {}
    server: Server | None = None
    """Where another process runs the model; `model` is then no folder."""


class Capacity(Struct, frozen=True, kw_only=True):
    """What a started engine can hold, for one replica. `kv_tokens` counts tokens, `block_tokens` those of one block."""

    kv_tokens: int
    block_tokens: int
    max_num_seqs: int
    max_model_len: int
    num_replicas: int = 1


class ChooseAnswer(Struct, frozen=True):
    logprobs: tuple[float, ...]
    """For each label the log of the summed probability of its spellings, under the full vocabulary."""
    usage: Usage
    label: int | None = None
    """The place of the label that the text names, where an engine has no probabilities; `logprobs` is then empty."""


class WriteAnswer(Struct, frozen=True):
    text: str
    ids: tuple[int, ...]
    """The ids that decode to exactly `text`; stop strings and end-of-turn tokens are not among them."""
    finish: Finish
    usage: Usage


class RequestError(Exception):
    """One request failed and others go on; `status` is that of the finding it was for."""

    def __init__(self, message: str, status: FindingStatus = "engine_error") -> None:
        super().__init__(message)
        self.status: FindingStatus = status


class Engine(Protocol):
    """A started engine. Cancelling the task that waits for an answer aborts the request.

    Both methods raise RequestError where only this request failed, EngineDiedError where the engine is dead and could
    be started again, and RunFailedError where that would not help.
    """

    capacity: Capacity
    tokenizer: Tokenizer

    async def choose(self, prompt_ids: list[int], labels: LabelIds, *, priority: int, replica: int) -> ChooseAnswer:
        """Log-probabilities of `labels` right after `prompt_ids`; lower `priority` goes first."""

    async def write(
        self,
        prompt_ids: list[int],
        *,
        max_tokens: int,
        stop: tuple[str, ...],
        schema: str | None,
        priority: int,
        replica: int,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> WriteAnswer:
        """Text after `prompt_ids`; the text ends before the first of `stop`.

        Greedy at temperature 0, which has no use for the seed; above it sampled, the same text for the same seed (a
        32-bit number) as far as the engine's arithmetic repeats.
        """


class EngineFactory(Protocol):
    """What the entry point names: a module or object that describes and opens an engine."""

    def describe(self, spec: EngineSpec) -> dict[str, str]:
        """Facts for the run's identity, without loading the model: engine, minor version, dtype, quantisation.

        `max_model_len`, where an engine knows it beforehand, says which documents fit.
        """

    def load_tokenizer(self, spec: EngineSpec) -> Tokenizer:
        """The model's tokenizer, without the engine: for plan, explain and the checks before the start."""

    def open(self, spec: EngineSpec) -> AbstractAsyncContextManager[Engine]:
        """Start the engine; leaving the block shuts it down."""


def find_engine(name: str) -> EngineFactory:
    """The factory behind an engine's name.

    Raises: UsageError for an unknown name, or for an engine whose package is not installed.
    """
    found = {entry.name: entry for entry in entry_points(group="batchfact.engines")}
    if name not in found:
        raise UsageError(f"--engine {name} is unknown, there are {', '.join(sorted(found))}{nearest(name, found)}")
    factory: EngineFactory = found[name].load()
    return factory
