from __future__ import annotations

import pytest

from batchfact.config import Identity
from batchfact.paradigms import template_names
from batchfact.records import Choose, Chosen, Data, Failed, Finding, FindingStatus, Template, Tokens, Write
from tests.unit.paradigm_fakes import BOOK, SURE, UNSURE, Script, chosen, data_of, pair, run, template_text, wrote

SUMM = Identity(paradigm="summ-nli")
SUMMARY = "One is first. Two is next."


def test_the_whole_summary_is_judged_in_one_request() -> None:
    script = Script({"w0": chosen("w0", UNSURE)})
    findings = run(SUMM, pair(SUMMARY, document="A document."), script)
    assert findings == (Finding(start=0, end=len(SUMMARY), logprobs=UNSURE),)
    request = script.asked["w0"]
    assert isinstance(request, Choose)
    assert request.labels == (" No", " Yes")
    assert data_of(request.prompt) == ["A document.", SUMMARY]
    assert template_text(request.prompt).endswith("Answer:")


def test_a_failed_request_is_a_finding_with_its_status() -> None:
    script = Script({"w0": Failed(key="w0", status="too_long", message="9000 tokens of 8192")})
    (finding,) = run(SUMM, pair(SUMMARY), script)
    assert (finding.status, finding.message, finding.logprobs) == ("too_long", "9000 tokens of 8192", None)


@pytest.mark.parametrize("reply", [wrote("w0", "No"), chosen("w0", (-1.0,)), chosen("other", SURE)])
def test_a_reply_of_the_wrong_kind_is_an_engine_error_and_never_raises(reply: Chosen) -> None:
    (finding,) = run(SUMM, pair(SUMMARY), Script({"w0": reply}))
    assert finding.status == "engine_error"
    assert finding.message


def test_reasoning_goes_before_the_label_as_the_ids_that_were_written() -> None:
    script = Script({"w0.reason": wrote("w0.reason", " It says so. All is well."), "w0": chosen("w0", SURE)})
    (finding,) = run(SUMM, pair(SUMMARY), script, reasoning=True)
    assert finding == Finding(start=0, end=len(SUMMARY), logprobs=SURE, reasoning="It says so. All is well.")
    write, choose = script.asked["w0.reason"], script.asked["w0"]
    assert isinstance(write, Write)
    assert write.stop == ("\n\nAnswer:", *BOOK["summ_nli_reasoning"].stop)
    assert choose.prompt == (*write.prompt, Tokens((1, 2, 3, 4, 5, 6)), Template("\n\nAnswer:"))


@pytest.mark.parametrize("finish", ["length", "repetition"])
def test_cut_reasoning_is_kept_up_to_its_last_complete_sentence(finish: str) -> None:
    text = " The statement says Friday. The document says Monday. So the sta"
    script = Script({"w0.reason": wrote("w0.reason", text, finish), "w0": chosen("w0", UNSURE)})
    (finding,) = run(SUMM, pair(SUMMARY), script, reasoning=True)
    kept = " The statement says Friday. The document says Monday."
    assert finding.status == "ok"
    assert finding.reasoning == kept.strip()
    assert script.asked["w0"].prompt == (
        *script.asked["w0.reason"].prompt,
        Data(kept),
        Template("\n\nAnswer:"),
    )


def test_repeated_reasoning_is_kept_before_the_first_repetition() -> None:
    text = "It is so. It fits. It is so. It fits. It is so."
    script = Script({"w0.reason": wrote("w0.reason", text, "repetition")})
    (finding,) = run(SUMM, pair(SUMMARY), script, reasoning=True)
    assert finding.reasoning == "It is so. It fits."


@pytest.mark.parametrize(("finish", "status"), [("length", "truncated_reasoning"), ("repetition", "repetition")])
@pytest.mark.parametrize("text", ["", "  ", "and so on and so on and"])
def test_reasoning_that_leaves_no_sentence_is_unknown_and_asks_for_no_label(
    finish: str, status: FindingStatus, text: str
) -> None:
    script = Script({"w0.reason": wrote("w0.reason", text, finish)})
    (finding,) = run(SUMM, pair(SUMMARY), script, reasoning=True)
    assert finding.status == status
    assert finding.reasoning == text
    assert list(script.asked) == ["w0.reason"]


def test_a_model_that_gives_no_reason_is_still_asked_for_the_label() -> None:
    script = Script({"w0.reason": wrote("w0.reason", "")})
    (finding,) = run(SUMM, pair(SUMMARY), script, reasoning=True)
    assert (finding.status, finding.logprobs, finding.reasoning) == ("ok", SURE, "")
    assert script.asked["w0"].prompt == (*script.asked["w0.reason"].prompt, Template("\n\nAnswer:"))


def test_a_failed_reasoning_is_a_finding_with_its_status() -> None:
    script = Script({"w0.reason": Failed(key="w0.reason", status="cancelled", message="decided")})
    (finding,) = run(SUMM, pair(SUMMARY), script, reasoning=True)
    assert finding.status == "cancelled"


def test_a_failed_label_keeps_the_reasoning() -> None:
    script = Script(
        {"w0.reason": wrote("w0.reason", "So."), "w0": Failed(key="w0", status="engine_error", message="died")}
    )
    (finding,) = run(SUMM, pair(SUMMARY), script, reasoning=True)
    assert (finding.status, finding.reasoning) == ("engine_error", "So.")


def test_the_templates_of_a_run_are_those_that_it_uses() -> None:
    assert template_names(SUMM, reasoning=False) == ("summ_nli",)
    assert template_names(SUMM, reasoning=True) == ("summ_nli_reasoning",)
    sent = Identity(paradigm="sent-nli", window_context="summary")
    assert template_names(sent, reasoning=True) == ("sent_nli_reasoning", "sent_nli_summary_reasoning")
    assert template_names(Identity(paradigm="qg-qa"), reasoning=False) == ("qg", "qa")
    assert template_names(Identity(paradigm="qg-qa"), reasoning=True) == ("qg_reasoning", "qa_reasoning", "qg")
