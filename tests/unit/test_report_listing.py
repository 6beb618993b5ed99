"""The rows of the page: safe inside a script element, documents once, and within a number of bytes."""

from __future__ import annotations

import json
import random
import re

from batchfact.records import Span
from batchfact.report.listing import list_rows
from batchfact.report.rows import ScoredRow, ShownFinding

HOSTILE = "</script><!--<script>alert(1)</script> & \u2028\u2029 ]]> \x00 \U0001fa94 e\u0301"


def scored(number=0, document="The shop sold 3 lamps.", summary="Four lamps.", **more):
    return ScoredRow(row=number, summary=summary, status="ok", document=document, **more)


def test_nothing_in_the_data_ends_the_script_element():
    listing = list_rows([scored(document=HOSTILE, summary=HOSTILE, message=HOSTILE, id=HOSTILE)], 10_000)

    assert not re.search("[<>&\u2028\u2029]", listing.json)
    found = json.loads(listing.json)
    assert found["rows"][0]["summary"] == HOSTILE
    assert found["documents"][0]["pieces"][0]["text"] == HOSTILE


def test_equal_documents_are_held_once_with_the_evidence_of_all_their_rows():
    document = "x" * 3000 + " first " + "y" * 3000 + " second " + "z" * 3000
    spans = [Span(document.index(word), document.index(word) + len(word)) for word in ("first", "second")]
    rows = [
        scored(number, document, findings=(ShownFinding(start=0, end=4, status="ok", evidence=(spans[number % 2],)),))
        for number in range(4)
    ]
    listing = list_rows(rows, 6000)
    found = json.loads(listing.json)

    assert listing.num_shortened == listing.num_documents == 1
    assert found["places"] == [0, 0, 0, 0]
    assert [word in str(found["documents"]) for word in ("first", "second")] == [True, True]


def test_a_row_without_a_document_has_none():
    found = json.loads(list_rows([scored(document=None)], 1000).json)

    assert found["documents"] == [] and found["places"] == [None]


def test_documents_are_shortened_before_rows_are_left_out():
    rows = [scored(number, f"{number} " + "word " * 2000) for number in range(100)]
    listing = list_rows(rows, 300_000)

    assert listing.num_rows == 100 and listing.num_shortened == 100
    assert len(listing.json) <= 300_000
    assert listing.document_chars == 2000


def test_rows_that_are_too_large_are_thinned_evenly():
    rows = [scored(number, summary="long " * 200) for number in range(64)]
    listing = list_rows(rows, 20_000)

    assert [row["row"] for row in json.loads(listing.json)["rows"]] == list(range(0, 64, 4))
    assert len(listing.json) <= 20_000


def test_one_row_is_listed_however_large():
    assert list_rows([scored(0, summary="s" * 5000), scored(1)], 1000).num_rows == 1


def test_ten_thousand_rows_fit():
    draw = random.Random(0)
    words = ["lamp", "<b>shop</b>", "«Zürich»", "\U0001fa94", "sold", "e\u0301", "\n", '"quoted"']
    findings = tuple(ShownFinding(start=0, end=40, status="ok", label="consistent", score=0.9) for _ in range(4))
    rows = [
        scored(number, " ".join(draw.choices(words, k=600)), " ".join(draw.choices(words, k=60)), findings=findings)
        for number in range(10_000)
    ]
    listing = list_rows(rows, 24_000_000)

    assert listing.num_rows == 10_000
    assert len(listing.json.encode()) <= 24_000_000
