from __future__ import annotations

import pytest

from batchfact.config import Identity, WindowContext
from batchfact.paradigms import make_paradigm
from batchfact.paradigms.program import Running
from batchfact.records import Choose, Failed, Finding
from tests.unit.paradigm_fakes import BOOK, SURE, UNSURE, Script, chosen, data_of, pair, run, wrote

SUMMARY = "One is first. Two is next. Three ends it."


def sent(context: WindowContext = "none", sentences: int = 1) -> Identity:
    return Identity(paradigm="sent-nli", window_context=context, window_sentences=sentences)


def test_every_sentence_is_judged_apart_and_found_in_summary_order() -> None:
    script = Script({"w1": chosen("w1", UNSURE)})
    findings = run(sent(), pair(SUMMARY), script)
    assert findings == (
        Finding(start=0, end=13, logprobs=SURE),
        Finding(start=14, end=26, logprobs=UNSURE),
        Finding(start=27, end=41, logprobs=SURE),
    )
    assert [data_of(request.prompt) for request in script.asked.values()] == [
        ["The document.", "One is first."],
        ["The document.", "Two is next."],
        ["The document.", "Three ends it."],
    ]


def test_all_windows_are_asked_before_any_reply() -> None:
    running = Running(make_paradigm(sent(), BOOK, reasoning=False)(pair(SUMMARY)))
    assert [request.key for request in running.wanted] == ["w0", "w1", "w2"]


def test_windows_of_several_sentences() -> None:
    findings = run(sent(sentences=2), pair(SUMMARY), Script())
    assert [SUMMARY[finding.start : finding.end] for finding in findings] == [
        "One is first. Two is next.",
        "Three ends it.",
    ]


@pytest.mark.parametrize(
    ("context", "shown"),
    [
        ("none", [None, None, None]),
        ("preceding", [None, "One is first.", "One is first. Two is next."]),
        ("summary", [SUMMARY, SUMMARY, SUMMARY]),
    ],
)
def test_context_stands_between_document_and_window(context: WindowContext, shown: list[str | None]) -> None:
    script = Script()
    run(sent(context), pair(SUMMARY), script)
    sentences = ["One is first.", "Two is next.", "Three ends it."]
    assert [data_of(request.prompt) for request in script.asked.values()] == [
        ["The document.", *([above] if above else []), sentence]
        for above, sentence in zip(shown, sentences, strict=True)
    ]


def test_a_summary_of_one_window_is_shown_without_itself_as_context() -> None:
    with_context, without = Script(), Script()
    run(sent("summary"), pair("It won."), with_context)
    run(sent(), pair("It won."), without)
    assert with_context.asked == without.asked


def test_one_failed_window_leaves_the_others_as_they_are() -> None:
    script = Script({"w1": Failed(key="w1", status="engine_error", message="aborted")})
    assert [finding.status for finding in run(sent(), pair(SUMMARY), script)] == ["ok", "engine_error", "ok"]


def test_each_window_reasons_by_itself() -> None:
    script = Script({f"w{number}.reason": wrote(f"w{number}.reason", f"Reason {number}.") for number in range(3)})
    findings = run(sent("preceding"), pair(SUMMARY), script, reasoning=True)
    assert [finding.reasoning for finding in findings] == ["Reason 0.", "Reason 1.", "Reason 2."]
    labels = [request for request in script.asked.values() if isinstance(request, Choose)]
    assert [request.key for request in labels] == ["w0", "w1", "w2"]


def test_a_blank_summary_has_no_findings() -> None:
    assert run(sent(), pair(" \n"), Script()) == ()
