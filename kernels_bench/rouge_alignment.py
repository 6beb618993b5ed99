"""Which sentences of a document are nearest to a window: our counts of n-grams against the rouge-score package."""

from __future__ import annotations

from collections.abc import Iterator

from bench.alignment import align, greedy_by_package
from kernels_bench.kernel import Arm, Cost, Kernel, Place, same
from kernels_bench.texts import sentences_of_prose

# (document sentences, windows, sentences selected for each)
SHAPES = {"tiny": (12, 2, 3), "full": (80, 4, 5)}


def kernels(place: Place) -> Iterator[Kernel]:
    num_sentences, num_windows, count = SHAPES[place.size]
    document = sentences_of_prose(num_sentences)
    windows = sentences_of_prose(num_windows, seed=1)
    cost = Cost(bytes=sum(map(len, (*document, *windows))))
    yield Kernel(
        shape=f"{num_windows} windows, {num_sentences} sentences, {count} taken",
        reference=Arm("rouge-score", lambda: greedy_by_package(document, windows, count), cost),
        candidates=(Arm("batchfact.text.rouge", lambda: align(document, windows, "greedy", count), cost),),
        check=same,
    )
