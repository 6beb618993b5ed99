"""A document cut to a number of words, with the sentences nearest to several statements.

A document and statements flow in, a shorter document flows out. It is for training, where short contexts are cheap and
cuts that differ from visit to visit teach a model not to count on any one sentence.
"""

from __future__ import annotations

from collections.abc import Sequence

from batchfact.text.chunks import tiles
from batchfact.text.rouge import Aligner

SENTENCES_A_STATEMENT = 6


def excerpt(document: str, statements: Sequence[str], max_words: int) -> str:
    """The document where it has at most `max_words`; else whole sentences of it, in order, within that many words.

    Each statement's nearest sentence comes first, then each one's second, up to the sixth; what is left is filled from
    the document's beginning. A single sentence that is longer than all of it is kept whole.
    """
    if len(document.split()) <= max_words:
        return document
    sentences = [document[tile.start : tile.end] for tile in tiles(document)]
    sizes = [len(sentence.split()) for sentence in sentences]
    aligner = Aligner(sentences)
    nearest = [
        aligner.select(statement, objective="greedy", max_sentences=SENTENCES_A_STATEMENT) for statement in statements
    ]
    by_rank = [ranked[rank] for rank in range(SENTENCES_A_STATEMENT) for ranked in nearest if rank < len(ranked)]
    taken: set[int] = set()
    words = 0
    for number in (*by_rank, *range(len(sentences))):
        if number not in taken and (not taken or words + sizes[number] <= max_words):
            taken.add(number)
            words += sizes[number]
    return "".join(sentences[number] for number in sorted(taken)).strip()
