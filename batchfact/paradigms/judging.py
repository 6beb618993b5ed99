"""One judgement: a filled template becomes one finding, with or without reasoning first.

This is what all paradigms share. Their programs say what is judged; this one says how a label is asked for, and how
each way of failing becomes a finding. No reply makes it raise.
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
    Prompt,
    Reply,
    Segment,
    Tokens,
    Write,
    Written,
)
from batchfact.text.sentences import sentences

SENTENCE_ENDS = ".!?。！？…\"'”’)]}」』"


def judge(template: PromptTemplate, key: str, about: Finding, **fields: str) -> Program:
    """Ask whether `fields` are consistent; the finding is `about` with the reply's numbers, or its failure, added.

    A template with an answer cue has the model reason first: the reasoning's token ids and the cue then follow the
    prompt, so that the label is read from probabilities and never searched for in prose.
    """
    prompt = template.fill(**fields)
    cue = template.answer_cue
    if cue is None:
        return (yield from choose(template, key, about, prompt))
    write = Write(key=f"{key}.reason", prompt=prompt, max_tokens=template.reasoning_tokens, stop=template.stop)
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
        return (msgspec.structs.replace(about, label="inconsistent" if chosen.label else "consistent"),)
    if not isinstance(chosen, Chosen) or len(chosen.logprobs) != 2:
        return (failed(about, chosen),)
    return (msgspec.structs.replace(about, logprobs=(chosen.logprobs[0], chosen.logprobs[1])),)


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
