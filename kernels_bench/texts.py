"""Made-up prose for kernels on text: words as frequent as in real text, whole sentences, the same for a seed."""

from __future__ import annotations

import random

SENTENCE_WORDS = 18
SYLLABLES = ("ba", "den", "fi", "gor", "hal", "ken", "lo", "mur", "ne", "pra", "ri", "sto", "ta", "ver", "win", "zu")


def sentences_of_prose(count: int, seed: int = 0) -> list[str]:
    """`count` sentences that end in a full stop; a Pareto tail makes a few words common and most of them rare."""
    draw = random.Random(seed)
    return [_sentence(draw) for _ in range(count)]


def _sentence(draw: random.Random) -> str:
    words = [_word(min(int(draw.paretovariate(0.7)), 50_000)) for _ in range(SENTENCE_WORDS)]
    return " ".join(words).capitalize() + "."


def _word(rank: int) -> str:
    """A word of its own for each rank; frequent ones are short. No abbreviation has such a form."""
    syllables = []
    while rank:
        rank, place = divmod(rank, len(SYLLABLES))
        syllables.append(SYLLABLES[place])
    return "".join(syllables) + "a"
