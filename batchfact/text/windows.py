"""Windows of a summary: runs of whole sentences, and the context that a window may be shown with.

A summary flows in; windows with their character offsets flow out. Prompts and models are unknown here.
"""

from __future__ import annotations

from batchfact.config import WindowContext
from batchfact.records import Window
from batchfact.text.sentences import sentences


def windows(summary: str, *, sentences_per_window: int) -> tuple[Window, ...]:
    """The summary's sentences in runs of `sentences_per_window`, each sentence in one window; the last may be shorter.

    A window reaches from its first sentence's start to its last one's end. A blank summary has none.

    Source: Xu 2024, section 3.2: a window "consists of a few summary sentences".
    """
    spans = sentences(summary)
    return tuple(
        Window(run[0].start, run[-1].end)
        for run in (spans[first : first + sentences_per_window] for first in range(0, len(spans), sentences_per_window))
    )


def context_of(summary: str, window: Window, kind: WindowContext) -> str | None:
    """What is shown with a window as context: what precedes it, or the whole summary; None where that adds nothing."""
    if kind == "none":
        return None
    context = (summary[: window.start] if kind == "preceding" else summary).strip()
    return None if context in ("", window.text_of(summary).strip()) else context
