"""What of a document a judgement is shown, and that nothing changes for documents that fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from batchfact.config import FoldPolicy, Identity, LongDocuments, Paradigm
from batchfact.paradigms import make_paradigm
from batchfact.paradigms.contexts import Contexts, Counters, Excerpt, Room
from batchfact.paradigms.fold import decides, fold
from batchfact.paradigms.program import Findings, Program, Running, answer, in_step
from batchfact.records import (
    Choose,
    Chosen,
    Data,
    Failed,
    Finding,
    Pair,
    Prompt,
    Reply,
    Request,
    Span,
    Template,
    Unscored,
)
from tests.unit.paradigm_fakes import BOOK, SURE, UNSURE, Script, chosen, data_of, pair, wrote

COUNTERS = Counters(
    text=len,
    prompt=lambda prompt: sum(len(segment.text) for segment in prompt if isinstance(segment, Template | Data)),
)
"""A token a character."""

DOCUMENT = "The mayor is Ann. Rain fell all day.\nThe bridge is in Oslo. Nobody was hurt.  Bread costs 3 euros."
SUMMARY = "The bridge is in Rome. The mayor is Bob."
OVERHEAD = COUNTERS.prompt(BOOK["sent_nli"].fill(document="", window=""))


def contexts(mode: LongDocuments, model_tokens: int | None = None, **room: Any) -> Contexts:
    return Contexts(Room(mode=mode, model_tokens=model_tokens, **room), COUNTERS)


def asked_by(
    paradigm: Paradigm, asked: Pair, shown: Contexts | None, script: Script | None = None, *, reasoning: bool = False
) -> tuple[Findings, dict[str, Request]]:
    script = script or Script()
    program = make_paradigm(Identity(paradigm=paradigm), BOOK, reasoning=reasoning, contexts=shown)(asked)
    return answer(program, script), script.asked


def documents(requests: dict[str, Request]) -> list[str]:
    return [data_of(request.prompt)[0] for request in requests.values()]


CLAIMS = '{"claims": [{"entity": "Rome", "question": "Where is the bridge?"}]}'
QG = {key: wrote(key, CLAIMS) for key in ("w0.qg", "w1.qg")}


@pytest.mark.parametrize("mode", ["auto", "chunk", "fail"])
@pytest.mark.parametrize("model_tokens", [100_000, None])
@pytest.mark.parametrize("paradigm", ["summ-nli", "sent-nli", "qg-qa"])
@pytest.mark.parametrize("reasoning", [False, True])
def test_a_document_that_fits_gives_the_same_prompts_and_findings_as_ever(
    mode: LongDocuments, model_tokens: int | None, paradigm: Paradigm, reasoning: bool
) -> None:
    def replies() -> Script:
        keys = ("w0.reason", "w1.reason", "w0.q0.reason", "w1.q0.reason")
        return Script({**QG, **{key: wrote(key, "It says so.") for key in keys}})

    asked = pair(SUMMARY, document=DOCUMENT)
    expected = asked_by(paradigm, asked, None, replies(), reasoning=reasoning)

    assert asked_by(paradigm, asked, contexts(mode, model_tokens, max_sentences=2), replies(), reasoning=reasoning) == (
        expected
    )


@pytest.mark.parametrize("too_many", [0, 1])
@pytest.mark.parametrize("reasoning", [False, True])
def test_auto_aligns_from_the_first_token_that_does_not_fit(too_many: int, reasoning: bool) -> None:
    window = "The bridge is in Rome."
    template = BOOK["sent_nli_reasoning" if reasoning else "sent_nli"]
    prompt = template.fill(document=DOCUMENT, window=window)
    limit = COUNTERS.prompt(prompt) + (200 if reasoning else 1) - too_many
    (excerpt,) = contexts("auto", limit, max_sentences=1).of(DOCUMENT).excerpts(template, target=window, window=window)

    assert excerpt.text == ("The bridge is in Oslo." if too_many else DOCUMENT)
    assert excerpt.left_out == (4 if too_many else 0)


def test_each_window_gets_its_own_sentences_in_document_order_with_their_offsets() -> None:
    room = contexts("align", max_sentences=2, objective="independent")
    findings, requests = asked_by("sent-nli", pair("In Rome, a bridge. Rain fell. ", document=DOCUMENT), room)

    assert documents(requests) == ["The mayor is Ann. The bridge is in Oslo.", "The mayor is Ann. Rain fell all day."]
    assert [[DOCUMENT[span.start : span.end] for span in finding.evidence] for finding in findings] == [
        ["The mayor is Ann.", "The bridge is in Oslo."],
        ["The mayor is Ann.", "Rain fell all day."],
    ]
    assert [finding.left_out for finding in findings] == [3, 3]


def test_the_objective_decides_what_follows_the_best_sentence() -> None:
    """All that the window shares with the document is in the first; greedy then goes on in document order."""
    shown = {}
    for objective in ("greedy", "independent"):
        room = contexts("align", max_sentences=2, objective=objective)
        (excerpt,) = room.of(DOCUMENT).excerpts(BOOK["sent_nli"], target="The mayor is Bob.", window="")
        shown[objective] = excerpt.text

    assert shown == {
        "greedy": "The mayor is Ann. Rain fell all day.",
        "independent": "The mayor is Ann. The bridge is in Oslo.",
    }


def test_sentences_keep_the_white_space_that_follows_them() -> None:
    room = contexts("align", max_sentences=3)
    (excerpt,) = room.of(DOCUMENT).excerpts(BOOK["sent_nli"], target="rain fell, nobody was hurt, euros", window="")

    assert excerpt.text == "Rain fell all day.\nNobody was hurt.  Bread costs 3 euros."


def test_all_sentences_are_the_whole_document() -> None:
    (excerpt,) = contexts("align").of(f"  {DOCUMENT}\n").excerpts(BOOK["sent_nli"], target=SUMMARY, window=SUMMARY)

    assert (excerpt.text, excerpt.left_out, len(excerpt.spans)) == (DOCUMENT, 0, 5)


def test_a_whole_summary_gets_sentences_up_to_the_context_tokens() -> None:
    findings, requests = asked_by("summ-nli", pair(SUMMARY, document=DOCUMENT), contexts("align", max_tokens=45))

    assert documents(requests) == ["The mayor is Ann. The bridge is in Oslo."]
    assert findings == (
        Finding(start=0, end=len(SUMMARY), logprobs=SURE, evidence=(Span(0, 17), Span(37, 59)), left_out=3),
    )


def test_a_question_is_answered_by_its_windows_sentences_and_never_sees_the_others() -> None:
    script = Script(QG)
    findings, requests = asked_by("qg-qa", pair(SUMMARY, document=DOCUMENT), contexts("align", max_sentences=1), script)

    assert data_of(requests["w0.q0"].prompt)[0] == "The bridge is in Oslo."
    assert data_of(requests["w1.q0"].prompt)[0] == "The mayor is Ann."
    assert [finding.evidence for finding in findings] == [(Span(37, 59),), (Span(0, 17),)]


def test_aligned_sentences_leave_room_for_what_is_judged() -> None:
    """The second sentence would pass the model's limit, so it is not taken; the window is whole."""
    window = "The bridge is in Rome."
    limit = OVERHEAD + len(window) + 1 + 16 + 40
    (excerpt,) = (
        contexts("auto", limit, max_sentences=5).of(DOCUMENT).excerpts(BOOK["sent_nli"], target=window, window=window)
    )

    assert excerpt.text == "The bridge is in Oslo."


@pytest.mark.parametrize("mode", ["auto", "align", "chunk"])
def test_where_nothing_fits_beside_the_window_the_finding_is_too_long_and_nothing_is_asked(mode: LongDocuments) -> None:
    findings, requests = asked_by("sent-nli", pair(SUMMARY, document=DOCUMENT), contexts(mode, OVERHEAD + 10))

    assert [finding.status for finding in findings] == ["too_long", "too_long"]
    assert findings[0].message
    assert requests == {}


@pytest.mark.parametrize("mode", ["auto", "align", "chunk", "fail"])
@pytest.mark.parametrize("document", ["", " \n "])
def test_an_empty_document_is_shown_as_it_is(mode: LongDocuments, document: str) -> None:
    found = contexts(mode, 10, max_sentences=5).of(document).excerpts(BOOK["sent_nli"], target="A.", window="A.")

    assert found == (Excerpt(text=document),)


def test_counts_of_a_document_are_made_once() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    made = Contexts(Room(mode="auto", model_tokens=OVERHEAD + 80, max_sentences=2), Counters(count, COUNTERS.prompt))
    for summary in (SUMMARY, "Another one. And one more."):
        asked_by("sent-nli", pair(summary, document=DOCUMENT), made)

    assert counted.count(DOCUMENT) == 1
    assert counted.count("Rain fell all day.\n") == 1


# Chunks


LONG = " ".join(f"Item {number} was sold on day {number}." for number in range(60))


def chunked(script: Script | None = None, **options: Any) -> tuple[Findings, dict[str, Request]]:
    limit = OVERHEAD + len("Item 7 was sold.") + 1 + 16 + 600
    asked = pair("Item 7 was sold. Item 9 was lost.", document=LONG)
    return asked_by("sent-nli", asked, contexts("chunk", limit), script, **options)


def test_every_chunk_is_asked_about_every_window_and_all_windows_see_the_same_chunks() -> None:
    findings, requests = chunked()
    shown = documents(requests)
    half = len(shown) // 2

    assert half > 3
    assert list(requests)[:2] == ["w0.c0", "w0.c1"]
    assert shown[:half] == shown[half:]
    assert all(len(text) <= 512 for text in shown)
    assert [finding.chunk for finding in findings] == [*range(half), *range(half)]
    assert shown[0][:40] == LONG[:40] and shown[-1][-40:] == LONG[-40:]
    assert all(
        LONG[each.evidence[0].start : each.evidence[0].end].strip() == shown[each.chunk or 0] for each in findings
    )


def test_a_window_is_supported_by_the_chunk_that_supports_it_most() -> None:
    _, requests = chunked()
    replies: dict[str, Reply] = {key: chosen(key, UNSURE) for key in requests}
    replies["w0.c2"] = chosen("w0.c2", SURE)
    findings, _ = chunked(Script(replies))
    verdict = fold(findings, FoldPolicy())

    assert not isinstance(verdict, Unscored)
    assert [(each.chunk, each.logprobs) for each in verdict.findings] == [(2, SURE), (0, UNSURE)]
    assert verdict.label == "inconsistent"
    assert verdict.message == "1 of 2 windows is not supported by the document. The document was read in chunks."


def test_reasoning_goes_before_each_chunks_label() -> None:
    keys = [f"w{window}.c{number}.reason" for window in range(2) for number in range(30)]
    findings, asked = chunked(Script({key: wrote(key, "It says so.") for key in keys}), reasoning=True)

    assert {key for key in asked if key.endswith(".reason")} <= set(keys)
    assert all(finding.reasoning == "It says so." and finding.logprobs == SURE for finding in findings)


def by_chunk(number: int, reply: tuple[float, float] | None = SURE, **fields: Any) -> Finding:
    return Finding(start=0, end=9, logprobs=reply, chunk=number, evidence=(Span(number, number + 1),), **fields)


BROKEN = by_chunk(8, None, status="engine_error", message="it failed")
ALMOST = (-0.6, -0.8)


@pytest.mark.parametrize(
    ("findings", "aggregation", "taken"),
    [
        ([by_chunk(0, UNSURE), by_chunk(1), by_chunk(2, ALMOST)], "any", 1),
        ([by_chunk(0, UNSURE), by_chunk(1, UNSURE)], "any", 0),
        ([BROKEN, by_chunk(1)], "any", 1),
        ([by_chunk(0, UNSURE), BROKEN], "any", 8),
        ([BROKEN, by_chunk(1)], "mean", 8),
        ([by_chunk(0, (-9.0, -20.0)), by_chunk(1, UNSURE)], "any", 0),
        ([by_chunk(0, None, label="inconsistent"), by_chunk(1, None, label="consistent")], "any", 1),
    ],
    ids=["most", "first of equals", "support settles", "else unknown is unknown", "mean", "low mass", "parsed"],
)
def test_chunks_of_a_window_count_as_one_finding(findings: Sequence[Finding], aggregation: Any, taken: int) -> None:
    found = fold(findings, FoldPolicy(aggregation=aggregation))

    assert [finding.chunk for finding in found.findings] == [taken]


def test_windows_without_chunks_are_never_merged() -> None:
    same = Finding(start=0, end=9, logprobs=SURE)

    assert fold([same, same], FoldPolicy()).findings == (same, same)


def test_one_chunk_that_does_not_support_a_window_decides_nothing() -> None:
    """Early exit asks after every finished program: a window by chunks is finished when all its chunks are."""
    running = Running(make_chunk_program())
    running.take(Chosen(key="w0.c0", logprobs=UNSURE))
    assert not decides(running.findings_so_far, FoldPolicy())
    running.take(Chosen(key="w0.c1", logprobs=SURE))
    running.take(Chosen(key="w1.c0", logprobs=UNSURE))
    assert not decides(running.findings_so_far, FoldPolicy())
    running.take(Chosen(key="w1.c1", logprobs=UNSURE))
    assert decides(running.findings_so_far, FoldPolicy())


def make_chunk_program() -> Program:
    first, second = "One fact is here. ", "Other facts are there. "
    document = first * 8 + second * 8
    limit = OVERHEAD + 30 + 1 + 16 + 200
    made = contexts("chunk", limit)
    asked = pair("One fact is here. Others are there.", document=document)
    assert len(made.of(document).excerpts(BOOK["sent_nli"], target="", window="One fact is here.")) == 2
    return make_paradigm(Identity(), BOOK, reasoning=False, contexts=made)(asked)


def test_programs_in_step_ask_in_rounds_and_end_together() -> None:
    def ask(names: str) -> Program:
        for name in names:
            (reply,) = yield [_request(name)]
            assert reply.key == name
        return (Finding(start=ord(names[-1]) if names else 0, end=0),)

    rounds: list[list[str]] = []
    program = in_step([ask("abc"), ask(""), ask("de")])
    try:
        wanted = next(program)
        while True:
            rounds.append([request.key for request in wanted])
            wanted = program.send(tuple(Failed(key=key, status="cancelled", message="") for key in rounds[-1]))
    except StopIteration as end:
        findings = end.value

    assert rounds == [["a", "d"], ["b", "e"], ["c"]]
    assert [finding.start for finding in findings] == [ord("c"), 0, ord("e")]


def _request(key: str) -> Request:
    prompt: Prompt = ()
    return Choose(key=key, prompt=prompt, labels=())


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ((), "All 2 windows are supported by the document."),
        ((0, 0), "All 2 windows are supported by the document."),
        ((1, 1), "All 2 windows are supported by the document. 1 document sentence is not shown to the model."),
        ((3, 7), "All 2 windows are supported by the document. 3 to 7 document sentences are not shown to the model."),
    ],
)
def test_the_verdict_says_how_much_was_left_out(left_out: tuple[int, ...], message: str) -> None:
    findings = [
        Finding(
            start=number,
            end=number + 1,
            logprobs=SURE,
            evidence=(Span(0, 1),) if left_out else (),
            left_out=left_out[number] if left_out else 0,
        )
        for number in range(2)
    ]

    assert fold(findings, FoldPolicy()).message == message
