"""Which prompt tokens a prefix cache leaves to compute, and how many positions each of them attends to.

    prompt = lead (instructions) | document | own (the window, and what follows it)

All prompts of a document share lead and document, which are computed once; `own` is computed each time.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]


class Computed(Struct, frozen=True):
    """`tokens` to compute; `attended` positions, summed over them; `reread` cached prefix tokens, over all prompts."""

    tokens: float
    attended: float
    reread: float


def count_computed(
    shown: Floats,
    *,
    is_first: Booleans,
    is_apart: Booleans,
    requests_a_pair: float,
    lead: float,
    own: float,
    block: int,
) -> Computed:
    """What is computed of all prompts that hold a document.

    The cache gives whole blocks, so each prompt behind a document's first computes half a block more on average. The
    lead is the same for all documents, so only the first prompt of all computes it. A token attends to all before it
    and to itself.

    Args:
        shown: (pairs,) tokens of the pair's document in one prompt.
        is_first: (pairs,) the first pair of each document.
        is_apart: (pairs,) each prompt has an excerpt of its own, so that nothing but the lead is shared.
        requests_a_pair: prompts with the document, equal ones counted once.
    """
    prefix = lead + shown[~is_apart]
    firsts = shown[is_first & ~is_apart]
    num_shared = requests_a_pair * len(prefix)
    num_hits = max(0.0, num_shared - len(firsts))
    mean_prefix = float(prefix.mean()) if len(prefix) else 0.0
    lost = min(block / 2, mean_prefix)
    excerpts = shown[is_apart]
    once = lead if len(shown) else 0.0
    return Computed(
        tokens=once
        + float(firsts.sum())
        + num_shared * own
        + num_hits * lost
        + requests_a_pair * float((excerpts + own).sum()),
        attended=_span(0.0, once)
        + float(np.sum(_span(lead, firsts)))
        + num_shared * _span(mean_prefix, own)
        + num_hits * lost * mean_prefix
        + requests_a_pair * float(np.sum(_span(lead, excerpts + own))),
        reread=num_hits * (mean_prefix - lost),
    )


Number = TypeVar("Number", float, Floats)


def _span(before: float, tokens: Number) -> Number:
    """Positions that `tokens` attend to with `before` in front of them: (before + 1) + ... + (before + tokens)."""
    return before * tokens + tokens * (tokens + 1) / 2
