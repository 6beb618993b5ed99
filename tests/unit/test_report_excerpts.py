"""A shortened document keeps its evidence, or its beginning, at its own offsets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batchfact.records import Span
from batchfact.report.excerpts import excerpt, joined

WORDS = " ".join(f"word{place}" for place in range(1000))


def shown(document, spans, max_chars):
    return "".join(piece.text for piece in excerpt(document, spans, max_chars).pieces)


def test_a_short_document_is_shown_whole():
    found = excerpt("Short 🪔.", [Span(0, 5)], 100)

    assert found.is_whole and found.length == 8 and found.pieces[0].text == "Short 🪔."


def test_without_a_limit_all_is_shown():
    assert excerpt(WORDS, [], None).is_whole


def test_without_evidence_the_beginning_is_shown_up_to_a_word():
    (piece,) = excerpt(WORDS, [], 100).pieces

    assert piece.start == 0 and 76 <= len(piece.text) <= 100
    assert WORDS[len(piece.text)] == " "


def test_evidence_is_shown_with_text_around_it():
    start = WORDS.index("word500")
    (piece,) = excerpt(WORDS, [Span(start, start + 7)], 200).pieces

    assert "word499 word500 word501" in piece.text and 150 <= len(piece.text) <= 200


def test_evidence_that_is_too_long_is_cut_to_its_beginnings():
    pieces = excerpt(WORDS, [Span(0, 1000), Span(2000, 3000)], 200).pieces

    assert [(piece.start, len(piece.text)) for piece in pieces] == [(0, 100), (2000, 100)]


def test_evidence_beyond_the_document_is_left_out():
    assert shown(WORDS, [Span(10**6, 10**7)], 50) == shown(WORDS, [], 50)


def test_spans_that_touch_or_overlap_are_joined():
    assert joined([Span(5, 9), Span(0, 3), Span(3, 4), Span(8, 12)]) == [Span(0, 4), Span(5, 12)]


@given(
    st.text(alphabet="ab \n🪔é", max_size=400),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)), max_size=6),
    st.integers(1, 120),
)
def test_pieces_are_the_documents_text_at_their_offsets_and_keep_within_the_limit(document, found, max_chars):
    spans = [Span(start, start + length) for start, length in found]
    cut = excerpt(document, spans, max_chars)

    assert all(document[piece.start : piece.start + len(piece.text)] == piece.text for piece in cut.pieces)
    assert all(a.start + len(a.text) < b.start for a, b in zip(cut.pieces, cut.pieces[1:], strict=False))
    assert sum(len(piece.text) for piece in cut.pieces) <= max_chars
    evidence = {place for span in spans for place in range(span.start, min(span.end, len(document)))}
    if len(evidence) <= max_chars:
        kept = {place for piece in cut.pieces for place in range(piece.start, piece.start + len(piece.text))}
        assert evidence <= kept
