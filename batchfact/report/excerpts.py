"""A long document cut down to what a reader needs: its evidence with some text around, or its beginning.

A document, spans of it and a number of characters flow in; pieces with their offsets flow out. All offsets are
characters (code points), so a finding's evidence keeps its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from batchfact.records import Span

_SNAP_CHARS = 24
"""How far an edge between two pieces may move to fall between two words."""


class Piece(Struct, frozen=True):
    """A run of the document that is shown, from character `start` on."""

    start: int
    text: str


class Excerpt(Struct, frozen=True):
    """The shown pieces in order, and the length of the whole document in characters."""

    length: int
    pieces: tuple[Piece, ...]

    @property
    def is_whole(self) -> bool:
        return sum(len(piece.text) for piece in self.pieces) == self.length


def excerpt(document: str, evidence: Iterable[Span], max_chars: int | None) -> Excerpt:
    """At most `max_chars` characters of a document; None is all of it.

    Evidence comes first, and what room is left goes to the text around each span. Evidence that alone is longer is cut,
    each span to its beginning by the same share. Without evidence the document's beginning is shown.
    """
    if max_chars is None or len(document) <= max_chars:
        return Excerpt(len(document), (Piece(0, document),) if document else ())
    spans = joined(_clipped(evidence, len(document)))
    if not spans:
        spans = [Span(0, _snapped_end(document, max_chars))]
    elif (room := max_chars - sum(span.end - span.start for span in spans)) >= 0:
        margin = room // (2 * len(spans))
        spans = joined([_widened(document, span, margin) for span in spans])
    else:
        share = max_chars / (max_chars - room)
        spans = [Span(span.start, span.start + int((span.end - span.start) * share)) for span in spans]
    pieces = tuple(Piece(span.start, document[span.start : span.end]) for span in spans if span.end > span.start)
    return Excerpt(len(document), pieces)


def joined(spans: Sequence[Span]) -> list[Span]:
    """The same characters in rising order, as spans that neither overlap nor touch."""
    merged: list[Span] = []
    for span in sorted(spans, key=lambda each: (each.start, each.end)):
        if merged and span.start <= merged[-1].end:
            merged[-1] = Span(merged[-1].start, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return merged


def _clipped(spans: Iterable[Span], length: int) -> list[Span]:
    inside = (Span(max(span.start, 0), min(span.end, length)) for span in spans)
    return [span for span in inside if span.start < span.end]


def _widened(document: str, span: Span, margin: int) -> Span:
    start, end = max(span.start - margin, 0), min(span.end + margin, len(document))
    if start > 0:
        for place in range(start, min(start + _SNAP_CHARS, span.start)):
            if document[place].isspace():
                start = place + 1
                break
    return Span(start, max(span.end, _snapped_end(document, end)))


def _snapped_end(document: str, end: int) -> int:
    if end < len(document):
        for place in range(end, max(end - _SNAP_CHARS, 0), -1):
            if document[place].isspace():
                return place
    return end
