"""Sentence-by-sentence prompting (Chen 2023, section 2.1, Table 1): one prompt lists all sentences, one answer each.

The answer opens with `A: 1.`; each label is chosen behind its number, written into the prompt, and the next number
follows, so a sentence is judged knowing the answers before it, as in the paper's one piece of text. The fold does the
`any`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from batchfact.paradigms.contexts import Contexts, Excerpt, judged_by, key_of, without_room
from batchfact.paradigms.judging import MAX_ANSWER_TOKENS, choose, failed, parsed, reply_to
from batchfact.paradigms.program import Paradigm, Program, in_step
from batchfact.prompts.loader import PromptTemplate
from batchfact.records import Finding, Label, Pair, Prompt, Template, Write, Written
from batchfact.text.answers import read_numbered
from batchfact.text.windows import windows

MAX_TEXT_TOKENS = 1024
"""Of all answers together, where text is parsed."""
ANSWERED_TOKENS = 8
"""Room for one answer and the next number in the prompt: ` No. 12.`"""


def make_sbs(template: PromptTemplate, *, contexts: Contexts, sentences_per_window: int) -> Paradigm:
    """One finding for each window, in summary order; windows are single sentences in the paper.

    All sentences stand in one prompt, so they are judged by the same part of a document that does not fit.
    """

    def program(pair: Pair) -> Program:
        cut = windows(pair.summary, sentences_per_window=sentences_per_window)
        if not cut:
            return ()
        listed = numbered([each.text_of(pair.summary) for each in cut])
        shown = contexts.of(pair.document).shown(
            template, {"window": listed}, target=pair.summary, answer_tokens=answer_tokens(template, len(cut))
        )
        abouts = [Finding(start=window.start, end=window.end) for window in cut]
        if not shown:
            return tuple(without_room(about) for about in abouts)
        steps = read_all if template.parses else choose_each
        findings = yield from in_step(
            [steps(template, excerpt, abouts, template.fill(document=excerpt.text, window=listed)) for excerpt in shown]
        )
        # Those of one sentence stand together: they count as one.
        return tuple(sorted(findings, key=lambda finding: finding.start))

    return program


def answer_tokens(template: PromptTemplate, num_windows: int) -> int:
    """Tokens that the answer to all numbers may take, or that the answers so far take in the last prompt."""
    if template.parses:
        return min(MAX_ANSWER_TOKENS * num_windows, MAX_TEXT_TOKENS)
    return ANSWERED_TOKENS * num_windows


def choose_each(template: PromptTemplate, excerpt: Excerpt, abouts: Sequence[Finding], prompt: Prompt) -> Program:
    """One Choose behind each number, in turn; after a failure the rest cannot be asked and fails alike."""
    findings: list[Finding] = []
    abouts = [judged_by(about, excerpt) for about in abouts]
    for number, about in enumerate(abouts, 1):
        (found,) = yield from choose(template, key_of(f"w{number - 1}", excerpt), about, prompt)
        findings.append(found)
        label = said(found)
        if label is None:
            message = f"not asked: sentence {number} before it got no answer"
            findings += [
                msgspec.structs.replace(rest, status=found.status, message=message) for rest in abouts[number:]
            ]
            break
        answer = template.labels[0] if label == "consistent" else template.labels[1]
        prompt = (*prompt, Template(f"{answer}. {number + 1}."))
    return tuple(findings)


def said(found: Finding) -> Label | None:
    """The likelier label, or the one that the model's text named; None where it gave no answer."""
    if found.logprobs is None:
        return found.label
    return "consistent" if found.logprobs[0] >= found.logprobs[1] else "inconsistent"


def read_all(template: PromptTemplate, excerpt: Excerpt, abouts: Sequence[Finding], prompt: Prompt) -> Program:
    """One text with all answers, given back to the sentences by number."""
    assert template.consistent is not None, f"prompt template {template.name} asks no yes/no question"
    abouts = [judged_by(about, excerpt) for about in abouts]
    max_tokens = answer_tokens(template, len(abouts))
    write = Write(key=key_of("w0", excerpt), prompt=prompt, max_tokens=max_tokens, stop=template.end)
    written = reply_to(write.key, (yield (write,)))
    if not isinstance(written, Written):
        return tuple(failed(about, written) for about in abouts)
    text = f"1.{written.text}"  # the first number is the prompt's cue
    readings = read_numbered(text, len(abouts), consistent=template.consistent)
    # The whole text stands with the first sentence: another parser may cut it elsewhere.
    kept = [parsed(about, "", reading) for about, reading in zip(abouts, readings, strict=True)]
    return (msgspec.structs.replace(kept[0], reasoning=text), *kept[1:])


def numbered(statements: Sequence[str]) -> str:
    """`1. ...` and so on, a line each; line breaks inside a sentence become spaces, so that none opens a number."""
    return "\n".join(f"{number}. {' '.join(statement.split())}" for number, statement in enumerate(statements, 1))


def numbered_answers(words: Sequence[str]) -> str:
    """What follows the cue `A: 1.` in a worked example: ` No. 2. Yes`, without the last full stop."""
    return ".".join(f" {number}.{word}" if number > 1 else word for number, word in enumerate(words, 1))
