"""An engine that answers at once, from the prompt alone: for tests of everything around an engine.

It comes in through the entry point like any other engine. `--engine-arg` sets its faults: `latency_s`, `die_after`
(requests; every later one ends the engine, at most `die_times`), `die_text` (prompts holding this text end it),
`hang_after`, `hang_times` and `hang_text` (the same, but the engine answers nothing any more), `start_failures` (so
many restarts fail), `fail_key_text` (prompts holding this text fail), `kv_tokens`, `max_num_seqs`, `log` (a file that
gets a line per request). `text` is what it writes where no schema is asked for: one of several, parted by `|`, by the
prompt's hash. Sampled text ends in its seed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from batchfact.engines.base import (
    Capacity,
    ChooseAnswer,
    EngineSpec,
    LabelIds,
    RequestError,
    Tokenizer,
    WriteAnswer,
)
from batchfact.errors import EngineDiedError, RunFailedError
from batchfact.records import Message, Usage

DEFAULT_MAX_MODEL_LEN = 1_000_000
FIRST_ID = 10
MARKERS = {"<|user|>": 1, "<|assistant|>": 2, "<|end|>": 3}
WORDS = {" Yes": 4, " No": 5}
TEXTS = {word_id: word for word, word_id in WORDS.items()}
PIECES = re.compile(r"(<\|\w+\|>| Yes| No)")


class FakeTokenizer:
    """A token a character, but markers and the label words are single tokens."""

    bos_id: int | None = None

    def encode(self, text: str, *, special: bool) -> list[int]:
        ids: list[int] = []
        for piece in PIECES.split(text):
            if piece in WORDS:
                ids.append(WORDS[piece])
            elif special and piece in MARKERS:
                ids.append(MARKERS[piece])
            else:
                ids.extend(map(FIRST_ID.__add__, map(ord, piece)))
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(each - FIRST_ID) if each >= FIRST_ID else TEXTS.get(each, "") for each in ids)

    def render_chat(self, messages: Sequence[Message]) -> str | None:
        return "".join(f"<|{each.role}|>{each.content}<|end|>" for each in messages) + "<|assistant|>"


class Faults:
    """What goes wrong, counted over all engines that one process starts."""

    def __init__(self, extra: Mapping[str, str]) -> None:
        self.after = {what: float(extra.get(f"{what}_after", "inf")) for what in ("die", "hang")}
        self.times_left = {what: float(extra.get(f"{what}_times", "inf")) for what in ("die", "hang")}
        self.texts = {what: extra.get(f"{what}_text") for what in ("die", "hang")}
        self.start_failures = int(extra.get("start_failures", 0))
        self.num_requests = 0
        self.num_starts = 0

    def happens(self, what: str, text: str) -> bool:
        marked = self.texts[what]
        if self.times_left[what] < 1 or not (self.num_requests > self.after[what] or (marked and marked in text)):
            return False
        self.times_left[what] -= 1
        return True

    def start(self) -> None:
        self.num_starts += 1
        if 1 < self.num_starts <= 1 + self.start_failures:
            raise RunFailedError("the engine did not start")


class FakeEngine:
    def __init__(self, spec: EngineSpec, faults: Faults | None = None) -> None:
        extra = spec.extra
        self.faults = faults or Faults(extra)
        self.is_hanging = False
        self.is_dead = anyio.Event()
        self.tokenizer: Tokenizer = FakeTokenizer()
        self.capacity = Capacity(
            kv_tokens=int(extra.get("kv_tokens", 10_000_000)),
            block_tokens=32,
            max_num_seqs=int(extra.get("max_num_seqs", 256)),
            max_model_len=spec.max_model_len or DEFAULT_MAX_MODEL_LEN,
            num_replicas=spec.data_parallel_size,
        )
        self.latency_s = float(extra.get("latency_s", 0))
        self.fail_key_text = extra.get("fail_key_text")
        self.reads_prompts = any(self.faults.texts.values()) or bool(self.fail_key_text)
        self.texts = extra.get("text", "Each fact was compared with the document.").split("|")
        self.log = Path(extra["log"]) if "log" in extra else None
        self.num_requests = 0

    async def choose(self, prompt_ids: list[int], labels: LabelIds, *, priority: int, replica: int) -> ChooseAnswer:
        await self._work(prompt_ids, priority, replica)
        share = 0.02 + 0.96 * _fraction(prompt_ids)
        rest = (1 - share) / (len(labels) - 1)
        shares = (share, *(rest for _ in labels[1:]))
        return ChooseAnswer(tuple(map(math.log, shares)), Usage(len(prompt_ids), 0, 1))

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
        await self._work(prompt_ids, priority, replica, f" {temperature:g} {seed}" if temperature > 0 else "")
        text = self.texts[int(_fraction(prompt_ids) * len(self.texts))]
        text += f" Seed {seed}." if temperature > 0 else ""
        if schema:
            window = self.tokenizer.decode(prompt_ids).partition("Specified sentences:\n")[2].partition("\n")[0]
            words = sorted(set(re.findall(r"\w+", window)))[:2]
            claims = [{"entity": word, "question": f"What did guest {i} buy?"} for i, word in enumerate(words)]
            text = json.dumps({"claims": claims})
        ids = tuple(self.tokenizer.encode(text, special=False))
        return WriteAnswer(text, ids, "stop", Usage(len(prompt_ids), 0, len(ids)))

    async def _work(self, prompt_ids: list[int], priority: int, replica: int, sampled: str = "") -> None:
        self.num_requests += 1
        if self.log:
            with self.log.open("a", encoding="utf-8") as log:
                log.write(f"{priority} {replica} {len(prompt_ids)}{sampled}\n")
        self.faults.num_requests += 1
        text = self.tokenizer.decode(prompt_ids) if self.reads_prompts else ""
        if self.faults.happens("die", text):
            self.is_dead.set()
        if self.is_dead.is_set():
            raise EngineDiedError("the engine died (as it was told)")
        if self.is_hanging or self.faults.happens("hang", text):
            self.is_hanging = True
            await self.is_dead.wait()
        if self.fail_key_text and self.fail_key_text in text:
            raise RequestError("this prompt is not to my taste")
        if self.latency_s:
            with anyio.move_on_after(self.latency_s):
                await self.is_dead.wait()
                raise EngineDiedError("the engine died (as it was told)")
        else:
            await anyio.lowlevel.checkpoint()


def _fraction(ids: list[int]) -> float:
    return hash(tuple(ids)) % 2**32 / 2**32  # hashes of integers are the same in every process


class Factory:
    spec: EngineSpec | None = None

    def describe(self, spec: EngineSpec) -> dict[str, str]:
        limit = str(spec.max_model_len or DEFAULT_MAX_MODEL_LEN)
        how = {"deterministic": "always"} if spec.deterministic else {}
        return {"engine": "fake", "version": "1", "dtype": spec.dtype or "float32", "max_model_len": limit, **how}

    def load_tokenizer(self, spec: EngineSpec) -> FakeTokenizer:
        return FakeTokenizer()

    @asynccontextmanager
    async def open(self, spec: EngineSpec) -> AsyncIterator[FakeEngine]:
        if spec is not self.spec:
            self.spec, self.faults = spec, Faults(spec.extra)
        self.faults.start()
        yield FakeEngine(spec, self.faults)


factory = Factory()
