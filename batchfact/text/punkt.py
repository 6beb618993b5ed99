"""NLTK's Punkt with the parameters that ship beside this file.

Lines of text flow in; where sentences start flows out. Nothing is downloaded or read from nltk_data, and NLTK is
imported at the first sentence, not with the package.
"""

from __future__ import annotations

import re
import string
import tomllib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from msgspec import Struct, convert

if TYPE_CHECKING:
    from nltk.tokenize.punkt import PunktSentenceTokenizer

# Punkt's flag for "seen with a small letter at a sentence's beginning" (its _ORTHO_BEG_LC).
BEGINS_IN_LOWER_CASE = 1 << 4


class Parameters(Struct, frozen=True, forbid_unknown_fields=True):
    """The file punkt_english.toml; its comments say what each list means."""

    abbreviations: frozenset[str]
    collocations: frozenset[tuple[str, str]]
    starters: frozenset[str]
    closing_abbreviations: tuple[str, ...]
    after_times: frozenset[str]


class Abbreviations(set[str]):
    """Known abbreviations, and any letters with full stops between them (u.s, j.r.r, p.m)."""

    DOTTED = re.compile(r"[^\W\d_](?:\.[^\W\d_])+")

    def __contains__(self, word: object) -> bool:
        return super().__contains__(word) or (isinstance(word, str) and self.DOTTED.fullmatch(word) is not None)


class Orthography(dict[str, int]):
    """Which words were seen in which case; unlike Punkt's defaultdict it does not grow with every word asked for."""

    def __init__(self, known: dict[str, int], unseen: int) -> None:
        super().__init__(known)
        self.unseen = unseen

    def __missing__(self, word: str) -> int:
        return self.unseen


@cache
def parameters() -> Parameters:
    text = files(__package__).joinpath("punkt_english.toml").read_text(encoding="utf-8")
    return convert(tomllib.loads(text), Parameters)


@cache
def abbreviations(*, lower_case: bool = False) -> Abbreviations:
    """With `lower_case`, single letters too: there initials cannot be told by their capital."""
    letters = string.ascii_lowercase if lower_case else ""
    return Abbreviations({*parameters().abbreviations, *letters})


@cache
def punkt(*, lower_case: bool) -> PunktSentenceTokenizer:
    """The splitter, made once; `lower_case` for text without capitals.

    There a small letter says nothing against a new sentence, so only abbreviations and initials join.
    """
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    shipped = parameters()
    made = PunktParameters()
    made.collocations = set(shipped.collocations)
    made.sent_starters = set(shipped.starters)
    made.abbrev_types = abbreviations(lower_case=lower_case)
    known = dict.fromkeys(shipped.starters, BEGINS_IN_LOWER_CASE)
    made.ortho_context = Orthography(known, BEGINS_IN_LOWER_CASE if lower_case else 0)
    return PunktSentenceTokenizer(made)
