"""What free text says, case by case."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchfact.text.answers import Reading, read_answer, read_numbered, read_reasoned

GOOD: Reading = "consistent"
BAD: Reading = "inconsistent"
UNCLEAR: Reading = "unclear"
REFUSED: Reading = "refused"

INFERRED: list[tuple[str, Reading]] = [
    # the plain answers, in any dress
    ("Yes", GOOD),
    ("No", BAD),
    (" No.", BAD),
    ("yes.", GOOD),
    ("YES!", GOOD),
    ("nO", BAD),
    ("**Yes**", GOOD),
    ("**No.** The document says otherwise.", BAD),
    ('"No"', BAD),
    ("`Yes`", GOOD),
    ("(No)", BAD),
    ("> Yes", GOOD),
    ("# No", BAD),
    ("Ｙｅｓ．", GOOD),
    ("Answer: No", BAD),
    ("A: Yes.", GOOD),
    ("**Answer:** No", BAD),
    ("The answer is no.", BAD),
    ("The answer is: **Yes**", GOOD),
    ("Therefore, no.", BAD),
    # with a reason
    ("Yes, the document says so.", GOOD),
    ("No, Space Invaders is not the founder of the organization.", BAD),
    ("No - the document gives another date.", BAD),
    ("No\n\nThe document mentions a mayor.", BAD),
    ("Yes it can.", GOOD),
    ("No it cannot be inferred.", BAD),
    ("No the document says nothing of the kind.", BAD),
    ("Yes, there is no error in it.", GOOD),
    ("Yes, no doubt about it.", GOOD),
    ("The document says Monday. No.", BAD),
    ("The mayor opened it on Monday, so no.", BAD),
    # No inside words, or as a determiner
    ("Nothing", UNCLEAR),
    ("November", UNCLEAR),
    ("Not sure", UNCLEAR),
    ("Notably, the document is long.", UNCLEAR),
    ("None", UNCLEAR),
    ("Yesterday, the mayor came.", UNCLEAR),
    ("No one was there.", UNCLEAR),
    ("Know", UNCLEAR),
    ("It opened in November.", UNCLEAR),
    ("no-one", UNCLEAR),
    # negations without a Yes or No
    ("The statement can be inferred from the document.", GOOD),
    ("The statement cannot be inferred from the document.", BAD),
    ("It can't be inferred.", BAD),
    ("It can’t be inferred.", BAD),
    ("This could not be directly inferred.", BAD),
    ("The statement can not be inferred.", BAD),
    ("The statement is factually consistent with the document.", GOOD),
    ("The statement is not factually consistent.", BAD),
    ("The statement isn't consistent.", BAD),
    ("The statement is inconsistent with the document.", BAD),
    ("It is not supported.", BAD),
    ("The document does not entail the statement.", BAD),
    ("The document entails the statement.", GOOD),
    ("No evidence in the document suggests that the UK government launched the campaign.", BAD),
    ("There is no mention of a bridge.", BAD),
    # called consistent, but not all of it, or not at all
    ("The statement is fully supported by the document.", GOOD),
    ("The statement is partially supported by the document.", UNCLEAR),
    ("The statement can only be partially inferred from the document.", UNCLEAR),
    ("The statement is hardly supported.", UNCLEAR),
    ("It is unclear whether the statement is supported.", UNCLEAR),
    ("Whether the statement is consistent cannot be determined.", UNCLEAR),
    ("The statement is consistent with the document except for the year.", UNCLEAR),
    ("The document supports only part of the statement.", UNCLEAR),
    # both, or something in between
    ("Yes and no.", UNCLEAR),
    ("Yes or No?", UNCLEAR),
    ("Yes/No", UNCLEAR),
    ("No or yes", UNCLEAR),
    ("Yes. No.", UNCLEAR),
    ("No. 2. Yes.", UNCLEAR),
    ("Yes or No? Yes", GOOD),
    ("Yes or No: No.", BAD),
    ("It is consistent, and it is not supported.", UNCLEAR),
    ("Perhaps", UNCLEAR),
    ("Partly.", UNCLEAR),
    ("The answer is not yes", UNCLEAR),
    # lists
    ("- No", BAD),
    ("* **Yes**", GOOD),
    ("1. No", BAD),
    ("1. No\n2. No", BAD),
    ("- Yes\n- No", UNCLEAR),
    # nothing
    ("", UNCLEAR),
    (" \n\t", UNCLEAR),
    ("...", UNCLEAR),
    ("**", UNCLEAR),
    ("\x00", UNCLEAR),
    # refusals
    ("I cannot answer that.", REFUSED),
    ("I can't help with this request.", REFUSED),
    ("I can’t help with this request.", REFUSED),
    ("As an AI language model, I do not have opinions.", REFUSED),
    ("I'm sorry, but I have no access to the document.", REFUSED),
    ("Sorry, this is not possible.", REFUSED),
    ("I am unable to determine this.", REFUSED),
    ("I cannot find the year in the text.", UNCLEAR),
    ("As an AI I would say: No.", BAD),
]


@pytest.mark.parametrize(("text", "reading"), INFERRED)
def test_an_answer_to_can_it_be_inferred(text: str, reading: Reading) -> None:
    assert read_answer(text, consistent="yes") == reading


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("No", GOOD),
        ("Yes", BAD),
        ("No.", GOOD),
        ("No, the statement does not contain any factual error.", GOOD),
        ("There are no factual errors.", GOOD),
        ("The statement doesn't contain any factual errors.", GOOD),
        ("It is free of errors.", GOOD),
        ("The statement contains a factual error.", BAD),
        ("There are two factual errors.", BAD),
        ("Yes, the date is wrong.", BAD),
        ("Yes, no date is right.", BAD),
        ("The statement is consistent with the document.", GOOD),
        ("The statement is incorrect.", BAD),
        ("No errors", GOOD),
        ("Nothing is wrong.", UNCLEAR),
    ],
)
def test_an_answer_to_are_there_errors(text: str, reading: Reading) -> None:
    assert read_answer(text, consistent="no") == reading


XU = ("Answer:", "Final answer")
COT = (" 2. ", "\n2. ")


@pytest.mark.parametrize(
    ("text", "markers", "reading"),
    [
        ("The date differs.\nAnswer: No", XU, BAD),
        ("No date is given. The name fits.\n\n**Answer:** Yes", XU, GOOD),
        ("Is there a date? Yes. Final answer is No.", XU, BAD),
        ("It fits.\nAnswer:\nYes\nStatement: another. No.", XU, GOOD),
        ("It fits.\nAnswer: see below\nYes.", XU, GOOD),
        ("It fits.\nAnswer:", XU, UNCLEAR),
        ("There is no such date. The answer is no.", XU, BAD),
        ("There was a vote. Yes. It ended on Monday.", XU, UNCLEAR),
        ("I'm sorry, I cannot judge this. Please ask another.", XU, REFUSED),
        ("", XU, UNCLEAR),
        (" Inoki founded the organization. 2. No, Space Invaders is not the founder.", COT, BAD),
        (" The cost rose by 2.5 percent.\n2. Yes", COT, GOOD),
        (" No evidence in the document suggests it. 2. No.", COT, BAD),
        (" The document says so. So the answer is yes.", COT, GOOD),
    ],
)
def test_an_answer_behind_a_reasoning(text: str, markers: tuple[str, ...], reading: Reading) -> None:
    assert read_reasoned(text, markers, consistent="yes") == reading


@pytest.mark.parametrize(
    ("text", "readings"),
    [
        ("1. No. 2. Yes.", [BAD, GOOD, UNCLEAR]),
        ("1. No. 2. Yes. 3. Yes.", [BAD, GOOD, GOOD]),
        ("1. No\n2. Yes\n3. No", [BAD, GOOD, BAD]),
        ("1. **Yes**\n2. **No**, in 1999. 3. Yes", [GOOD, BAD, GOOD]),
        ("1) Yes\n3) No", [GOOD, UNCLEAR, BAD]),
        ("1. Yes. 3. No. 2. Yes.", [GOOD, UNCLEAR, UNCLEAR]),
        ("1. Yes, 12. of May. 2. No.", [GOOD, BAD, UNCLEAR]),
        ("1. Yes. 2. Yes. 3. Yes. 4. No.", [GOOD, GOOD, GOOD]),
        ("1. Yes. 2. Maybe. 3. No.", [GOOD, UNCLEAR, BAD]),
        ("1. Yes and no. 2. No.", [UNCLEAR, BAD, UNCLEAR]),
        ("1.", [UNCLEAR, UNCLEAR, UNCLEAR]),
        ("", [UNCLEAR, UNCLEAR, UNCLEAR]),
        ("1. As an AI, I cannot judge this.", [REFUSED, REFUSED, REFUSED]),
    ],
)
def test_numbered_answers_go_back_to_their_numbers(text: str, readings: list[Reading]) -> None:
    assert list(read_numbered(text, 3, consistent="yes")) == readings


@given(st.text(), st.integers(1, 5))
def test_any_text_can_be_read(text: str, count: int) -> None:
    assert read_answer(text, consistent="yes") in (GOOD, BAD, UNCLEAR, REFUSED)
    assert read_reasoned(text, XU, consistent="no") in (GOOD, BAD, UNCLEAR, REFUSED)
    assert len(read_numbered(text, count, consistent="yes")) == count


@given(st.text(alphabet="yesno. ,\n*-12"))
def test_the_other_question_turns_a_bare_answer_round(text: str) -> None:
    turned = {GOOD: BAD, BAD: GOOD}
    found = read_answer(text, consistent="yes")
    assert read_answer(text, consistent="no") == turned.get(found, found)


@given(st.lists(st.sampled_from(["Yes", "No"]), min_size=1, max_size=12))
def test_what_is_numbered_is_read_back(words: list[str]) -> None:
    text = " ".join(f"{number}. {word}." for number, word in enumerate(words, 1))
    assert read_numbered(text, len(words), consistent="yes") == tuple(GOOD if w == "Yes" else BAD for w in words)
