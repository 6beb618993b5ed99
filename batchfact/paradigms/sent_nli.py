"""Sent-NLI (Xu 2024, section 3.2, eq. 2): each window of summary sentences is judged apart.

    y_i = any over j of LLM(D_i, W_ij)

The fold does the `any`. Windows may be shown with context (not in the paper): what comes before them, or the summary.
"""

from __future__ import annotations

from collections.abc import Mapping

from batchfact.config import WindowContext
from batchfact.paradigms.judging import judge
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
    sentences_per_window: int,
    window_context: WindowContext = "none",
) -> Paradigm:
    """One finding for each window; a window that has no context (the first, the only one) gets the plain template."""

    def judge_window(pair: Pair, number: int, window: Window) -> Program:
        about = Finding(start=window.start, end=window.end)
        fields = {"document": pair.document, "window": window.text_of(pair.summary)}
        context = context_of(pair.summary, window, window_context)
        if context is None or with_context is None:
            return (yield from judge(plain, f"w{number}", about, **fields))
        return (yield from judge(with_context, f"w{number}", about, context=context, **fields))

    def program(pair: Pair) -> Program:
        cut = windows(pair.summary, sentences_per_window=sentences_per_window)
        return (yield together(judge_window(pair, number, window) for number, window in enumerate(cut)))

    return program
