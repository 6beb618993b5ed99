"""QG-QA (Xu 2024, section 3.3): questions from the summary alone, answered and checked by the document alone.

    {(q_k, e_k)} = LLM-QG(S_i)                       (eq. 3)
    y_i = any over k of LLM-QA(D_i, q_k, e_k)        (eq. 4)

Each window's questions are verified as soon as they are written. The fold does the `any`, over claims.

With reasoning the generator first writes its steps, which a small model may repeat without end. Where they leave no
claim to check, the window's questions are asked once more without them (not in the paper).
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from msgspec import Struct

from batchfact.paradigms.claims import MAX_CLAIMS, Claim, parse_claims, written_claims
from batchfact.paradigms.contexts import Contexts, DocumentContext, judge_document
from batchfact.paradigms.judging import failed, reply_to
from batchfact.paradigms.program import Paradigm, Program, together
from batchfact.prompts.loader import PromptTemplate
from batchfact.records import Finding, FindingStatus, Pair, Window, Write, Written
from batchfact.text.answers import read_refusal
from batchfact.text.windows import windows

MAX_CLAIM_TOKENS = 384
MAX_REASONED_CLAIM_TOKENS = 640
"""Room for five claims of usual length; with resolved text and the list of entities before them."""

# Counts stay under 128: xgrammar 0.2.8 fails to compile a longer counted character class where its cache is on. Where
# hundreds of characters are allowed, words are counted instead, which compiles in a second and not in ten.
CHARACTER, IN_WORD = r'[^"\\{}\n\r\t]', r'[^ "\\{}\n\r\t]'
ASKING = "Who|Whom|Whose|What|Which|When|Where|How many|How much|How long|How old"
QUESTION_PATTERN = rf'^({ASKING}) [^"\\{{}}?\n\r\t]{{4,100}}\?$'
ENTITY_PATTERN = rf"^{IN_WORD}{CHARACTER}{{0,60}}$"
NO_CLAIMS = re.compile(r'"claims"\s*:\s*\[\s*\]')
"""A list that the model left empty: it says itself that there is nothing to ask."""
RESOLVED_PATTERN = rf"^{IN_WORD}+( {IN_WORD}+){{0,80}}$"


def claims_schema(*, reasoning: bool) -> str:
    """The JSON schema of a question generator's answer; with reasoning its first two steps come before the claims.

    The entity stands before the question, so that the model writes the question to the entity. The patterns bound the
    lengths, because grammar back ends ignore `maxLength` beside a `pattern`.
    """
    entity = {"type": "string", "pattern": ENTITY_PATTERN}
    question = {"type": "string", "pattern": QUESTION_PATTERN}
    claim = closed({"entity": entity, "question": question})
    properties: dict[str, Any] = {"claims": {"type": "array", "items": claim, "minItems": 1, "maxItems": MAX_CLAIMS}}
    if reasoning:
        steps = {
            "resolved": {"type": "string", "pattern": RESOLVED_PATTERN},
            "entities": {"type": "array", "items": entity, "minItems": 1, "maxItems": MAX_CLAIMS},
        }
        properties = {**steps, **properties}
    return json.dumps(closed(properties))


def closed(properties: dict[str, Any]) -> dict[str, Any]:
    """An object with exactly these properties, in this order."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def without_claims(about: Finding, written: Written) -> Finding:
    """`no_claims` where the model wrote none worth asking, or an empty list; unknown where its text holds neither."""
    if any(written_claims(written.text)) or NO_CLAIMS.search(written.text):
        return msgspec.structs.replace(about, status="no_claims")
    if written.finish == "stop":
        is_refusal = read_refusal(written.text) == "refused"
        status: FindingStatus = "refused" if is_refusal else "unparsed"
        return msgspec.structs.replace(about, status=status, message="the model wrote no list of questions")
    status = "repetition" if written.finish == "repetition" else "unparsed"
    return msgspec.structs.replace(about, status=status, message="no question was complete when the answer was cut")


class Question(Struct, frozen=True):
    """How a generator is asked for claims: its template, the form of its answer, and the tokens for it."""

    template: PromptTemplate
    schema: str
    max_tokens: int


def make_qg_qa(
    ask: PromptTemplate,
    verify: PromptTemplate,
    ask_again: PromptTemplate | None = None,
    *,
    contexts: Contexts,
    sentences_per_window: int,
) -> Paradigm:
    """One finding for each claim of each window; a window without a claim gives one `no_claims` finding.

    `ask_again` comes with reasoning: the template without steps, for windows whose steps led to no claim.
    """
    first = Question(ask, claims_schema(reasoning=ask_again is not None), MAX_CLAIM_TOKENS)
    tries: tuple[Question, ...] = (first,)
    if ask_again is not None:
        first = msgspec.structs.replace(first, max_tokens=MAX_REASONED_CLAIM_TOKENS)
        tries = (first, Question(ask_again, claims_schema(reasoning=False), MAX_CLAIM_TOKENS))

    def verify_claim(pair: Pair, document: DocumentContext, key: str, window: Window, claim: Claim) -> Program:
        about = Finding(start=window.start, end=window.end, question=claim.question, entity=claim.entity)
        target, fields = window.text_of(pair.summary), {"question": claim.question, "entity": claim.entity}
        return (yield from judge_document(document, verify, key, about, target=target, **fields))

    def verify_window(pair: Pair, document: DocumentContext, number: int, window: Window) -> Program:
        findings: tuple[Finding, ...] = ()
        for asked, question in enumerate(tries):
            prompt = question.template.fill(summary=pair.summary, window=window.text_of(pair.summary))
            key = f"w{number}.qg" + ".again" * asked
            request = Write(key=key, prompt=prompt, max_tokens=question.max_tokens, schema=question.schema)
            written = reply_to(key, (yield (request,)))
            about = Finding(start=window.start, end=window.end)
            if not isinstance(written, Written):
                return (failed(about, written),)
            claims = parse_claims(written.text)
            if claims:
                return (
                    yield together(
                        verify_claim(pair, document, f"w{number}.q{index}", window, claim)
                        for index, claim in enumerate(claims)
                    )
                )
            findings = (without_claims(about, written),)
        return findings

    def program(pair: Pair) -> Program:
        cut = windows(pair.summary, sentences_per_window=sentences_per_window)
        document = contexts.of(pair.document)
        document.prepare(verify, question="", entity="")
        return (yield together(verify_window(pair, document, number, window) for number, window in enumerate(cut)))

    return program
