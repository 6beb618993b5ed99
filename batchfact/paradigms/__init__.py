"""The paradigms: programs that turn a pair into findings, and the fold that turns findings into a verdict."""

from __future__ import annotations

import msgspec

from batchfact.config import CHEN, Identity
from batchfact.paradigms.contexts import Contexts
from batchfact.paradigms.cot import make_cot
from batchfact.paradigms.program import Paradigm
from batchfact.paradigms.qg_qa import make_qg_qa
from batchfact.paradigms.sbs import make_sbs
from batchfact.paradigms.sent_nli import TEMPLATES as SENT_NLI_TEMPLATES
from batchfact.paradigms.sent_nli import make_sent_nli
from batchfact.paradigms.summ_nli import make_summ_nli
from batchfact.paradigms.vanilla import make_vanilla
from batchfact.prompts.loader import PromptBook, PromptTemplate
from batchfact.records import Prompt

__all__ = ["METHOD_VERSION", "make_paradigm", "template_names"]

METHOD_VERSION = 4
"""Raise it with every change of code or data that can change answers: sentence splitting, claim rules, schemas, limits.

It is part of a run's identity, so that one output never mixes answers of two versions."""


def make_paradigm(
    identity: Identity,
    prompts: PromptBook,
    *,
    reasoning: bool,
    demonstrations: Prompt = (),
    contexts: Contexts | None = None,
) -> Paradigm:
    """The paradigm that `identity` names, over `prompts`.

    Args:
        reasoning: ask for a thought process before each label; the paradigms of Chen 2023 decide that themselves.
        demonstrations: few-shot examples, in front of every prompt of Chen's paradigms.
        contexts: what is shown of documents; by default all of it.
    """
    templates = [
        _for_run(prompts[name], identity, demonstrations) for name in template_names(identity, reasoning=reasoning)
    ]
    contexts = Contexts() if contexts is None else contexts
    if identity.paradigm == "summ-nli":
        return make_summ_nli(*templates, contexts=contexts)
    if identity.paradigm == "sent-nli":
        return make_sent_nli(
            *templates,
            contexts=contexts,
            sentences_per_window=identity.window_sentences,
            window_context=identity.window_context,
        )
    if identity.paradigm == "vanilla":
        return make_vanilla(*templates, contexts=contexts)
    if identity.paradigm == "cot":
        return make_cot(*templates, contexts=contexts)
    if identity.paradigm == "sbs":
        return make_sbs(*templates, contexts=contexts, sentences_per_window=identity.window_sentences)
    return make_qg_qa(*templates, contexts=contexts, sentences_per_window=identity.window_sentences)


def template_names(identity: Identity, *, reasoning: bool) -> tuple[str, ...]:
    """The prompt templates that a run of `identity` uses, in the order in which its paradigm takes them."""
    if identity.paradigm in CHEN:
        return (f"{identity.paradigm}_{identity.instruction}",)
    if identity.paradigm == "summ-nli":
        names: tuple[str, ...] = ("summ_nli",)
    elif identity.paradigm == "sent-nli":
        names = SENT_NLI_TEMPLATES[identity.window_context]
    else:
        names = ("qg", "qa")
    if identity.rates:
        names = tuple(f"{name}_rating" for name in names)
    if not reasoning:
        return names
    reasoned = tuple(f"{name}_reasoning" for name in names)
    return (*reasoned, "qg") if identity.paradigm == "qg-qa" else reasoned


def _for_run(template: PromptTemplate, identity: Identity, demonstrations: Prompt) -> PromptTemplate:
    parses = identity.label_mode == "parse" and template.consistent is not None
    return msgspec.structs.replace(template, parses=parses, demonstrations=demonstrations)
