"""What a model's free text says: consistent, inconsistent, a refusal, or nothing that can be read.

Text flows in; a `Reading` flows out. It is for `--label-mode parse`, where labels come from text as in the papers. It
guesses nothing: text that says both, or neither, is `unclear`. English only, as the prompts are.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Literal

from batchfact.records import Label
from batchfact.text.sentences import sentences

Reading = Label | Literal["unclear", "refused"]
YesNo = Literal["yes", "no"]

MARKS = re.compile(r"[*_`~#>\"'“”‘’()\[\]{}<|]+")
"""Markdown, quotation marks and brackets, which say nothing."""
APOSTROPHES = re.compile(r"(?<=\w)[’'](?=\w)")
BOTH = re.compile(r"\b(?:yes\s*(?:/|,?\s*\b(?:or|and)\b)\s*no|no\s*(?:/|,?\s*\b(?:or|and)\b)\s*yes)\b")
"""Both words in one breath: an echo of the question, or an answer that is none."""

OPENING = r"(?:^|[.!?;:,\n—–]|\d[.)]|\bis|\bso|\btherefore|\bthus|\bhence)[^\w\n]*"
CLOSING = r"(?=\s*(?:$|[.!?,;:\n—–]|-\s))"
STANDALONE = re.compile(rf"{OPENING}\b(yes|no)\b{CLOSING}")
"""Yes or No that is a sentence or a clause of its own: not `no evidence`, not `November`."""
LEADING = re.compile(
    r"^\W*(?:\d[.)]\W*)?(yes\b|no\b(?=\s+(?:it|the|this|that|these|there|because|since|as|they|he|she)\b))"
)
"""The first word, where no comma follows it: `Yes it can`, `No the document says`."""

SURELY = r"(?:(?:fully|entirely|completely|wholly|factually|clearly|directly|logically|explicitly|generally)\s+)?"
"""Words that leave `consistent` what it is: `partially` and `hardly` do not."""
HEDGE = re.compile(
    r"\b(?:whether|if|unclear|uncertain|unknown|cannot be determined|partial|partially|partly|only|hardly|barely"
    r"|scarcely|mostly|almost|largely|except|apart from)\b"
)
"""Words beside which a phrase does not say that all is consistent."""
NOT = r"(?:not|never|n'?t|no longer)"
ERROR = r"(?:factual |any |real |clear |obvious )*(?:errors?|inaccurac(?:y|ies)|inconsistenc(?:y|ies)|mistakes?)"
PHRASES: tuple[tuple[re.Pattern[str], Label], ...] = (
    (re.compile(r"\b(?:can|could|may)\s+(?:(?!not\b)\w+\s+)?be\s+(?:\w+\s+)?inferred\b"), "consistent"),
    (
        re.compile(
            r"\b(?:cannot|can\s*not|can't|could\s*not|couldn't|may\s*not)\s+(?:\w+\s+)?be\s+(?:\w+\s+)?inferred\b"
        ),
        "inconsistent",
    ),
    (
        re.compile(rf"\b(?:is|are)\s+{SURELY}(?:consistent|supported|entailed|faithful|accurate|correct)\b"),
        "consistent",
    ),
    (
        re.compile(
            rf"\b(?:is|are)\s*{NOT}\s+(?:\w+ly\s+)?(?:consistent|supported|entailed|faithful|accurate|correct|inferred)\b"
        ),
        "inconsistent",
    ),
    (
        re.compile(
            r"\b(?:is|are)\s+(?:\w+ly\s+)?(?:inconsistent|unsupported|unfaithful|inaccurate|incorrect|contradicted|false)\b"
        ),
        "inconsistent",
    ),
    (re.compile(rf"\bdocument\s+{SURELY}(?:entails|supports|confirms)\b"), "consistent"),
    (re.compile(rf"\bdo(?:es)?\s*{NOT}\s+(?:entail|support|confirm|agree|mention|state)\b"), "inconsistent"),
    (re.compile(r"\b(?:answers?|they)\s+(?:do\s+)?agrees?\b"), "consistent"),
    (re.compile(r"\bno\s+(?:\w+\s+)?(?:evidence|mention|support|information)\b"), "inconsistent"),
    (re.compile(rf"(?:\b(?:no|without|free of)|{NOT}\s+(?:\w+\s+)?any)\s+{ERROR}\b"), "consistent"),
    (
        re.compile(rf"\b(?:contains?|has|have|is|are)\s+(?:an?|one|two|some|several|multiple)\s+{ERROR}\b"),
        "inconsistent",
    ),
)
REFUSAL = re.compile(
    r"\bas an? (?:ai|artificial|large language|language model)\b|\bi(?:'m| am) (?:very |so )?sorry\b|^\s*sorry\b"
    r"|\bi(?:'m| am) (?:unable|not able) to\b|\bi (?:cannot|can't|can not|could not|couldn't|won't|will not)"
    r" (?!find\b|infer\b|see\b|be\b)"
)


def read_answer(text: str, *, consistent: YesNo) -> Reading:
    """What a short answer says.

    A Yes or No that stands alone decides, if all that do agree. Without one, phrases such as `cannot be inferred` or
    `no factual errors` decide, if all agree, and nothing beside them limits what is called consistent. Then comes
    refusal.

    Args:
        consistent: which answer means that nothing is wrong; phrases mean the same after either question.
    """
    plain = plainly(text)
    alone = BOTH.sub(" ", plain)
    said = {_label(word, consistent) for word in (*STANDALONE.findall(alone), *LEADING.findall(alone))}
    if not said:
        said = set(_phrases(plain))
        if said == {"consistent"} and HEDGE.search(plain):
            return "unclear"
    if len(said) == 1:
        return said.pop()
    return "refused" if not said and REFUSAL.search(plain) else "unclear"


def read_reasoned(text: str, markers: Sequence[str], *, consistent: YesNo) -> Reading:
    """What a text says that reasons first and then answers.

    Args:
        markers: strings that end the reasoning; the answer is on the line behind the first of them. Without one it is
            the last sentence.
    """
    places = [(at, -len(marker)) for marker in markers if (at := text.find(marker)) >= 0]
    if not places:
        spans = sentences(text)
        last = text[spans[-1].start : spans[-1].end] if spans else ""
        found = read_answer(last, consistent=consistent)
        return read_refusal(text) if found == "unclear" else found
    at, minus_length = min(places)
    behind = text[at - minus_length :].lstrip(" :*_\n\t")
    found = read_answer(behind.partition("\n")[0], consistent=consistent)
    return read_answer(behind, consistent=consistent) if found == "unclear" else found


def read_refusal(text: str) -> Reading:
    return "refused" if REFUSAL.search(plainly(text)) else "unclear"


def read_numbered(text: str, count: int, *, consistent: YesNo) -> tuple[Reading, ...]:
    """The readings of answers 1 to `count` in a numbered text (`1. No. 2. Yes.`); missing numbers are `unclear`.

    Numbers count in rising order only, so that an amount in an answer opens none. A text that gets no further than the
    first number and refuses is a refusal of each.
    """
    parts = dict(_numbered(text, count))
    if len(parts) <= 1 and read_answer(text, consistent=consistent) == "refused":
        refusal: Reading = "refused"
        return (refusal,) * count
    return tuple(read_answer(parts.get(number, ""), consistent=consistent) for number in range(1, count + 1))


def _numbered(text: str, count: int) -> Iterator[tuple[int, str]]:
    number, start = 0, 0
    for match in re.finditer(r"(?:^|(?<=\s)|(?<=\*))(\d{1,4})[.):](?=\s|\*|$|[A-Za-z])", text):
        if number < int(match[1]) <= count + 1:  # an answer to a sentence too many ends the last one
            if number:
                yield number, text[start : match.start()]
            number, start = int(match[1]), match.end()
    if number:
        yield number, text[start:]


def plainly(text: str) -> str:
    """Lower case, one kind of letters and apostrophes, without markdown and quotation marks."""
    folded = APOSTROPHES.sub("\ue000", unicodedata.normalize("NFKC", text).casefold())
    return MARKS.sub("", folded).replace("\ue000", "'").strip()


def _label(word: str, consistent: YesNo) -> Label:
    return "consistent" if word == consistent else "inconsistent"


def _phrases(plain: str) -> Iterator[Label]:
    for pattern, label in PHRASES:
        if pattern.search(plain):
            yield label
