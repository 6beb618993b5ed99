"""Which of the claims that a model wrote are verified."""

from __future__ import annotations

import json

import pytest

from batchfact.paradigms.claims import MAX_CLAIMS, Claim, is_closed_question, is_entity, parse_claims


def written(*claims: tuple[str, str]) -> str:
    found = [{"entity": entity, "question": question} for entity, question in claims]
    return json.dumps({"claims": found}, ensure_ascii=False)


KEPT = [
    ("May", "Who does not want to see a specialist?"),
    ("Mike and Amy", "Who went to the store?"),
    ("the 19th", "When is Jane free for dinner?"),
    ("a specialist", "Whom does May not want to see?"),
    ("$3.5 million", "How much did the bridge cost?"),
    ("three", "How many dogs came?"),
    ("Oslo", "In which city did the mayor speak?"),
    ("the user interface's remote", "What is the mushroom?"),
    ("北京", "Which city is the capital of China?"),
    ("one of the dogs", "Who ran away?"),
    ("The Who", "Which band played in Leeds?"),
    ("Nobody's Fool", "What is the film called?"),
    ("No. 10", "Where does he live?"),
]

DROPPED = [
    # appendix D: "E1: Yes"
    ("Yes", "Is the device still under warranty?"),
    ("yes.", "What is under warranty?"),
    ("No", "Who came to dinner?"),
    ("True", "What is true of the device?"),
    ("N/A", "What is the name of it?"),
    # yes/no questions
    ("warranty", "Is the device still under warranty?"),
    ("Callan", "Did he go to the store?"),
    ("Callan", "Doesn't he go to the store?"),
    ("Callan", "Has Callan gone?"),
    # pronouns are no entities
    ("He", "Who is going to the store?"),
    ("it", "What overheats?"),
    ("They", "Who came to dinner?"),
    ("you and I", "Who came to dinner?"),
    ("he and she", "Who came to dinner?"),
    ("all of them", "Who came to dinner?"),
    ("himself", "Whom did Callan blame?"),
    ("someone", "Who called the police?"),
    # nothing to ask, or nothing asked
    ("", "Who came to dinner?"),
    ("...", "Who came to dinner?"),
    ("Callan", ""),
    ("Callan", "Who?"),
    ("Callan", "Name the man in the store."),
    # open-ended questions
    ("the heat", "Why does the phone overheat?"),
    ("slowly", "How does the phone restart?"),
    # a question that holds its answer
    ("Callan", "Who is Callan?"),
    ("The store", "Where is the store to be found?"),
]


@pytest.mark.parametrize(("entity", "question"), KEPT)
def test_a_closed_question_on_a_named_thing_is_kept(entity: str, question: str) -> None:
    assert parse_claims(written((entity, question))) == (Claim(entity, question),)


@pytest.mark.parametrize(("entity", "question"), DROPPED)
def test_low_quality_claims_are_dropped(entity: str, question: str) -> None:
    assert parse_claims(written((entity, question))) == ()


def test_dropping_one_claim_keeps_the_others_in_order() -> None:
    text = written(KEPT[0], DROPPED[0], KEPT[1])
    assert parse_claims(text) == (Claim(*KEPT[0]), Claim(*KEPT[1]))


@pytest.mark.parametrize("again", ["Samsung S8", "samsung  s8", "The Samsung S8", '"Samsung S8."'])
def test_an_entity_is_asked_about_once(again: str) -> None:
    text = written(("Samsung S8", "What overheats often?"), (again, "What does Callan own?"))
    assert parse_claims(text) == (Claim("Samsung S8", "What overheats often?"),)


def test_a_question_is_asked_once() -> None:
    """It has one answer: "Mike and Amy" would have been one entity."""
    text = written(("Mike", "Who came to dinner?"), ("Amy", "who came to  dinner"))
    assert parse_claims(text) == (Claim("Mike", "Who came to dinner?"),)


def test_at_most_the_cap_is_kept() -> None:
    text = written(*((f"Entity {number}", f"Who came to dinner {number}?") for number in range(MAX_CLAIMS + 3)))
    assert [claim.entity for claim in parse_claims(text)] == [f"Entity {number}" for number in range(MAX_CLAIMS)]


def test_quotes_and_spaces_around_are_tidied() -> None:
    text = written((" “Samsung  S8”. ", "  What\n overheats? "))
    assert parse_claims(text) == (Claim("Samsung S8", "What overheats?"),)


def test_the_claims_of_a_cut_answer_are_those_that_are_complete() -> None:
    whole = written(*KEPT[:3])
    cut = whole[: whole.index("Jane") + 2]
    assert parse_claims(cut) == (Claim(*KEPT[0]), Claim(*KEPT[1]))


def test_the_claims_behind_the_reasoning_steps_are_found() -> None:
    steps = {"resolved": "May {who} waits.", "entities": ["May"]}
    text = json.dumps({**steps, **json.loads(written(KEPT[0]))})
    assert parse_claims(text) == (Claim(*KEPT[0]),)
    assert parse_claims(text[:-1]) == (Claim(*KEPT[0]),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON at all",
        "{" * 100_000,
        "[" * 100_000,
        '{"claims": [' * 50_000,
        '{"claims": 5}',
        '{"claims": [5, null, "x", []]}',
        '{"claims": [{"entity": 5, "question": "Who came to dinner?"}]}',
        '{"claims": [{"entity": "May"}]}',
        '{"claims": [{"entity": "\ud800", "question": "Who came to dinner?"}',
        "null",
        '"\\u0000"',
    ],
)
def test_text_without_a_claim_gives_none_and_never_raises(text: str) -> None:
    assert parse_claims(text) == ()


def test_the_rules_say_what_they_are_named_for() -> None:
    assert is_entity("Mike and Amy")
    assert not is_entity("him or her")
    assert is_closed_question("Whose phone is it?")
    assert not is_closed_question("Could he come?")
