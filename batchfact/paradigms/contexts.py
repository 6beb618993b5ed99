"""What of a document a judgement is shown: all of it, the sentences nearest to what is judged, or chunk after chunk.

A document, a template with its other fields, and the text that is judged flow in; excerpts flow out, and the program
that judges by them. Tokens are counted by functions that come from outside; the module knows no model. What is judged
is never cut: where nothing of the document fits beside it, the finding is `too_long`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from batchfact.config import AlignObjective, LongDocuments
from batchfact.paradigms.judging import judge, text_tokens
from batchfact.paradigms.program import Program, in_step
from batchfact.prompts.loader import PromptTemplate
from batchfact.records import Finding, Prompt, Span, Tokens
from batchfact.text.chunks import chunks, tiles
from batchfact.text.rouge import Aligner, Integers
from batchfact.text.sentences import sentences

SLACK_TOKENS = 16
"""Kept free beside an excerpt: for the cue after a reasoning, and because parts counted apart may join differently."""
NEAR_TOKENS = 64
"""A prompt whose parts, counted apart, come this near to the limit is counted as a whole."""
SIZE_STEP = 256
"""Chunk sizes are multiples of this, so that windows of other lengths get the same chunks, and share their prefixes."""
MIN_CHUNK_TOKENS = 32
"""Where less is left for a chunk, the document is too long."""
KEPT_DOCUMENTS = 32
"""Documents whose counts are kept for their next pair."""


class Excerpt(Struct, frozen=True, kw_only=True):
    """What is shown in a document's place. `spans` are its parts in the document; empty where it is the whole.

    `left_out` counts document sentences that are not shown; `chunk` is set where other chunks hold the rest.
    """

    text: str
    spans: tuple[Span, ...] = ()
    left_out: int = 0
    chunk: int | None = None


class Room(Struct, frozen=True, kw_only=True):
    """What a document may take, and how it is cut down to that.

    `model_tokens` is the longest prompt with its answer, None where it is not known: then every document fits.
    `max_sentences` and `max_tokens` bound an aligned excerpt.
    """

    mode: LongDocuments = "fail"
    objective: AlignObjective = "greedy"
    model_tokens: int | None = None
    max_sentences: int | None = None
    max_tokens: int | None = None


class Counters(Struct, frozen=True):
    """How the model's tokens are counted: of a plain text, and of a whole prompt with its markers."""

    text: Callable[[str], int]
    prompt: Callable[[Prompt], int]


class Contexts:
    """Gives each document its `DocumentContext`; those of the last documents are kept. Safe to share between threads.

    Args:
        counters: may be None where the mode is `fail`, which counts nothing.
    """

    def __init__(self, room: Room = Room(), counters: Counters | None = None) -> None:  # noqa: B008 - it is frozen
        self.room = room
        self._counters = counters
        self.of = lru_cache(KEPT_DOCUMENTS)(self._of)

    def _of(self, document: str) -> DocumentContext:
        return DocumentContext(document, self.room, self._counters)


class DocumentContext:
    """One document, with what was found out about it once: its tokens, sentences, n-grams and chunks."""

    def __init__(self, document: str, room: Room, counters: Counters | None) -> None:
        self.document = document
        self._room = room
        self._counters = counters
        self._chunks: dict[int, tuple[Excerpt, ...]] = {}

    def prepare(self, template: PromptTemplate, **fields: str) -> None:
        """Do what is done once for the whole document, for a caller that may take its time now and not later."""
        self.excerpts(template, target="", **fields)

    def excerpts(self, template: PromptTemplate, *, target: str, **fields: str) -> tuple[Excerpt, ...]:
        """What is shown for one judgement; see `shown`."""
        return self.shown(template, fields, target=target, answer_tokens=reserved_tokens(template))

    def shown(
        self, template: PromptTemplate, fields: dict[str, str], *, target: str, answer_tokens: int
    ) -> tuple[Excerpt, ...]:
        """What is shown when `template` is filled with `fields` and a document: one excerpt, or every chunk.

        Args:
            target: what is judged; sentences are aligned with it.
            answer_tokens: kept free beside the prompt.
        Returns: nothing where no part of the document fits beside the fields.
        """
        whole = (Excerpt(text=self.document),)
        if self._counters is None or not self.document.strip():
            return whole
        if self._room.mode != "align" and self._fits(self._counters, template, fields, answer_tokens):
            return whole
        room = self._room_for_document(self._counters, template, fields, answer_tokens)
        if self._room.mode == "chunk":
            return self._chunked(self._counters, room)
        return self._aligned(self._counters, target, room)

    def _fits(self, counters: Counters, template: PromptTemplate, fields: dict[str, str], answer_tokens: int) -> bool:
        """Whether the prompt with the whole document fits; tokens are only counted where bytes do not tell."""
        limit = self._room.model_tokens
        if limit is None or self._room.mode == "fail":
            return True
        limit -= answer_tokens
        prompt = template.fill(document=self.document, **fields)
        if num_bytes(prompt) <= limit:
            return True
        apart = self._num_tokens + counters.prompt(template.fill(document="", **fields))
        return apart <= limit if abs(apart - limit) > NEAR_TOKENS else counters.prompt(prompt) <= limit

    def _room_for_document(
        self, counters: Counters, template: PromptTemplate, fields: dict[str, str], answer_tokens: int
    ) -> int | None:
        """Tokens that are left beside the rest of the prompt and its answer; None where no limit is known."""
        if self._room.model_tokens is None:
            return None
        rest = counters.prompt(template.fill(document="", **fields))
        return self._room.model_tokens - rest - answer_tokens - SLACK_TOKENS

    def _aligned(self, counters: Counters, target: str, room: int | None) -> tuple[Excerpt, ...]:
        bounds = [bound for bound in (room, self._room.max_tokens) if bound is not None]
        budget = min(bounds) if bounds else None
        taken = list(
            self._aligner.select(
                target,
                objective=self._room.objective,
                max_sentences=self._room.max_sentences,
                costs=None if budget is None else self._costs,
                budget=budget or 0,
            )
        )
        while taken and budget is not None and counters.text(self._joined(taken)) > budget:
            taken.pop()
        if not taken:
            return ()
        return (
            Excerpt(
                text=self._joined(taken),
                spans=tuple(self._sentences[number] for number in sorted(taken)),
                left_out=len(self._sentences) - len(taken),
            ),
        )

    def _joined(self, numbers: list[int]) -> str:
        """Sentences in document order, each with the white space that follows it in the document."""
        return "".join(self._tiles[number] for number in sorted(numbers)).strip()

    def _chunked(self, counters: Counters, room: int | None) -> tuple[Excerpt, ...]:
        if room is None or room < MIN_CHUNK_TOKENS:
            return ()
        size = room // SIZE_STEP * SIZE_STEP or room
        if size not in self._chunks:
            spans = chunks(self.document, max_tokens=size, count_tokens=counters.text)
            texts = [self.document[span.start : span.end] for span in spans]
            self._chunks[size] = tuple(
                Excerpt(text=text, spans=(span,), chunk=number)
                for number, (text, span) in enumerate(zip(texts, spans, strict=True))
                if text.strip()
            )
        return self._chunks[size]

    @cached_property
    def _num_tokens(self) -> int:
        assert self._counters is not None
        return self._counters.text(self.document.strip())

    @cached_property
    def _sentences(self) -> tuple[Span, ...]:
        return sentences(self.document)

    @cached_property
    def _tiles(self) -> list[str]:
        return [self.document[tile.start : tile.end] for tile in tiles(self.document)]

    @cached_property
    def _aligner(self) -> Aligner:
        return Aligner(self._tiles)

    @cached_property
    def _costs(self) -> Integers:
        assert self._counters is not None
        return np.array([self._counters.text(tile) for tile in self._tiles], dtype=np.int64)


def judge_document(
    document: DocumentContext, template: PromptTemplate, key: str, about: Finding, *, target: str, **fields: str
) -> Program:
    """Judge `fields` by what of `document` is shown for `target`: one finding, or one for each chunk.

    Findings of chunks come together, so that nobody takes one for the whole; the fold makes one of them.
    Source: Xu 2024, appendix B. Differs: chunks are not in the paper.
    """
    shown = document.excerpts(template, target=target, **fields)
    if not shown:
        return (without_room(about),)
    programs = [
        judge(template, key_of(key, excerpt), judged_by(about, excerpt), document=excerpt.text, **fields)
        for excerpt in shown
    ]
    return (yield from in_step(programs))


def key_of(key: str, excerpt: Excerpt) -> str:
    """The request's key, its own for each chunk."""
    return key if excerpt.chunk is None else f"{key}.c{excerpt.chunk}"


def judged_by(about: Finding, excerpt: Excerpt) -> Finding:
    return msgspec.structs.replace(about, evidence=excerpt.spans, left_out=excerpt.left_out, chunk=excerpt.chunk)


def without_room(about: Finding) -> Finding:
    message = "nothing of the document fits beside what is judged"
    return msgspec.structs.replace(about, status="too_long", message=message)


def reserved_tokens(template: PromptTemplate) -> int:
    """Tokens that the first request with `template` keeps for its answer."""
    if template.parses:
        return text_tokens(template)
    return 1 if template.answer_cue is None else template.reasoning_tokens


def num_bytes(prompt: Prompt) -> int:
    """UTF-8 bytes of a prompt's text; a tokenizer makes no more tokens of it."""
    texts: list[Any] = [segment.text for segment in prompt if not isinstance(segment, Tokens)]
    return sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
