"""Which sentences of a document say most of what a target text says, by their recall of its ROUGE-1 and ROUGE-2.

A document's sentences flow in once and are counted once; target texts flow in, numbers of sentences flow out. Tokens of
models are unknown here: what a sentence costs is the caller's number.

Recall of n-grams is what the rouge-score package computes: each n-gram of the target counts as often as it is in the
selected sentences too, over the number of the target's n-grams. The target's bigrams are those of its whole text.
Bigrams of selected sentences are counted within each sentence and added up, so that two sentences make none between
them: their recall is the package's for the sentences joined by a word that the target does not have.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchfact.config import AlignObjective

Integers = NDArray[np.int64]

WORDS_WITHOUT_SPACES = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF)),  # Thai and Lao, Burmese, Khmer
    *((0x3005, 0x3007), (0x3040, 0x30FF), (0x31F0, 0x31FF)),  # ideographic marks, Japanese syllables
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF)),  # Chinese characters
)
"""First and last code point of scripts whose words are not set apart: there each character is a word."""


class Characters(dict[int, str]):
    """What becomes of each code point, looked up at its first use: kept, set apart, left out, or made a space."""

    def __missing__(self, code: int) -> str:
        made = self[code] = self.of(chr(code))
        return made

    @staticmethod
    def of(character: str) -> str:
        category = unicodedata.category(character)
        if category[0] in "LNM":
            is_word = any(first <= ord(character) <= last for first, last in WORDS_WITHOUT_SPACES)
            return f" {character} " if is_word else character
        # Marks of direction, joiners and soft hyphens stand inside words; the zero-width space is a space.
        return "" if category == "Cf" and character != "\u200b" else " "


CHARACTERS = Characters()


def words(text: str) -> list[str]:
    """The words that ROUGE compares: no case, no punctuation; a character each in scripts that do not set words apart.

    On ASCII text they are those of rouge-score's default tokenizer without stemming. Elsewhere that tokenizer finds
    nothing; here letters, digits and their combining marks of every script make up words.
    """
    return unicodedata.normalize("NFKC", text).casefold().translate(CHARACTERS).split()


class Aligner:
    """Selects among a document's sentences for any number of targets; time and memory are linear in the document."""

    def __init__(self, sentences: Sequence[str]) -> None:
        self.num_sentences = len(sentences)
        spoken = [words(sentence) for sentence in sentences]
        self._words: dict[str, int] = {}
        ids = self._ids(chain.from_iterable(spoken))
        places = np.repeat(np.arange(len(spoken)), [len(each) for each in spoken])
        within = places[1:] == places[:-1]
        pairs = (ids[:-1] * len(self._words) + ids[1:])[within]
        self._pairs, pair_ids = np.unique(pairs, return_inverse=True)
        grams = np.concatenate([ids, len(self._words) + pair_ids])
        keys = grams * max(self.num_sentences, 1) + np.concatenate([places, places[1:][within]])
        # One entry for each n-gram and sentence, sorted by n-gram, so that those of one n-gram are neighbours.
        entries, self._counts = np.unique(keys, return_counts=True)
        found, self._sentences = np.divmod(entries, max(self.num_sentences, 1))
        self._starts = np.searchsorted(found, np.arange(len(self._words) + len(self._pairs) + 1))

    def select(
        self,
        target: str,
        *,
        objective: AlignObjective,
        max_sentences: int | None = None,
        costs: Integers | None = None,
        budget: int = 0,
    ) -> tuple[int, ...]:
        """Numbers of the sentences that are taken for `target`, best first.

        `greedy` takes, each time, the sentence that adds most to the sum of ROUGE-1 and ROUGE-2 recall of those taken;
        `independent` ranks each sentence by its own recall. Ties go by document order, those that add nothing
        included. A sentence that costs more than what is left is passed over.

        Args:
            max_sentences: take no more than so many; None for any number.
            costs: of each sentence, with `budget` for their sum; None where they cost nothing.
        Source: Xu 2024, appendix B; ROUGE as in rouge-score 0.1.2.
        """
        if costs is None:
            costs = np.zeros(self.num_sentences, dtype=np.int64)
        purse = _Purse(self.num_sentences if max_sentences is None else max_sentences, costs, budget)
        hits = _Hits(self, target)
        take = self._take_greedily if objective == "greedy" else self._take_ranked
        take(hits, purse)
        return tuple(purse.taken)

    def _take_greedily(self, hits: _Hits, purse: _Purse) -> None:
        is_open = np.ones(self.num_sentences, dtype=bool)
        while purse.is_open and is_open.any():
            gains = np.where(is_open & purse.affordable, hits.gains(), 0)
            best = int(gains.argmax()) if len(gains) else 0
            if gains[best] <= 0:
                break
            is_open[best] = False
            purse.take(best)
            hits.cover(best)
        for rest in np.flatnonzero(is_open):
            purse.take(int(rest))

    def _take_ranked(self, hits: _Hits, purse: _Purse) -> None:
        for number in np.argsort(-hits.gains(), kind="stable"):
            purse.take(int(number))

    def entries_of(self, grams: Integers) -> tuple[Integers, Integers, Integers]:
        """For each pair of one of `grams` and a sentence that has it: the n-gram's place, the sentence, the count."""
        first, sizes = self._starts[grams], self._starts[grams + 1] - self._starts[grams]
        slots = np.repeat(np.arange(len(grams)), sizes)
        within = np.arange(len(slots)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        entries = np.repeat(first, sizes) + within
        return slots, self._sentences[entries], self._counts[entries]

    def grams_of(self, target: Sequence[str]) -> Iterator[tuple[int, int, bool]]:
        """The target's n-grams that the document has: number, count in the target, and whether it is a bigram."""
        known = Counter(self._words.get(word, -1) for word in target)
        yield from ((word, count, False) for word, count in known.items() if word >= 0)
        size = len(self._words)
        pairs = Counter(
            self._words[left] * size + self._words[right]
            for left, right in pairwise(target)
            if left in self._words and right in self._words
        )
        places = np.searchsorted(self._pairs, list(pairs))
        for pair, place in zip(pairs, places.tolist(), strict=True):
            if place < len(self._pairs) and self._pairs[place] == pair:
                yield size + place, pairs[pair], True

    def _ids(self, spoken: Iterator[str]) -> Integers:
        known = self._words
        return np.fromiter((known.setdefault(word, len(known)) for word in spoken), dtype=np.int64)


class _Hits:
    """What the sentences have of one target's n-grams, and how much of each is not yet covered.

    Recalls are kept as whole numbers: a unigram is worth the number of the target's bigrams and a bigram that of its
    unigrams, which is the sum of both recalls times both numbers. So equal recalls are equal numbers.
    """

    def __init__(self, aligner: Aligner, target: str) -> None:
        spoken = words(target)
        grams = list(aligner.grams_of(spoken))
        worth = max(len(spoken) - 1, 1), max(len(spoken), 1)
        self._num_sentences = aligner.num_sentences
        self._open = np.array([count for _, count, _ in grams], dtype=np.int64)
        self._worth = np.array([worth[is_pair] for _, _, is_pair in grams], dtype=np.int64)
        numbers = np.array([gram for gram, _, _ in grams], dtype=np.int64)
        self._slots, self._sentences, self._counts = aligner.entries_of(numbers)

    def gains(self) -> NDArray[Any]:
        """What each sentence would add."""
        added = np.minimum(self._counts, self._open[self._slots]) * self._worth[self._slots]
        return np.bincount(self._sentences, weights=added, minlength=self._num_sentences)

    def cover(self, sentence: int) -> None:
        mine = self._sentences == sentence
        slots = self._slots[mine]
        self._open[slots] -= np.minimum(self._counts[mine], self._open[slots])


class _Purse:
    """Sentences taken, within their number and their cost."""

    def __init__(self, max_sentences: int, costs: Integers, budget: int) -> None:
        self.taken: list[int] = []
        self._max_sentences = max_sentences
        self._costs = costs
        self._left = budget

    @property
    def is_open(self) -> bool:
        return len(self.taken) < self._max_sentences

    @property
    def affordable(self) -> NDArray[np.bool_]:
        return self._costs <= self._left

    def take(self, number: int) -> None:
        """Take a sentence, or pass it over where it does not fit."""
        cost = int(self._costs[number])
        if self.is_open and cost <= self._left:
            self.taken.append(number)
            self._left -= cost
