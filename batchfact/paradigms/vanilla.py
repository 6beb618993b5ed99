"""Vanilla prompting (Chen 2023, section 2.1, Table 1): one question about the whole summary, called a statement.

y_i = LLM(D_i, instruction, S_i)
"""

from __future__ import annotations

from batchfact.paradigms.contexts import Contexts, judge_document
from batchfact.paradigms.program import Paradigm, Program
from batchfact.prompts.loader import PromptTemplate
from batchfact.records import Finding, Pair


def make_vanilla(template: PromptTemplate, *, contexts: Contexts) -> Paradigm:
    """One finding for the whole summary."""

    def program(pair: Pair) -> Program:
        about = Finding(start=0, end=len(pair.summary))
        document = contexts.of(pair.document)
        return (yield from judge_document(document, template, "w0", about, target=pair.summary, window=pair.summary))

    return program
