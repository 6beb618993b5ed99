"""Synthetic claims on a document: true ones taken from it, false ones with one thing changed.

A document and a few others flow in, claims with labels flow out, the same for the same seed. No model takes part: a
true claim is a sentence, two in a row, a shortened one, or a sentence of a summary that is known to be true; a false
one is such a claim with a name, number, date, pronoun or word exchanged, a negation, two sentences fused, or something
of another document. The idea is that of FactCC's training data.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from batchfact.distill import changes
from batchfact.records import Label
from batchfact.text.sentences import sentences

How = Literal[
    "written",
    "extracted",
    "shortened",
    "joined",
    "name",
    "number",
    "date",
    "pronoun",
    "opposite",
    "negation",
    "fusion",
    "out_of_document",
    "addition",
]
FALSE_SHARES: dict[How, int] = {
    "name": 30,
    "number": 12,
    "date": 3,
    "opposite": 12,
    "pronoun": 8,
    "negation": 10,
    "fusion": 12,
    "out_of_document": 6,
    "addition": 7,
}
"""How often each kind of false claim is tried; some sentences offer nothing to some kinds."""
WRITTEN_SHARE = 0.6
"""Of true claims where summaries are known to be true, and of what false ones are made of."""
SHORTENED_SHARE, JOINED_SHARE = 0.25, 0.15
LEAST_WORDS, MOST_WORDS, MOST_JOINED_WORDS, MOST_FOREIGN_WORDS = 5, 40, 45, 30
FOREIGN_CHARS = 3000
"""Of another document, only so much of its beginning is used."""
LOWER_SHARE, SPACED_SHARE = 0.3, 0.15
"""Claims in lower case, and with spaces before punctuation, as many data sets have their summaries."""
TRIES = 6
SPEAKER = re.compile(r"([A-Z][\w .'-]{0,30}):\s+(.+)", re.DOTALL)


class Claim(Struct, frozen=True):
    """A statement on a document, whether the document supports it, and how it was made."""

    text: str
    label: Label
    how: How


class Material(Struct, frozen=True, kw_only=True):
    """What claims on a document are made of. `sentences` are of a usable length; names are in order, each once."""

    document: str
    sentences: tuple[str, ...]
    written: tuple[str, ...]
    """Sentences of summaries that the document supports."""
    names: tuple[str, ...]
    foreign: tuple[tuple[str, ...], ...]
    """For each of the other documents its usable sentences."""
    foreign_names: tuple[tuple[str, ...], ...]


def claims(
    document: str, others: Sequence[str], num: int, *, seed: str, true_summaries: Sequence[str] = ()
) -> tuple[Claim, ...]:
    """At most `num` different claims on `document`, about half of them true; none where it has under three sentences.

    Args:
        others: documents on other things.
        seed: all that is drawn depends on it.
        true_summaries: summaries that the document supports; their sentences are true claims in other words than its
            own.
    """
    rng = random.Random(seed)
    material = _material(document, others, true_summaries)
    if len(material.sentences) < 3:
        return ()
    plain = _plain(" ".join([document, *true_summaries]))
    found: dict[str, Claim] = {}
    for _ in range(num * TRIES):
        if len(found) == num:
            break
        claim = _true_claim(material, rng) if rng.random() < 0.5 else _false_claim(material, rng)
        if claim is None or (claim.label == "inconsistent" and _plain(claim.text) in plain):
            continue
        text = restyle(claim.text, rng)
        found.setdefault(_plain(text), Claim(text, claim.label, claim.how))
    return tuple(found.values())


def restyle(text: str, rng: random.Random) -> str:
    """The text as summaries are written: a line of dialogue as reported speech, some in lower case, some spaced out."""
    text = " ".join(text.split())
    if spoken := SPEAKER.fullmatch(text):
        speaker, words = spoken.groups()
        text = f'{speaker} says "{words}"' if rng.random() < 0.5 else f"{speaker} said: {words}"
    if rng.random() < LOWER_SHARE:
        text = text.lower()
    return re.sub(r"([.,!?])", r" \1", text) if rng.random() < SPACED_SHARE else text


def _material(document: str, others: Sequence[str], true_summaries: Sequence[str]) -> Material:
    return Material(
        document=document,
        sentences=_usable(document, MOST_WORDS),
        written=tuple(sentence for summary in true_summaries for sentence in _usable(summary, MOST_WORDS)),
        names=_names(document),
        foreign=tuple(_usable(other[:FOREIGN_CHARS], MOST_FOREIGN_WORDS) for other in others),
        foreign_names=tuple(_names(other[:FOREIGN_CHARS]) for other in others),
    )


def _usable(text: str, most_words: int) -> tuple[str, ...]:
    spans = (text[span.start : span.end] for span in sentences(text))
    return tuple(sentence for sentence in spans if LEAST_WORDS <= len(sentence.split()) <= most_words)


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for _, name in changes.names_of(text)))


def _true_claim(material: Material, rng: random.Random) -> Claim:
    if material.written and rng.random() < WRITTEN_SHARE:
        return Claim(rng.choice(material.written), "consistent", "written")
    place = rng.randrange(len(material.sentences))
    sentence, draw = material.sentences[place], rng.random()
    if draw < SHORTENED_SHARE and (shorter := changes.shorten(sentence, rng)):
        return Claim(shorter, "consistent", "shortened")
    if SHORTENED_SHARE <= draw < SHORTENED_SHARE + JOINED_SHARE and place + 1 < len(material.sentences):
        joined = f"{sentence} {material.sentences[place + 1]}"
        if len(joined.split()) < MOST_JOINED_WORDS:
            return Claim(joined, "consistent", "joined")
    return Claim(sentence, "consistent", "extracted")


def _false_claim(material: Material, rng: random.Random) -> Claim | None:
    """A true claim with one change; None where the change that was drawn has nothing to work on."""
    base = _true_claim(material, rng).text
    how = rng.choices(list(FALSE_SHARES), list(FALSE_SHARES.values()))[0]
    number = rng.randrange(len(material.foreign)) if material.foreign else None
    foreign_names = () if number is None else material.foreign_names[number]
    makers: dict[How, Callable[[], str | None]] = {
        "name": lambda: changes.swap_name(base, material.names, foreign_names, rng),
        "number": lambda: changes.swap_number(base, material.document, rng),
        "date": lambda: changes.swap_date(base, rng),
        "pronoun": lambda: changes.swap_pronoun(base, rng),
        "opposite": lambda: changes.swap_opposite(base, rng),
        "negation": lambda: changes.negate(base, rng),
        "fusion": lambda: changes.fuse(base, rng.choice(material.sentences)),
        "out_of_document": lambda: _foreign(material, number, rng),
        "addition": lambda: _added(base, _foreign(material, number, rng)),
    }
    text = makers[how]()
    return Claim(text, "inconsistent", how) if text and text != base else None


def _foreign(material: Material, number: int | None, rng: random.Random) -> str | None:
    """A sentence of another document, with a name of this one where it has a place for one."""
    if number is None or not material.foreign[number]:
        return None
    sentence = rng.choice(material.foreign[number])
    return changes.swap_name(sentence, material.names, (), rng) or sentence


def _added(base: str, foreign: str | None) -> str | None:
    return f"{base} {foreign}" if foreign else None


def _plain(text: str) -> str:
    """Case, spaces and punctuation make no other claim."""
    return " ".join(re.findall(r"\w+", text.lower()))
