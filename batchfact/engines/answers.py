"""From what a model put out to an answer: where text ends, when a model is caught in a loop, sums of probabilities.

What every engine does in the same way, so that engines can be compared. It knows no engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from batchfact.engines.tokenizer import FastTokenizer

MAX_LOOP_TOKENS, MIN_LOOPS = 64, 8
"""A pattern of up to so many tokens that comes so often in a row ends the text: a model caught in a loop."""


def is_looping(ids: Sequence[int]) -> bool:
    """Whether `ids` end in one pattern of at most MAX_LOOP_TOKENS, MIN_LOOPS times in a row."""
    for size in range(1, min(MAX_LOOP_TOKENS, len(ids) // MIN_LOOPS) + 1):
        tail = ids[-size * MIN_LOOPS :]
        if tail[size:] == tail[:-size]:
            return True
    return False


def cut_text(tokenizer: FastTokenizer, ids: Sequence[int], stop: Sequence[str]) -> tuple[str, list[int]]:
    """Text up to the first stop string, and ids that decode to exactly that text, special tokens left out.

    Where a stop string begins inside a token, the part of that token that stays is encoded anew.
    """
    kept = [each for each in ids if each not in tokenizer.special_ids]
    text = tokenizer.decode(kept)
    ends = [at for at in (text.find(each) for each in stop) if at >= 0]
    if not ends:
        return text, kept
    text = text[: min(ends)]
    for size in range(len(kept), -1, -1):
        before = tokenizer.decode(kept[:size])
        if not text.startswith(before):
            continue
        whole = kept[:size] + (tokenizer.encode(text[len(before) :], special=False) if before != text else [])
        if tokenizer.decode(whole) == text:
            return text, whole
    whole = tokenizer.encode(text, special=False)
    return tokenizer.decode(whole), whole


def log_sum_exp(values: Sequence[float]) -> float:
    """Logarithm of the sum of exp(values): the log-probability of any of several disjoint tokens."""
    top = max(values)
    return top if math.isinf(top) else top + math.log(math.fsum(math.exp(value - top) for value in values))
