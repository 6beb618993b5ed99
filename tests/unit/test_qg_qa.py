from __future__ import annotations

import json
import re
from typing import Any

import pytest

from batchfact.config import Identity
from batchfact.paradigms import make_paradigm
from batchfact.paradigms.claims import MAX_CLAIMS
from batchfact.paradigms.program import Running
from batchfact.paradigms.qg_qa import ENTITY_PATTERN, QUESTION_PATTERN, RESOLVED_PATTERN, claims_schema
from batchfact.records import Choose, Failed, Finding, FindingStatus, Write
from tests.unit.paradigm_fakes import BOOK, SURE, UNSURE, Script, chosen, data_of, pair, run, wrote

QG_QA = Identity(paradigm="qg-qa")
SUMMARY = "Callan has a Samsung S8. It's still under warranty."
PHONES = "It is a Samsung S8."
PHONE = ("Samsung S8", "What does Callan have?")
CALLAN = ("Callan", "Who has a Samsung S8?")
WARRANTY = ("warranty", "What is the Samsung S8 still under?")


def asks(key: str, *claims: tuple[str, str], finish: str = "stop") -> Any:
    text = json.dumps({"claims": [{"entity": entity, "question": question} for entity, question in claims]})
    return wrote(key, text, finish)


def test_each_claim_of_each_window_is_a_finding_with_its_question_and_entity() -> None:
    script = Script(
        {
            "w0.qg": asks("w0.qg", PHONE, CALLAN),
            "w1.qg": asks("w1.qg", WARRANTY),
            "w0.q1": chosen("w0.q1", UNSURE),
        }
    )
    assert run(QG_QA, pair(SUMMARY), script) == (
        Finding(start=0, end=24, logprobs=SURE, entity=PHONE[0], question=PHONE[1]),
        Finding(start=0, end=24, logprobs=UNSURE, entity=CALLAN[0], question=CALLAN[1]),
        Finding(start=25, end=51, logprobs=SURE, entity=WARRANTY[0], question=WARRANTY[1]),
    )


def test_questions_come_from_the_summary_alone_and_answers_from_the_document_alone() -> None:
    script = Script({"w0.qg": asks("w0.qg", PHONE), "w1.qg": asks("w1.qg", WARRANTY)})
    run(QG_QA, pair(SUMMARY, document="The phone is new."), script)
    questions = [request for request in script.asked.values() if isinstance(request, Write)]
    assert [data_of(request.prompt) for request in questions] == [
        [SUMMARY, "Callan has a Samsung S8."],
        [SUMMARY, "It's still under warranty."],
    ]
    answers = [request for request in script.asked.values() if isinstance(request, Choose)]
    assert [data_of(request.prompt) for request in answers] == [
        ["The phone is new.", PHONE[1], PHONE[0]],
        ["The phone is new.", WARRANTY[1], WARRANTY[0]],
    ]
    assert {request.labels for request in answers} == {(" Yes", " No")}


def test_no_window_waits_for_anothers_questions() -> None:
    running = Running(make_paradigm(QG_QA, BOOK, reasoning=False)(pair(SUMMARY)))
    assert [request.key for request in running.wanted] == ["w0.qg", "w1.qg"]
    running.wanted.clear()
    running.take(asks("w1.qg", WARRANTY))
    assert [request.key for request in running.wanted] == ["w1.q0"]


def test_a_window_whose_claims_are_all_dropped_reports_no_claims() -> None:
    script = Script({"w0.qg": asks("w0.qg", PHONE), "w1.qg": asks("w1.qg", ("Yes", "Is it under warranty?"))})
    findings = run(QG_QA, pair(SUMMARY), script)
    assert [finding.status for finding in findings] == ["ok", "no_claims"]
    assert (findings[1].start, findings[1].end, findings[1].question) == (25, 51, None)


@pytest.mark.parametrize(
    ("text", "finish", "status"),
    [
        ('{"claims": []}', "stop", "no_claims"),
        ('```json\n{"claims": [ ]}\n```', "stop", "no_claims"),
        ("I'm sorry, I can't help with that.", "stop", "refused"),
        ("1. Who sold the lamp? The shop.", "stop", "unparsed"),
        ("", "stop", "unparsed"),
        ('{"claims": [{"entity": "He", "question": "Who has it?"}, {"ent', "length", "no_claims"),
        ('{"claims": [{"entity": "Cal', "length", "unparsed"),
        ('{"claims": [{"entity": "a a a a a a', "repetition", "repetition"),
    ],
)
def test_a_question_generator_that_wrote_no_readable_claim_is_unknown(
    text: str, finish: str, status: FindingStatus
) -> None:
    (finding,) = run(QG_QA, pair("He won."), Script({"w0.qg": wrote("w0.qg", text, finish)}))
    assert finding.status == status


def test_the_complete_claims_of_a_cut_answer_are_verified() -> None:
    text = json.dumps({"claims": [{"entity": PHONE[0], "question": PHONE[1]}]})[:-2] + ', {"entity": "w'
    (finding,) = run(QG_QA, pair(PHONES), Script({"w0.qg": wrote("w0.qg", text, "length")}))
    assert (finding.status, finding.entity) == ("ok", PHONE[0])


def test_a_failed_question_generator_is_a_finding_with_its_status() -> None:
    script = Script(
        {"w0.qg": Failed(key="w0.qg", status="too_long", message="too long"), "w1.qg": asks("w1.qg", PHONE)}
    )
    assert [finding.status for finding in run(QG_QA, pair(SUMMARY), script)] == ["too_long", "ok"]


def test_a_failed_answer_keeps_its_question() -> None:
    script = Script(
        {"w0.qg": asks("w0.qg", PHONE), "w0.q0": Failed(key="w0.q0", status="engine_error", message="aborted")}
    )
    (finding,) = run(QG_QA, pair(PHONES), script)
    assert (finding.status, finding.question, finding.entity) == ("engine_error", PHONE[1], PHONE[0])


def test_reasoning_shows_the_steps_in_questions_and_the_thought_before_each_label() -> None:
    script = Script({"w0.qg": asks("w0.qg", PHONE), "w0.q0.reason": wrote("w0.q0.reason", "It says so.")})
    (finding,) = run(QG_QA, pair(PHONES), script, reasoning=True)
    assert (finding.reasoning, finding.logprobs) == ("It says so.", SURE)
    assert list(script.asked) == ["w0.qg", "w0.q0.reason", "w0.q0"]
    written = script.asked["w0.qg"]
    assert isinstance(written, Write)
    assert written.schema == claims_schema(reasoning=True)


@pytest.mark.parametrize("finish", ["repetition", "length", "stop"])
def test_steps_that_lead_to_no_claim_are_left_out_of_a_second_question(finish: str) -> None:
    script = Script(
        {
            "w0.qg": wrote("w0.qg", '{"resolved": "It is a phone a phone a phone', finish),
            "w0.qg.again": asks("w0.qg.again", PHONE),
            "w0.q0.reason": wrote("w0.q0.reason", "It says so."),
        }
    )
    (finding,) = run(QG_QA, pair(PHONES), script, reasoning=True)
    assert (finding.question, finding.logprobs) == (PHONE[1], SURE)
    again = script.asked["w0.qg.again"]
    assert isinstance(again, Write)
    assert again.schema == claims_schema(reasoning=False)
    assert again.prompt == BOOK["qg"].fill(summary=PHONES, window=PHONES)


def test_a_window_without_claims_after_the_second_question_has_the_second_answers_status() -> None:
    script = Script(
        {"w0.qg": wrote("w0.qg", "a a a", "repetition"), "w0.qg.again": asks("w0.qg.again", ("Yes", "Is it new?"))}
    )
    (finding,) = run(QG_QA, pair(PHONES), script, reasoning=True)
    assert finding.status == "no_claims"
    assert list(script.asked) == ["w0.qg", "w0.qg.again"]


def test_without_reasoning_questions_are_asked_once() -> None:
    script = Script({"w0.qg": wrote("w0.qg", "a a a", "repetition")})
    (finding,) = run(QG_QA, pair(PHONES), script)
    assert (finding.status, list(script.asked)) == ("repetition", ["w0.qg"])


def test_keys_are_unique_in_a_pair_of_many_windows_and_claims() -> None:
    summary = " ".join(["Entity 1 won."] * 12)
    many = [(f"Entity {number}", f"Who has Samsung S{number}?") for number in range(MAX_CLAIMS)]
    script = Script({f"w{number}.qg": asks(f"w{number}.qg", *many) for number in range(12)})
    assert len(run(QG_QA, pair(summary), script)) == 12 * MAX_CLAIMS


@pytest.mark.parametrize(("reasoning", "order"), [(False, ["claims"]), (True, ["resolved", "entities", "claims"])])
def test_the_schema_asks_for_the_steps_in_order_and_the_entity_before_its_question(
    reasoning: bool, order: list[str]
) -> None:
    schema = json.loads(claims_schema(reasoning=reasoning))
    assert list(schema["properties"]) == schema["required"] == order
    claims = schema["properties"]["claims"]
    assert (claims["minItems"], claims["maxItems"]) == (1, MAX_CLAIMS)
    assert list(claims["items"]["properties"]) == ["entity", "question"]


def test_the_schema_counts_no_more_than_grammar_back_ends_can_compile() -> None:
    """xgrammar 0.2.8 with its cache fails on a counted character class longer than about 128."""
    for pattern in (ENTITY_PATTERN, QUESTION_PATTERN, RESOLVED_PATTERN):
        assert all(int(bound) <= 100 for bound in re.findall(r"\{\d+,(\d+)\}", pattern))


@pytest.mark.parametrize(
    "question",
    ["Who has a Samsung S8?", "How many dogs came?", "What does May say?", "Which city is it?", "Whose is the phone?"],
)
def test_the_schema_lets_wh_questions_through(question: str) -> None:
    assert re.search(QUESTION_PATTERN, question)


@pytest.mark.parametrize(
    "question",
    [
        "Is it under warranty?",
        "Why does it overheat?",
        "How does it work?",
        "Who?",
        "Who is it",
        'Who said "no" to it?',
    ],
)
def test_the_schema_refuses_other_questions(question: str) -> None:
    assert not re.search(QUESTION_PATTERN, question)


def test_the_schema_lets_compound_entities_through() -> None:
    for entity in ("May", "Mike and Amy", "$3.5 million", "the 19th of May"):
        assert re.search(ENTITY_PATTERN, entity)
    for entity in ("", " x", 'a "b"', "very " * 20):
        assert not re.search(ENTITY_PATTERN, entity)
