"""The rows that the page lists, as JSON that is safe inside a script element and fits a number of bytes.

Scored rows flow in; JSON text flows out, with the documents once each, shortened where they would not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from batchfact.records import Span
from batchfact.report.excerpts import excerpt
from batchfact.report.rows import ScoredRow

_SHORTER = (32_000, 24_000, 16_000, 12_000, 8_000, 6_000, 4_000, 3_000, 2_000, 1_500, 1_000, 700, 500, 350, 250)
_DOCUMENT_CHARS = (None, *_SHORTER)
"""How much of each document is shown, tried in this order until all documents fit."""

_FRAME_BYTES = 64
"""More than the object's own names and braces take."""

_ESCAPES = (
    (b"<", rb"\u003c"),
    (b">", rb"\u003e"),
    (b"&", rb"\u0026"),
    ("\u2028".encode(), rb"\u2028"),
    ("\u2029".encode(), rb"\u2029"),
)


class Listing(Struct, frozen=True, kw_only=True):
    """`json` holds `documents`, `rows`, and `places`: of each row, its document's place among them.

    `document_chars` is how much of a document is shown at most, None all of it.
    """

    json: str
    num_rows: int
    num_documents: int
    num_shortened: int
    document_chars: int | None


def list_rows(rows: Sequence[ScoredRow], max_bytes: int) -> Listing:
    """Put rows and their documents into at most `max_bytes` of JSON.

    Documents are shortened first. Where rows alone are too large, every second one is left out, until they fit; one
    row always stays, however large.
    """
    documents, places, evidence = _distinct_documents(rows)
    place_of = [None if row.document is None else places[row.document] for row in rows]
    rest = _array(_encoded(replace(row, document=None)) for row in rows), _encoded(place_of)
    room = max_bytes - sum(map(len, rest)) - _FRAME_BYTES
    for document_chars in _DOCUMENT_CHARS:
        is_last = document_chars == _DOCUMENT_CHARS[-1] and len(rows) <= 1
        if not is_last and _least_bytes(documents, document_chars) > room:
            continue
        excerpts = [excerpt(document, evidence[document], document_chars) for document in documents]
        encoded = _array(map(_encoded, excerpts))
        if len(encoded) <= room or is_last:
            return Listing(
                json=_object(encoded, *rest),
                num_rows=len(rows),
                num_documents=len(documents),
                num_shortened=sum(not each.is_whole for each in excerpts),
                document_chars=document_chars,
            )
    return list_rows(rows[::2], max_bytes)


def _least_bytes(documents: Sequence[str], max_chars: int | None) -> int:
    """Less than the documents take when shortened: a quick no, since a character has at least a byte."""
    lengths = map(len, documents)
    return sum(lengths if max_chars is None else (length for length in lengths if length <= max_chars))


def _object(documents: bytes, rows: bytes, places: bytes) -> str:
    return (b'{"documents":' + documents + b',"rows":' + rows + b',"places":' + places + b"}").decode()


def _array(items: Iterable[bytes]) -> bytes:
    return b"[" + b",".join(items) + b"]"


def _encoded(value: object) -> bytes:
    """JSON that a `<script>` element can hold: nothing in it ends the element or opens a comment."""
    encoded = msgspec.json.encode(value)
    for character, escape in _ESCAPES:
        # None of these characters stands outside a string in JSON.
        encoded = encoded.replace(character, escape)
    return encoded


def _distinct_documents(rows: Sequence[ScoredRow]) -> tuple[list[str], dict[str, int], dict[str, list[Span]]]:
    """The documents in the order of their first row, their places, and the evidence that any row has in each."""
    places: dict[str, int] = {}
    evidence: dict[str, list[Span]] = {}
    for row in rows:
        if row.document is not None:
            places.setdefault(row.document, len(places))
            spans = evidence.setdefault(row.document, [])
            spans.extend(span for finding in row.findings for span in finding.evidence)
    return list(places), places, evidence
