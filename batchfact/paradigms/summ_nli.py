"""Summ-NLI (Xu 2024, section 3.1, eq. 1): the whole summary is judged at once, y_i = LLM(D_i, S_i)."""

from __future__ import annotations

from batchfact.paradigms.contexts import Contexts, judge_document
from batchfact.paradigms.program import Paradigm, Program
from batchfact.prompts.loader import PromptTemplate
from batchfact.records import Finding, Pair


def make_summ_nli(template: PromptTemplate, *, contexts: Contexts) -> Paradigm:
    """One finding for the whole summary; its key is `w0`, as of a single window."""

    def program(pair: Pair) -> Program:
        about = Finding(start=0, end=len(pair.summary))
        document = contexts.of(pair.document)
        return (yield from judge_document(document, template, "w0", about, target=pair.summary, window=pair.summary))

    return program
