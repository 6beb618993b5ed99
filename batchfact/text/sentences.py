"""Where a text's sentences are.

A text flows in; spans in code points of that same text flow out. The spans are trimmed of white space, in order and
disjoint, and every other character is in exactly one of them, so that nothing escapes judgement. Time is linear in the
text's length, whatever it holds.

Lines first: a blank line ends a sentence, and so does a line break before or after a bullet, a numbered item or a
dialogue turn (`Adam: Hi!`), or after closing punctuation. Any other line break counts as the wrap of a paragraph if the
line before it is long or the line after it goes on in lower case; otherwise it ends a sentence (headings, short items).
Within lines NLTK's Punkt decides, with a few rules of ours around it for what Punkt does not see: CJK stops, ellipses
before a capital, list markers, quotation marks set apart by spaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

from msgspec import Struct

from batchfact.records import Span
from batchfact.text.punkt import abbreviations, parameters, punkt

MAX_PIECE = 2000
"""Code points that Punkt sees at once; a sentence longer than this is cut, at white space where there is any."""
MAX_STOPS = 10_000
"""A text with more full stops, question and exclamation marks than this is cut at them, without Punkt."""
WRAPPED_LINE = 40
"""A line of this many code points or more may be one of a wrapped paragraph."""

CJK_STOPS = "。！？｡"
STOPS = ".!?…" + CJK_STOPS
OPENERS = "\"'`“‘«([{„「『"
CLOSERS = "\"'”’»)]}」』）】》〉"
CLOSING_QUOTES = "\"'”’»」』"
IN_CLOSERS = re.escape(CLOSERS)

LINE = re.compile(r"[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")
LINE_BREAKS = frozenset({"\n", "\r\n", "\r", "\x85", "\u2028"})
BULLET = re.compile(r"\s*+(?:[-*•‣◦▪●·–—]|\(?\d{1,3}[.)]|\(?[a-z]\))\s")
TURN = re.compile(r"\s*+[^\W\d_][\w.'’\-]{0,30}(?: [\w.'’\-()#]{1,30}){0,3} ?:(?:\s|$)")
LIST_MARKER = re.compile(r"\(?(?:\d{1,3}|[a-zA-Z])[.)]")
WORD = re.compile(r"\w")
FULL_STOP = re.compile(r"[.?!]")
ANY_STOP = re.compile(f"[{STOPS}]")
PLAIN_END = re.compile(rf"(?<![.?!])[.?!]++[{IN_CLOSERS}]*+\s++")

CJK_END = rf"[。！？｡][。！？｡!?…]*+[{IN_CLOSERS}]*+"
ELLIPSIS_END = rf"(?<![.…])(?:\.\.|…)[.…]*+[{IN_CLOSERS}]*+\s++"
NEXT_WORD = re.compile(rf"[{re.escape(OPENERS)}]*+(\w*+)")


class Style(Struct, frozen=True):
    """What a whole text tells of its sentences.

    `lower_case`: it has no capital, so a small letter says nothing against a new sentence. `is_plain`: it has so many
    stops that it is no prose, and is cut at each of them.
    """

    lower_case: bool
    is_plain: bool


def sentences(text: str) -> tuple[Span, ...]:
    """The sentences of `text`: trimmed, in order, disjoint, every other character in exactly one.

    No sentence is dropped for being short; a blank text has none.
    """
    style = Style(lower_case=text.islower(), is_plain=sum(map(text.count, ".?!")) > MAX_STOPS)
    return tuple(
        Span(start, end)
        for first, last in blocks(text, style)
        for start, end in joined(text, trimmed(text, starts(text, first, last, style), last), style)
    )


def blocks(text: str, style: Style) -> Iterator[tuple[int, int]]:
    """Runs of lines that no sentence leaves: paragraphs, list items, dialogue turns."""
    start, last = -1, (0, 0)
    for match in LINE.finditer(text):
        if match.group().isspace():
            continue
        line = match.span()
        if start >= 0 and breaks_between(text, last, line, style):
            yield start, last[1]
            start = -1
        start = line[0] if start < 0 else start
        last = line
    if start >= 0:
        yield start, last[1]


def breaks_between(text: str, before: tuple[int, int], after: tuple[int, int], style: Style) -> bool:
    """Whether the line break between two lines, neither of them blank, ends a sentence."""
    if text[before[1] : after[0]] not in LINE_BREAKS or opens_item(text, after) or TURN.match(text, *before):
        return True
    line = text[slice(*before)].strip()
    if line.rstrip(CLOSERS)[-1:] in tuple(STOPS) and not ends_in_abbreviation(line):
        return True
    following = text[slice(*after)]
    if not style.lower_case and following.lstrip()[:1].islower():
        return False
    return not following[0].isspace() if BULLET.match(text, *before) else len(line) < WRAPPED_LINE


def opens_item(text: str, line: tuple[int, int]) -> bool:
    return BULLET.match(text, *line) is not None or TURN.match(text, *line) is not None


def ends_in_abbreviation(line: str) -> bool:
    return line.endswith(".") and line.rsplit(None, 1)[-1][:-1].lower() in abbreviations()


def starts(text: str, start: int, end: int, style: Style) -> Iterator[int]:
    """Where sentences of a block start, in order."""
    if not ANY_STOP.search(text, start, end - 1) and end - start <= MAX_PIECE:
        return iter((start,))
    bullet = BULLET.match(text, start, end)
    first = bullet.end() if bullet and bullet.end() < end else start
    found = [place for edge in edges(text, first, end) for place in piece_starts(text, *edge, style)]
    found[0] = start
    return with_opening_quotes(text, found) if '"' in text[start:end] or "“" in text[start:end] else iter(found)


def edges(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The block cut after the sentence ends that Punkt does not know."""
    for match in break_pattern().finditer(text, start, end):
        if match.end() < end and ends_sentence(text, match):
            yield start, match.end()
            start = match.end()
    yield start, end


@cache
def break_pattern() -> re.Pattern[str]:
    closing = "|".join(re.escape(word) for word in parameters().closing_abbreviations)
    return re.compile(
        rf"{CJK_END}|{ELLIPSIS_END}|(?<!\w)(?P<abbreviation>{closing})\.[{IN_CLOSERS}]*+\s++", re.IGNORECASE
    )


def ends_sentence(text: str, match: re.Match[str]) -> bool:
    """A CJK stop does, unless words follow its closing quote; an ellipsis or an abbreviation does before a capital."""
    if match.group()[0] in CJK_STOPS:
        following_mark = text[match.end()]
        return match.group()[-1] not in CLOSING_QUOTES or following_mark in OPENERS or following_mark.isspace()
    following = NEXT_WORD.match(text, match.end())
    word = following.group(1) if following else ""
    if match["abbreviation"] and word.casefold() in parameters().after_times:
        return False
    return word[:1].isupper()


def piece_starts(text: str, start: int, end: int, style: Style) -> Iterator[int]:
    """Where Punkt starts a sentence, `start` first. Punkt sees bounded pieces: its patterns are not linear."""
    while start < end:
        piece_end = end if end - start <= MAX_PIECE else white_space_before(text, start, start + MAX_PIECE)
        found = [0]
        if FULL_STOP.search(text, start, piece_end - 1):
            piece = text[start:piece_end]
            found = plain_starts(piece) if style.is_plain else punkt_starts(piece, style)
        # The last sentence of a piece may go on in the next one, unless it is all of the piece.
        is_cut = piece_end < end and len(found) > 1
        yield start
        yield from (start + place for place in (found[1:-1] if is_cut else found[1:]))
        start = start + found[-1] if is_cut else piece_end


def punkt_starts(piece: str, style: Style) -> list[int]:
    return [begin for begin, _ in punkt(lower_case=style.lower_case).span_tokenize(piece)] or [0]


def plain_starts(piece: str) -> list[int]:
    return [0, *(match.end() for match in PLAIN_END.finditer(piece) if match.end() < len(piece))]


def white_space_before(text: str, start: int, end: int) -> int:
    """The end of the last word that is whole before `end`, or `end` where a single word fills it all."""
    head = text[start:end]
    if head[-1].isspace() or text[end].isspace():
        return end
    *_, last = head.rsplit(None, 1)
    return end - len(last) if len(last) < len(head) else end


def with_opening_quotes(text: str, found: list[int]) -> Iterator[int]:
    """Give a quotation mark that stands apart to the sentence that it opens; Punkt takes each for a closing one."""
    is_open, counted = False, found[0]
    yield found[0]
    for before, place in pairwise(found):
        quote = before + len(text[before:place].rstrip()) - 1
        is_open ^= text.count('"', counted, quote) % 2 == 1
        counted = quote
        stands_apart = quote > before and text[quote - 1].isspace() and quote + 1 < place
        is_opening = text[quote] in "“‘" or (text[quote] == '"' and not is_open)
        yield quote if stands_apart and is_opening else place


def trimmed(text: str, places: Iterator[int], end: int) -> Iterator[tuple[int, int]]:
    """Starts become spans without outer white space; a blank one is left out."""
    start = next(places)
    for place in (*places, end):
        inner = text[start:place]
        stripped = inner.strip()
        if stripped:
            begin = start + len(inner) - len(inner.lstrip())
            yield begin, begin + len(stripped)
        start = place


def joined(text: str, spans: Iterator[tuple[int, int]], style: Style) -> Iterator[tuple[int, int]]:
    """Join what is no sentence by itself: punctuation alone, a list marker, `he asked` after a quoted question."""
    start, end = next(spans)
    has_word = WORD.search(text, start, end) is not None
    for begin, stop in spans:
        is_word = WORD.search(text, begin, stop) is not None
        is_marker = end - start <= 5 and LIST_MARKER.fullmatch(text, start, end) is not None
        goes_on = not style.lower_case and text[end - 1] in CLOSING_QUOTES and text[begin].islower()
        if not is_word or not has_word or is_marker or goes_on:
            end, has_word = stop, has_word or is_word
        else:
            yield start, end
            start, end, has_word = begin, stop, is_word
    yield start, end
