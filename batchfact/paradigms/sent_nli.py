"""Sent-NLI (Xu 2024, section 3.2, eq. 2): each window of summary sentences is judged apart.

    y_i = any over j of LLM(D_i, W_ij)

The fold does the `any`. Windows may be shown with context (not in the paper): what comes before them, or the summary.
"""

from __future__ import annotations

from collections.abc import Mapping

from batchfact.config import WindowContext
from batchfact.paradigms.contexts import Contexts, DocumentContext, judge_document
from batchfact.paradigms.program import Paradigm, Program, together
from batchfact.prompts.loader import PromptTemplate
from batchfact.records import Finding, Pair, Window
from batchfact.text.windows import context_of, windows

TEMPLATES: Mapping[WindowContext, tuple[str, ...]] = {
    "none": ("sent_nli",),
    "preceding": ("sent_nli", "sent_nli_preceding"),
    "summary": ("sent_nli", "sent_nli_summary"),
}


def make_sent_nli(
    plain: PromptTemplate,
    with_context: PromptTemplate | None = None,
    *,
    contexts: Contexts,
    sentences_per_window: int,
    window_context: WindowContext = "none",
) -> Paradigm:
    """One finding for each window; a window that has no context (the first, the only one) gets the plain template."""

    def judge_window(pair: Pair, document: DocumentContext, number: int, window: Window) -> Program:
        key, about, text = f"w{number}", Finding(start=window.start, end=window.end), window.text_of(pair.summary)
        context = context_of(pair.summary, window, window_context)
        template, fields = plain, {"window": text}
        if context is not None and with_context is not None:
            template, fields = with_context, {"window": text, "context": context}
        return (yield from judge_document(document, template, key, about, target=text, **fields))

    def program(pair: Pair) -> Program:
        cut = windows(pair.summary, sentences_per_window=sentences_per_window)
        document = contexts.of(pair.document)
        return (yield together(judge_window(pair, document, number, window) for number, window in enumerate(cut)))

    return program
