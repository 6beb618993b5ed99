"""The prompting methods of Chen 2023: what is asked, in which order, and what each reply becomes."""

from __future__ import annotations

import pytest

from batchfact.config import Identity, LabelMode, Paradigm
from batchfact.paradigms.contexts import Contexts
from batchfact.paradigms.cot import make_cot
from batchfact.paradigms.judging import MAX_ANSWER_TOKENS
from batchfact.paradigms.sbs import MAX_TEXT_TOKENS, numbered
from batchfact.records import Choose, Failed, Finding, Template, Tokens, Write
from tests.unit.paradigm_fakes import BOOK, SURE, UNSURE, Script, chosen, data_of, pair, run, template_text, wrote

SUMMARY = "The mayor came. It rained. She left."
ALL = ((0, 15), (16, 26), (27, 36))


def identity(paradigm: Paradigm, label_mode: LabelMode = "probability", instruction: int = 1) -> Identity:
    return Identity(paradigm=paradigm, label_mode=label_mode, instruction=instruction)


def spans(findings: tuple[Finding, ...]) -> tuple[tuple[int, int], ...]:
    return tuple((finding.start, finding.end) for finding in findings)


def test_vanilla_asks_once_about_the_whole_summary() -> None:
    script = Script({"w0": chosen("w0", UNSURE)})
    (finding,) = run(identity("vanilla"), pair(SUMMARY), script)

    assert spans((finding,)) == ((0, 36),)
    assert finding.logprobs == UNSURE
    request = script.asked["w0"]
    assert isinstance(request, Choose)
    assert request.labels == (" Yes", " No")
    assert data_of(request.prompt) == ["The document.", SUMMARY]


@pytest.mark.parametrize("instruction", [1, 2, 3])
def test_cot_writes_its_evidence_and_then_takes_the_label_behind_2(instruction: int) -> None:
    script = Script({"w0.reason": wrote("w0.reason", " It says so.")})
    (finding,) = run(identity("cot", instruction=instruction), pair(SUMMARY), script)

    write, choose = script.asked["w0.reason"], script.asked["w0"]
    assert isinstance(write, Write)
    assert template_text(write.prompt).endswith("A: 1.")
    assert "\n2. " in write.stop
    assert choose.prompt == (*write.prompt, Tokens((1, 2, 3)), Template(" 2."))
    assert finding.reasoning == "It says so."
    assert finding.logprobs == SURE


def test_cot_needs_a_template_that_asks_for_evidence() -> None:
    with pytest.raises(ValueError, match="answer cue"):
        make_cot(BOOK["vanilla_1"], contexts=Contexts())


def test_sbs_lists_all_sentences_and_puts_each_answer_before_the_next_number() -> None:
    script = Script({"w1": chosen("w1", UNSURE)})
    findings = run(identity("sbs"), pair(SUMMARY), script)

    assert spans(findings) == ALL
    assert [finding.logprobs for finding in findings] == [SURE, UNSURE, SURE]
    first, second, third = (script.asked[f"w{number}"].prompt for number in range(3))
    assert data_of(first) == ["The document.", "1. The mayor came.\n2. It rained.\n3. She left."]
    assert second == (*first, Template(" Yes. 2."))
    assert third == (*second, Template(" No. 3."))


def test_sbs_after_a_failure_has_no_more_answers_to_go_on_from() -> None:
    failure = Failed(key="w1", status="engine_error", message="aborted")
    findings = run(identity("sbs"), pair(SUMMARY), Script({"w1": failure}))

    assert [finding.status for finding in findings] == ["ok", "engine_error", "engine_error"]
    assert findings[1].message == "aborted"
    assert "sentence 2" in (findings[2].message or "")
    assert spans(findings) == ALL


def test_sbs_judges_windows_of_several_sentences_as_one_statement() -> None:
    script = Script()
    findings = run(Identity(paradigm="sbs", window_sentences=2), pair(SUMMARY), script)

    assert spans(findings) == ((0, 26), (27, 36))
    assert data_of(script.asked["w0"].prompt)[1] == "1. The mayor came. It rained.\n2. She left."


def test_a_line_break_in_a_sentence_opens_no_number() -> None:
    assert numbered(["It\n 2. came", "\tAway."]) == "1. It 2. came\n2. Away."


@pytest.mark.parametrize(
    ("text", "statuses", "labels"),
    [
        (" No. 2. Yes. 3. Yes.", ["ok"] * 3, ["inconsistent", "consistent", "consistent"]),
        (" Yes.\n3. No.", ["ok", "unparsed", "ok"], ["consistent", None, "inconsistent"]),
        ("", ["unparsed"] * 3, [None] * 3),
        (" I'm sorry, I can't do that.", ["refused"] * 3, [None] * 3),
    ],
)
def test_sbs_parsed_gives_each_sentence_the_answer_of_its_number(
    text: str, statuses: list[str], labels: list[str | None]
) -> None:
    script = Script({"w0": wrote("w0", text)})
    findings = run(identity("sbs", "parse"), pair(SUMMARY), script)

    assert [finding.status for finding in findings] == statuses
    assert [finding.label for finding in findings] == labels
    assert all(finding.score is None for finding in findings)
    assert findings[0].reasoning == f"1.{text}".strip()
    assert script.asked["w0"].max_tokens == 3 * MAX_ANSWER_TOKENS


def test_the_text_of_all_answers_is_bounded() -> None:
    script = Script({"w0": wrote("w0", "")})
    run(identity("sbs", "parse"), pair("It rained. " * 200), script)

    assert script.asked["w0"].max_tokens == MAX_TEXT_TOKENS


def test_sbs_parsed_without_a_reply_fails_for_every_sentence() -> None:
    failure = Failed(key="w0", status="too_long", message="too long")
    findings = run(identity("sbs", "parse"), pair(SUMMARY), Script({"w0": failure}))

    assert [finding.status for finding in findings] == ["too_long"] * 3


@pytest.mark.parametrize(
    ("paradigm", "text", "status", "label"),
    [
        ("vanilla", " No.", "ok", "inconsistent"),
        ("vanilla", " Nothing", "unparsed", None),
        ("vanilla", "", "unparsed", None),
        ("vanilla", " As an AI, I have no opinion.", "refused", None),
        ("cot", " The document says so. 2. Yes", "ok", "consistent"),
        ("cot", " The document says so.", "unparsed", None),
        ("summ-nli", " No.", "ok", "consistent"),
        ("summ-nli", " Yes, the date.", "ok", "inconsistent"),
    ],
)
def test_parsed_text_becomes_a_label_or_a_status_and_is_kept(
    paradigm: Paradigm, text: str, status: str, label: str | None
) -> None:
    script = Script({"w0": wrote("w0", text)})
    (finding,) = run(identity(paradigm, "parse"), pair(SUMMARY), script)

    assert (finding.status, finding.label, finding.score) == (status, label, None)
    assert finding.reasoning == (text.strip() or None)
    assert set(script.asked) == {"w0"}


def test_a_base_model_s_text_ends_where_it_would_invent_another_example() -> None:
    script = Script({"w0": wrote("w0", "Yes")})
    run(identity("vanilla", "parse"), pair(SUMMARY), script)

    assert "\nDocument:" in script.asked["w0"].stop


@pytest.mark.parametrize(
    ("text", "finish", "status", "label"),
    [
        ("The date fits.\nAnswer: No", "stop", "ok", "consistent"),
        ("The date is wrong.\n\n**Answer:** Yes.", "stop", "ok", "inconsistent"),
        ("The date fits. The answer is no.", "stop", "ok", "consistent"),
        ("The date fits.", "stop", "unparsed", None),
        ("The date fits and", "length", "truncated_reasoning", None),
        ("No no no no", "repetition", "repetition", None),
        ("The date fits.\nAnswer: No, because", "length", "ok", "consistent"),
    ],
)
def test_parsed_reasoning_is_one_text_with_its_answer(text: str, finish: str, status: str, label: str | None) -> None:
    script = Script({"w0": wrote("w0", text, finish)})
    (finding,) = run(identity("sent-nli", "parse"), pair("The mayor came."), script, reasoning=True)

    assert (finding.status, finding.label) == (status, label)
    assert finding.reasoning == text
    assert script.asked["w0"].max_tokens == MAX_ANSWER_TOKENS + Identity().reasoning_tokens


def test_qg_qa_parses_its_answers_and_not_its_questions() -> None:
    claims = '{"claims": [{"entity": "Oslo", "question": "Which town has a mayor?"}]}'
    script = Script({"w0.qg": wrote("w0.qg", claims), "w0.q0": wrote("w0.q0", "No.")})
    (finding,) = run(identity("qg-qa", "parse"), pair("Oslo has a mayor."), script)

    assert (finding.entity, finding.label) == ("Oslo", "inconsistent")
