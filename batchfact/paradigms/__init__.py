"""The paradigms: programs that turn a pair into findings, and the fold that turns findings into a verdict."""

from __future__ import annotations

from batchfact.config import Identity
from batchfact.paradigms.contexts import Contexts
from batchfact.paradigms.program import Paradigm
from batchfact.paradigms.qg_qa import make_qg_qa
from batchfact.paradigms.sent_nli import TEMPLATES as SENT_NLI_TEMPLATES
from batchfact.paradigms.sent_nli import make_sent_nli
from batchfact.paradigms.summ_nli import make_summ_nli
from batchfact.prompts.loader import PromptBook

__all__ = ["METHOD_VERSION", "make_paradigm", "template_names"]

METHOD_VERSION = 1
"""Raise it with every change of code or data that can change answers: sentence splitting, claim rules, schemas, limits.

It is part of a run's identity, so that one output never mixes answers of two versions."""


def make_paradigm(
    identity: Identity, prompts: PromptBook, *, reasoning: bool, contexts: Contexts | None = None
) -> Paradigm:
    """The paradigm that `identity` names, over `prompts`; `reasoning` asks for a thought process before each label.

    `contexts` say what is shown of documents; by default all of it.
    """
    templates = [prompts[name] for name in template_names(identity, reasoning=reasoning)]
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
    return make_qg_qa(*templates, contexts=contexts, sentences_per_window=identity.window_sentences)


def template_names(identity: Identity, *, reasoning: bool) -> tuple[str, ...]:
    """The prompt templates that a run of `identity` uses, in the order in which its paradigm takes them."""
    if identity.paradigm == "summ-nli":
        names: tuple[str, ...] = ("summ_nli",)
    elif identity.paradigm == "sent-nli":
        names = SENT_NLI_TEMPLATES[identity.window_context]
    else:
        names = ("qg", "qa")
    return tuple(f"{name}_reasoning" for name in names) if reasoning else names
