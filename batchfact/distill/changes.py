"""One change to a sentence that makes it say something else, or less.

A sentence, and what its document offers for the change, flow in; the changed sentence flows out, or None where the
change has nothing to work on. Randomness comes as an argument. English only.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

import msgspec
from msgspec import Struct

NAME = re.compile(r"(?<![\w'])[A-Z][\w'’.-]*\w(?:\s+(?:(?:of|the|de|van)\s)?[A-Z][\w'’-]*\w)*")
"""Capitalised words in a row, with small ones between them."""
NUMBER = re.compile(r"(?<![\w.])[£$€]?\d[\d,]*(?:\.\d+)?%?(?!\w)")
WORD = re.compile(r"\b[A-Za-z]+\b")
NEGATED = re.compile(r"\b(did|does|do|is|was|are|were|has|have|had|will|could|would|should) not\b")
ANY_NEGATION = re.compile(r"\b(?:not|never|cannot)\b|n't\b")
FOREIGN_NAME_SHARE = 0.25
"""How often a name is exchanged for one of another document, though its own has others."""


class Swaps(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The words of swaps.toml."""

    months: tuple[str, ...]
    days: tuple[str, ...]
    numbers: tuple[str, ...]
    no_names: frozenset[str]
    joints: tuple[str, ...]
    opposites: tuple[tuple[str, str], ...]
    pronouns: Mapping[str, str]
    negations: Mapping[str, str]


@cache
def swaps() -> Swaps:
    text = files("batchfact.distill").joinpath("swaps.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), Swaps)


@cache
def opposites() -> dict[str, tuple[str, ...]]:
    """Each word's opposites, both ways."""
    pairs = [pair for one, other in swaps().opposites for pair in ((one, other), (other, one))]
    return {word: tuple(other for one, other in pairs if one == word) for word, _ in pairs}


def names_of(text: str) -> list[tuple[int, str]]:
    """Capitalised names with their places, without titles and the word that a sentence opens with."""
    found: list[tuple[int, str]] = []
    dates = {*swaps().months, *swaps().days}
    for match in NAME.finditer(text):
        start, name = match.start(), match.group()
        while name and (first := name.split()[0]).lower() in swaps().no_names:
            name = name[len(first) :].lstrip()
            start = match.end() - len(name)
        if len(name) >= 3 and name[0].isupper() and name.lower() not in dates:
            found.append((start, name))
    return found


def swap_name(sentence: str, names: Sequence[str], foreign: Sequence[str], rng: random.Random) -> str | None:
    """Another name of the document in a name's place, of as many words where there is one; sometimes a foreign one."""
    found = names_of(sentence)
    if not found:
        return None
    start, old = rng.choice(found)
    others = [name for name in names if name not in sentence and old not in name and name not in old]
    like = [name for name in others if len(name.split()) == len(old.split())] or others
    if foreign and (not like or rng.random() < FOREIGN_NAME_SHARE):
        like = [name for name in foreign if name not in sentence]
    return _put(sentence, start, old, rng.choice(like)) if like else None


def swap_number(sentence: str, document: str, rng: random.Random) -> str | None:
    """Another number of the document, or one digit changed; or another number word."""
    digits = [(match.start(), match.group()) for match in NUMBER.finditer(sentence)]
    spoken = [(start, word) for start, word in _words(sentence) if word.lower() in swaps().numbers]
    if not digits and not spoken:
        return None
    start, old = rng.choice([*digits, *spoken])
    if old[0].isalpha():
        return _put(sentence, start, old, _cased(rng.choice([w for w in swaps().numbers if w != old.lower()]), old))
    others = [other for other in NUMBER.findall(document) if other != old and other not in sentence]
    if others and rng.random() < 0.5:
        return _put(sentence, start, old, rng.choice(others))
    place = rng.choice([place for place, char in enumerate(old) if char.isdigit()])
    digit = rng.choice([char for char in "123456789" if char != old[place]])
    return _put(sentence, start + place, old[place], digit)


def swap_date(sentence: str, rng: random.Random) -> str | None:
    """Another month or day of the week."""
    found = [
        (start, word, kind)
        for start, word in _words(sentence)
        for kind in (swaps().months, swaps().days)
        if word.lower() in kind and word[0].isupper()
    ]
    if not found:
        return None
    start, old, kind = rng.choice(found)
    return _put(sentence, start, old, _cased(rng.choice([word for word in kind if word != old.lower()]), old))


def swap_pronoun(sentence: str, rng: random.Random) -> str | None:
    return _swap_word(sentence, {word: (other,) for word, other in swaps().pronouns.items()}, rng)


def swap_opposite(sentence: str, rng: random.Random) -> str | None:
    return _swap_word(sentence, opposites(), rng)


def negate(sentence: str, rng: random.Random) -> str | None:
    """A negation put in, or one taken out."""
    if ANY_NEGATION.search(sentence):
        return NEGATED.sub(r"\1", sentence, count=1) if NEGATED.search(sentence) else None
    return _swap_word(sentence, {word: (other,) for word, other in swaps().negations.items()}, rng)


def fuse(one: str, other: str) -> str | None:
    """The beginning of one sentence with the end of another, joined at a word that both have."""
    joint = re.compile(rf"\s({'|'.join(swaps().joints)})\s")
    for first in joint.finditer(one):
        for second in joint.finditer(other):
            is_inside = 8 < first.start() < len(one) - 10 and second.start() < len(other) - 15
            if first[1] == second[1] and is_inside:
                return one[: first.start()] + other[second.start() :]
    return None


def shorten(sentence: str, rng: random.Random) -> str | None:
    """The sentence with less in it: no brackets, relative clauses, opening phrase, or what follows a conjunction."""
    text = re.sub(r"\s*\([^)]*\)", "", sentence)
    text = re.sub(r",\s(?:who|which|where)\s[^,]*,", "", text)
    if opening := re.match(r"(?:In|On|At|After|During|Earlier|Last|By|With|As)\s[^,]{3,60},\s(.+)", text):
        text = opening[1][0].upper() + opening[1][1:]
    parts = text.split(", ")
    if len(parts) > 2 and len(parts[0].split()) > 7 and rng.random() < 0.4:
        text = f"{parts[0]}."
    clause = re.match(r"(.{30,}?),?\s(?:because|after|while|although|when|as|but|and)\s.+", text)
    if text == sentence and clause and len(clause[1].split()) > 5:
        text = f"{clause[1]}."
    return text if text != sentence and len(text.split()) >= 5 else None


def _swap_word(sentence: str, others: Mapping[str, Sequence[str]], rng: random.Random) -> str | None:
    found = [(start, word) for start, word in _words(sentence) if word.lower() in others]
    if not found:
        return None
    start, old = rng.choice(found)
    return _put(sentence, start, old, _cased(rng.choice(others[old.lower()]), old))


def _words(text: str) -> list[tuple[int, str]]:
    return [(match.start(), match.group()) for match in WORD.finditer(text)]


def _put(text: str, start: int, old: str, new: str) -> str:
    return text[:start] + new + text[start + len(old) :]


def _cased(word: str, like: str) -> str:
    """A capital where the word that it stands for has one; `I` says nothing of case."""
    return word.capitalize() if like[0].isupper() and like != "I" else word
