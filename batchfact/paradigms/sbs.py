"""Sentence-by-sentence prompting (Chen 2023, section 2.1, Table 1): one prompt lists all sentences, one answer each.

The answer opens with `A: 1.`; each label is chosen behind its number, written into the prompt, and the next number
follows, so a sentence is judged knowing the answers before it, as in the paper's one piece of text. The fold does the
`any`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from batchfact.paradigms.judging import MAX_ANSWER_TOKENS, choose, failed, parsed, reply_to
from batchfact.paradigms.program import Paradigm, Program
from batchfact.prompts.loader import PromptTemplate
from batchfact.records import Finding, Pair, Prompt, Template, Window, Write, Written
from batchfact.text.answers import read_numbered
from batchfact.text.windows import windows

MAX_TEXT_TOKENS = 1024
"""Of all answers together, where text is parsed."""


def make_sbs(template: PromptTemplate, *, sentences_per_window: int) -> Paradigm:
    """One finding for each window, in summary order; windows are single sentences in the paper."""

    def program(pair: Pair) -> Program:
        cut = windows(pair.summary, sentences_per_window=sentences_per_window)
        if not cut:
            return ()
        prompt = template.fill(document=pair.document, window=numbered([each.text_of(pair.summary) for each in cut]))
        steps = read_all if template.parses else choose_each
        return (yield from steps(template, cut, prompt))

    return program


def choose_each(template: PromptTemplate, cut: Sequence[Window], prompt: Prompt) -> Program:
    """One Choose behind each number, in turn; after a failure the rest cannot be asked and fails alike."""
    findings: list[Finding] = []
    for number, window in enumerate(cut, 1):
        about = Finding(start=window.start, end=window.end)
        (found,) = yield from choose(template, f"w{number - 1}", about, prompt)
        findings.append(found)
        if found.logprobs is None:
            message = f"not asked: sentence {number} before it got no answer"
            findings += [
                Finding(start=rest.start, end=rest.end, status=found.status, message=message) for rest in cut[number:]
            ]
            break
        answer = template.labels[0] if found.logprobs[0] >= found.logprobs[1] else template.labels[1]
        prompt = (*prompt, Template(f"{answer}. {number + 1}."))
    return tuple(findings)


def read_all(template: PromptTemplate, cut: Sequence[Window], prompt: Prompt) -> Program:
    """One text with all answers, given back to the sentences by number."""
    assert template.consistent is not None, f"prompt template {template.name} asks no yes/no question"
    abouts = [Finding(start=window.start, end=window.end) for window in cut]
    max_tokens = min(MAX_ANSWER_TOKENS * len(cut), MAX_TEXT_TOKENS)
    written = reply_to("w0", (yield (Write(key="w0", prompt=prompt, max_tokens=max_tokens, stop=template.end),)))
    if not isinstance(written, Written):
        return tuple(failed(about, written) for about in abouts)
    text = f"1.{written.text}"  # the first number is the prompt's cue
    readings = read_numbered(text, len(cut), consistent=template.consistent)
    # The whole text stands with the first sentence: another parser may cut it elsewhere.
    kept = [parsed(about, "", reading) for about, reading in zip(abouts, readings, strict=True)]
    return (msgspec.structs.replace(kept[0], reasoning=text), *kept[1:])


def numbered(statements: Sequence[str]) -> str:
    """`1. ...` and so on, a line each; line breaks inside a sentence become spaces, so that none opens a number."""
    return "\n".join(f"{number}. {' '.join(statement.split())}" for number, statement in enumerate(statements, 1))


def numbered_answers(words: Sequence[str]) -> str:
    """What follows the cue `A: 1.` in a worked example: ` No. 2. Yes`, without the last full stop."""
    return ".".join(f" {number}.{word}" if number > 1 else word for number, word in enumerate(words, 1))
