"""One judgement: a filled template becomes one finding, with or without reasoning first.

This is what all paradigms share. Their programs say what is judged; this one says how a label or a rating is asked
for, or read from text, and how each way of failing becomes a finding. No reply makes it raise.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from batchfact.paradigms.program import Program
from batchfact.prompts.loader import PromptTemplate
from batchfact.records import (
    Choose,
    Chosen,
    Data,
    Failed,
    Finding,
    FindingStatus,
    Label,
    Prompt,
    Reply,
    Segment,
    Tokens,
    Write,
    Written,
)
from batchfact.text.answers import Reading, read_answer, read_reasoned
from batchfact.text.sentences import sentences

MAX_ANSWER_TOKENS = 32
"""Enough for Yes or No and the sentence that models put behind it, where text is parsed."""

SENTENCE_ENDS = ".!?。！？…\"'”’)]}」』"


def judge(template: PromptTemplate, key: str, about: Finding, **fields: str) -> Program:
    """Ask whether `fields` are consistent; the finding is `about` with the reply's numbers, or its failure, added.

    A template with an answer cue has the model reason first: the reasoning's token ids and the cue then follow the
    prompt, so that the label is read from probabilities and never searched for in prose.
    """
    prompt = template.fill(**fields)
    if template.parses:
        return (yield from read(template, key, about, prompt))
    cue = template.answer_cue
    if cue is None:
        return (yield from choose(template, key, about, prompt))
    # The whole cue is a stop too, so that its line break is not there twice: tuned models know it once.
    stop = (cue.text, *template.stop)
    write = Write(key=f"{key}.reason", prompt=prompt, max_tokens=template.reasoning_tokens, stop=stop)
    written = reply_to(write.key, (yield (write,)))
    if not isinstance(written, Written):
        return (failed(about, written),)
    reasoned = usable_reasoning(written)
    if reasoned is None:
        return (msgspec.structs.replace(about, status=CUT_STATUS[written.finish], reasoning=written.text),)
    kept, segment = reasoned
    return (yield from choose(template, key, msgspec.structs.replace(about, reasoning=kept), (*prompt, *segment, cue)))


def choose(template: PromptTemplate, key: str, about: Finding, prompt: Prompt) -> Program:
    request = Choose(key=key, prompt=prompt, labels=template.labels)
    chosen = reply_to(key, (yield (request,)))
    if isinstance(chosen, Chosen) and chosen.label is not None:
        return (named(template, about, chosen.label),)
    if not isinstance(chosen, Chosen) or len(chosen.logprobs) != len(template.labels):
        return (failed(about, chosen),)
    if template.is_rating:
        return (msgspec.structs.replace(about, rating_logprobs=chosen.logprobs),)
    return (msgspec.structs.replace(about, logprobs=(chosen.logprobs[0], chosen.logprobs[1])),)


def named(template: PromptTemplate, about: Finding, place: int) -> Finding:
    """The finding where an engine has no probabilities, only the label that the model's text names."""
    if template.is_rating:
        message = "a rating is read from probabilities, which the engine does not give"
        return msgspec.structs.replace(about, status="engine_error", message=message)
    return msgspec.structs.replace(about, label="inconsistent" if place else "consistent")


def read(template: PromptTemplate, key: str, about: Finding, prompt: Prompt) -> Program:
    """The label from free text, as the papers read it; the finding keeps the text, for another parser."""
    assert template.consistent is not None, f"prompt template {template.name} asks no yes/no question"
    reasons = template.answer_cue is not None
    write = Write(key=key, prompt=prompt, max_tokens=text_tokens(template), stop=template.end)
    written = reply_to(key, (yield (write,)))
    if not isinstance(written, Written):
        return (failed(about, written),)
    if not reasons:
        return (parsed(about, written.text, read_answer(written.text, consistent=template.consistent)),)
    found = read_reasoned(written.text, template.stop, consistent=template.consistent)
    if written.finish != "stop" and not any(marker in written.text for marker in template.stop):
        return (msgspec.structs.replace(about, status=CUT_STATUS[written.finish], reasoning=written.text.strip()),)
    return (parsed(about, written.text, found),)


def text_tokens(template: PromptTemplate) -> int:
    """Tokens of the free text that the answer is read from."""
    return MAX_ANSWER_TOKENS + (0 if template.answer_cue is None else template.reasoning_tokens)


def parsed(about: Finding, text: str, found: Reading) -> Finding:
    """The finding that a reading of `text` makes."""
    kept = msgspec.structs.replace(about, reasoning=text.strip() or None)
    if found == "refused":
        return msgspec.structs.replace(kept, status="refused")
    if found == "unclear":
        return msgspec.structs.replace(kept, status="unparsed")
    label: Label = found
    return msgspec.structs.replace(kept, label=label)


def reply_to(key: str, replies: Sequence[Reply]) -> Reply:
    """The reply that carries `key`; a Failed one where none does."""
    for reply in replies:
        if reply.key == key:
            return reply
    return Failed(key=key, status="engine_error", message="the engine gave no reply")


def failed(about: Finding, reply: Reply) -> Finding:
    if isinstance(reply, Failed):
        return msgspec.structs.replace(about, status=reply.status, message=reply.message)
    return msgspec.structs.replace(about, status="engine_error", message="the engine gave another kind of reply")


CUT_STATUS: dict[str, FindingStatus] = {"length": "truncated_reasoning", "repetition": "repetition"}


def usable_reasoning(written: Written) -> tuple[str, tuple[Segment, ...]] | None:
    """The reasoning to keep and the segment that puts it back into the prompt; None where a cut left nothing.

    Whole reasoning goes back as its own token ids. Cut reasoning is kept up to its last complete sentence, and before
    the first sentence that it says twice; it goes back as data, because the ids of a part are not known here.
    """
    if written.finish == "stop":
        return written.text.strip(), (Tokens(written.ids),) if written.ids else ()
    kept = complete_sentences(written.text)
    return (kept.strip(), (Data(kept),)) if kept else None


def complete_sentences(text: str) -> str:
    """`text` up to its last complete sentence, and before the first sentence that came already; "" if there is none."""
    seen: set[str] = set()
    end = 0
    for span in sentences(text):
        sentence = text[span.start : span.end]
        if sentence in seen or sentence[-1] not in SENTENCE_ENDS:
            break
        seen.add(sentence)
        end = span.end
    return text[:end]
