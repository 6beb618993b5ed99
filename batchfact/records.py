"""The frozen records that cross a boundary between two parts.

Everything that flows from the source to the output is one of these. The module imports nothing of ours and knows
nothing of files, engines or clocks; it only says what each thing is and what its numbers mean.
"""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

Label = Literal["consistent", "inconsistent"]

PairStatus = Literal[
    "ok",
    "empty_document",
    "empty_summary",
    "invalid_text",
    "too_long",
    "no_claims",
    "incomplete",
    "unparsed",
    "refused",
    "engine_error",
]

FindingStatus = Literal[
    "ok",
    "low_label_mass",
    "unparsed",
    "truncated_reasoning",
    "repetition",
    "refused",
    "cancelled",
    "too_long",
    "engine_error",
    "no_claims",
]

Finish = Literal["stop", "length", "repetition"]


class Pair(Struct, frozen=True, kw_only=True):
    """One input row.

    `row` counts from 0 over all input files in order. `document_hash` and `text_hash` are 64-bit; the second covers
    document and summary, so that a verdict is only ever joined to the text it was made from.
    """

    row: int
    document: str
    summary: str
    document_hash: int
    text_hash: int


class Rejected(Struct, frozen=True, kw_only=True):
    """An input row that no model is asked about, with the typed reason; its hashes are those of a `Pair`."""

    row: int
    document_hash: int
    text_hash: int
    status: PairStatus
    message: str


class DocumentGroup(Struct, frozen=True, kw_only=True):
    """All pairs of one document that the look-ahead brought together; `number` rises in the order of scheduling."""

    number: int
    pairs: tuple[Pair, ...]

    @property
    def document(self) -> str:
        return self.pairs[0].document


class Span(Struct, frozen=True):
    """Characters (code points) start to end of a text, end excluded."""

    start: int
    end: int


class Window(Struct, frozen=True):
    """A run of one or more summary sentences: characters `start` to `end` of the summary."""

    start: int
    end: int

    def text_of(self, summary: str) -> str:
        return summary[self.start : self.end]


class Template(Struct, frozen=True, tag=True):
    """Prompt text of ours: it may hold the tokenizer's special tokens."""

    text: str


class Data(Struct, frozen=True, tag=True):
    """Prompt text of the user's: always encoded as plain text, whatever markers it holds."""

    text: str


class Tokens(Struct, frozen=True, tag=True):
    """Token ids that the model wrote earlier, put back into a prompt as they were."""

    ids: tuple[int, ...]


Segment = Template | Data | Tokens
Prompt = tuple[Segment, ...]


class Message(Struct, frozen=True):
    """One chat turn; `role` is system, user or assistant."""

    role: str
    content: str


class Choose(Struct, frozen=True, kw_only=True):
    """Ask for the probabilities of a few labels after `prompt`.

    `labels` are words, the one that means consistent first; for a rating, the numbers from the lowest to the highest.
    `key` is unique within its pair.
    """

    key: str
    prompt: Prompt
    labels: tuple[str, ...]


class Write(Struct, frozen=True, kw_only=True):
    """Ask for at most `max_tokens` tokens of text after `prompt`.

    Text ends before the first of the `stop` strings; `schema` is a JSON schema that the text must follow.
    """

    key: str
    prompt: Prompt
    max_tokens: int
    stop: tuple[str, ...] = ()
    schema: str | None = None


Request = Choose | Write


class Usage(Struct, frozen=True):
    """Tokens of one or more requests: prompt tokens, those of them found in the prefix cache, generated tokens."""

    prompt: int = 0
    cached: int = 0
    output: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.prompt + other.prompt, self.cached + other.cached, self.output + other.output)


class Chosen(Struct, frozen=True, kw_only=True):
    """Raw log-probabilities of a Choose's labels under the full vocabulary, in the order of its labels.

    Where an engine has none, `logprobs` is empty and `label` is the place of the label that the model's text names.
    """

    key: str
    logprobs: tuple[float, ...]
    usage: Usage = Usage()
    label: int | None = None


class Written(Struct, frozen=True, kw_only=True):
    """The text of a Write, without its stop string, and the token ids that make up exactly that text."""

    key: str
    text: str
    ids: tuple[int, ...]
    finish: Finish
    usage: Usage = Usage()


class Failed(Struct, frozen=True, kw_only=True):
    """A request that got no answer; the finding it was for becomes unknown with this status."""

    key: str
    status: FindingStatus
    message: str
    usage: Usage = Usage()


Reply = Chosen | Written | Failed


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one window, or one (question, entity) pair, says.

    It holds the raw reply, so that another threshold or fold needs no model. `logprobs` are those of the labels
    (consistent, inconsistent), `rating_logprobs` those of the ratings 1 to 5 where a rating was asked for; `label` is
    set only where text was parsed instead, and `reasoning` is then that text, if it was asked for. `start` and `end`
    are characters of the summary, `evidence` of the document: what was shown of it, where that was not all. `left_out`
    counts the document sentences that were not shown. `chunk` is the number of the document chunk that it was judged
    by: findings of one unit by several chunks count as one.
    """

    start: int
    end: int
    status: FindingStatus = "ok"
    logprobs: tuple[float, float] | None = None
    label: Label | None = None
    question: str | None = None
    entity: str | None = None
    reasoning: str | None = None
    evidence: tuple[Span, ...] = ()
    message: str | None = None
    left_out: int = 0
    chunk: int | None = None
    rating_logprobs: tuple[float, ...] | None = None

    @property
    def score(self) -> float | None:
        """P(consistent), renormalised over the two labels; None without log-probabilities.

        For a rating: its expectation over the ratings' renormalised probabilities, from 0 (all on the lowest) to 1.
        """
        if self.rating_logprobs is not None:
            return expected_rating(self.rating_logprobs)
        if self.logprobs is None:
            return None
        consistent, inconsistent = self.logprobs
        margin = consistent - inconsistent
        return 1 / (1 + math.exp(-margin)) if margin >= 0 else 1 - 1 / (1 + math.exp(margin))

    @property
    def label_mass(self) -> float | None:
        """The labels' (or ratings') probability under the full vocabulary, in [0, 1]."""
        asked = self.asked_logprobs
        return min(1.0, math.fsum(map(math.exp, asked))) if asked else None

    @property
    def asked_logprobs(self) -> tuple[float, ...]:
        """The log-probabilities of whatever was asked for, labels or ratings; empty without any."""
        return self.rating_logprobs or self.logprobs or ()


def expected_rating(logprobs: tuple[float, ...]) -> float:
    """The expected rating, scaled to [0, 1], from the log-probabilities of the ratings in rising order.

    NaN where there is no probability to renormalise, as for two labels.
    """
    top = max(logprobs)
    weights = [math.exp(logprob - top) for logprob in logprobs]
    total = math.fsum(weights)
    return math.fsum(place * weight for place, weight in enumerate(weights)) / total / (len(weights) - 1)


class Verdict(Struct, frozen=True, kw_only=True):
    """A scored pair. `score` is P(consistent), folded and calibrated; None where labels were parsed from text."""

    label: Label
    score: float | None
    score_raw: float | None
    findings: tuple[Finding, ...]
    message: str | None = None

    @property
    def status(self) -> PairStatus:
        return "ok"


class Unscored(Struct, frozen=True, kw_only=True):
    """A pair that could not be scored, with a typed reason; never a default number."""

    status: PairStatus
    message: str
    findings: tuple[Finding, ...] = ()


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The finished work on one row, as the journal keeps it: findings before any folding, or why there are none."""

    row: int
    text_hash: int
    findings: tuple[Finding, ...] = ()
    status: PairStatus = "ok"
    message: str | None = None
    usage: Usage = Usage()
