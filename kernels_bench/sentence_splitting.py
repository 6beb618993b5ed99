"""Sentences of a text: ours, with exact offsets in bounded pieces, against NLTK's Punkt on the whole text."""

from __future__ import annotations

from collections.abc import Iterator

from batchfact.text.punkt import punkt
from batchfact.text.sentences import sentences
from kernels_bench.kernel import Arm, Cost, Kernel, Place, same
from kernels_bench.texts import sentences_of_prose

SHAPES = {"tiny": (6,), "full": (20, 1000)}


def kernels(place: Place) -> Iterator[Kernel]:
    """Prose on which both must agree: without quotes, lists and abbreviations, where ours is meant to differ."""
    for count in SHAPES[place.size]:
        yield compare(" ".join(sentences_of_prose(count)))


def compare(text: str) -> Kernel:
    cost = Cost(bytes=len(text.encode()))
    return Kernel(
        shape=f"{len(text):,} characters",
        reference=Arm("Punkt", lambda: list(punkt(lower_case=False).span_tokenize(text)), cost),
        candidates=(
            Arm("batchfact.text.sentences", lambda: [(each.start, each.end) for each in sentences(text)], cost),
        ),
        check=same,
    )
