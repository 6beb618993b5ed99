"""Claims: the (entity, question) pairs that question generation writes, and the rules on which of them are kept.

The model's text flows in, whole or cut; the claims that can be verified flow out. Nothing is invented: a claim is
dropped or kept as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

MAX_CLAIMS = 5
"""Claims kept of one window."""


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PRONOUNS = words(
    "i me my mine myself you your yours yourself yourselves he him his himself she her hers herself it its itself "
    "we us our ours ourselves they them their theirs themselves this that these those who whom whose which what "
    "someone somebody something anyone anybody anything everyone everybody everything no-one nobody nothing none "
    "one ones another other others each both all some any many few"
)
JOINING = frozenset({"and", "or", "of", "the", "with"})
ANSWERS_ONLY = frozenset({"yes", "no", "true", "false", "maybe", "unknown", "n/a", "na", "not applicable", "entity"})
AUXILIARIES = words(
    "is are was were am be do does did has have had can could will would shall should may might must isn't aren't "
    "wasn't weren't don't doesn't didn't hasn't haven't hadn't can't couldn't won't wouldn't shouldn't"
)
QUESTION_WORDS = words("who whom whose what which when where how")
MEASURES = words("many much long old often far big large high tall fast deep heavy wide late early")
ARTICLES = frozenset({"a", "an", "the"})
WORD = re.compile(r"[^\W_]+(?:['’\-][^\W_]+)*")
FLAT_OBJECT = re.compile(r"\{[^{}]*\}")


class Claim(Struct, frozen=True):
    """Something that the summary says: `entity` is its answer to `question`."""

    entity: str
    question: str


def parse_claims(text: str, *, max_claims: int = MAX_CLAIMS) -> tuple[Claim, ...]:
    """The claims in a question generator's answer that can be verified, at most `max_claims`, in its order.

    Text that was cut gives the claims that are complete. Dropped are claims whose entity is empty, a pronoun or a mere
    yes or no; whose question is not a closed wh-question, or names its own answer; and later ones on the same entity
    or with the same question, which cannot have two answers.

    Source: Xu 2024, section 3.3 (the three steps) and appendix D ("E1: Yes").
    """
    kept: list[Claim] = []
    seen: set[str] = set()
    for entity, question in written_claims(text):
        claim = Claim(tidy(entity), tidy(question))
        names = {f"entity {plain(claim.entity)}", f"question {plain(claim.question)}"}
        if can_be_verified(claim) and not names & seen:
            kept.append(claim)
            seen |= names
    return tuple(kept[:max_claims])


def can_be_verified(claim: Claim) -> bool:
    return is_entity(claim.entity) and is_closed_question(claim.question) and not gives_away(claim)


def written_claims(text: str) -> Iterator[tuple[str, str]]:
    """Every complete entity and question in `text`, read as JSON, or object by object where it is not whole."""
    for found in objects(text):
        entity, question = found.get("entity"), found.get("question")
        if isinstance(entity, str) and isinstance(question, str):
            yield entity, question


def objects(text: str) -> Iterator[dict[str, Any]]:
    whole = decode(text)
    if isinstance(whole, dict) and isinstance(whole.get("claims"), list):
        yield from (each for each in whole["claims"] if isinstance(each, dict))
        return
    for match in FLAT_OBJECT.finditer(text):
        found = decode(match.group())
        if isinstance(found, dict):
            yield found


def decode(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def tidy(text: str) -> str:
    """With single spaces, and without quotation marks around it or a full stop behind it."""
    return " ".join(text.split()).strip("\"'“”‘’` ").removesuffix(".").strip("\"'“”‘’` ")


def plain(text: str) -> str:
    """The words that tell one entity from another: no case, no punctuation, no leading article."""
    spoken = WORD.findall(text.casefold())
    return " ".join(spoken[1:] if len(spoken) > 1 and spoken[0] in ARTICLES else spoken)


def is_entity(entity: str) -> bool:
    """Whether `entity` names something: not empty, not a pronoun or several, not a yes or no."""
    spoken = WORD.findall(entity)
    if not spoken or plain(entity) in ANSWERS_ONLY or entity.casefold() in ANSWERS_ONLY:
        return False
    return any(
        word.casefold() not in PRONOUNS | JOINING or (place > 0 and word[0].isupper() and word != "I")
        for place, word in enumerate(spoken)
    )


def is_closed_question(question: str) -> bool:
    """Whether `question` is a wh-question with one short answer: not yes/no, not why, not a bare how."""
    spoken = WORD.findall(question.casefold())
    if len(spoken) < 2 or spoken[0] in AUXILIARIES or spoken[0] == "why":
        return False
    asked = next((index for index, word in enumerate(spoken) if word.partition("'")[0] in QUESTION_WORDS), None)
    if asked is None:
        return False
    return spoken[asked] != "how" or any(word in MEASURES for word in spoken[asked + 1 : asked + 2])


def gives_away(claim: Claim) -> bool:
    """Whether the question already holds the whole entity, so that it asks nothing."""
    return f" {plain(claim.entity)} " in f" {' '.join(WORD.findall(claim.question.casefold()))} "
