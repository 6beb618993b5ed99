"""A document cut into overlapping chunks of a bounded number of tokens.

A text and a way to count tokens flow in, spans flow out. Cuts are between sentences wherever those are short enough,
then between words, and inside a word only where a word alone is too long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from batchfact.records import Span
from batchfact.text.sentences import sentences

OVERLAP = 8
"""Neighbouring chunks share up to one part in so many of their size."""

CountTokens = Callable[[str], int]


def chunks(text: str, *, max_tokens: int, count_tokens: CountTokens) -> tuple[Span, ...]:
    """Spans that hold every character of `text`, in order, each of at most `max_tokens` tokens.

    Each shares its beginning with the one before, up to an eighth of `max_tokens`, so that what stands at a cut is
    whole in one of them. Tokens are those of the chunk's pieces counted apart; a single character is never cut.
    """
    overlap = max(max_tokens // OVERLAP, 1)
    pieces = [piece for span in tiles(text) for piece in halved(text, span, overlap, count_tokens)]
    costs = [count_tokens(text[piece.start : piece.end]) for piece in pieces]
    found: list[Span] = []
    first, end = 0, 0
    while end < len(pieces):
        # Shared pieces go while they keep the chunk from reaching beyond the one before.
        while first < end and sum(costs[first : end + 1]) > max_tokens:
            first += 1
        size, end = sum(costs[first : end + 1]), end + 1
        while end < len(pieces) and size + costs[end] <= max_tokens:
            size, end = size + costs[end], end + 1
        found.append(Span(pieces[first].start, pieces[end - 1].end))
        shared, first = costs[end - 1], end
        while shared <= overlap and first > 0:
            first -= 1
            shared += costs[first - 1]
    return tuple(found)


def tiles(text: str) -> Iterator[Span]:
    """The text's sentences, each with the white space behind it: together they are the whole text."""
    found = sentences(text)
    places = [0, *(span.start for span in found[1:]), len(text)]
    return (Span(start, end) for start, end in pairwise(places) if start < end)


def halved(text: str, span: Span, max_tokens: int, count_tokens: CountTokens) -> Iterator[Span]:
    """The span, halved at white space where there is any near, until each part has at most `max_tokens`."""
    if span.end - span.start <= 1 or count_tokens(text[span.start : span.end]) <= max_tokens:
        yield span
        return
    middle = (span.start + span.end) // 2
    space = text.rfind(" ", span.start + (span.end - span.start) // 4, middle)
    cut = space + 1 if space > span.start else middle
    yield from halved(text, Span(span.start, cut), max_tokens, count_tokens)
    yield from halved(text, Span(cut, span.end), max_tokens, count_tokens)
