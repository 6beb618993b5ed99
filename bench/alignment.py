"""Time to align windows with a document's sentences, against calling the rouge-score package sentence by sentence."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rouge_score.rouge_scorer import RougeScorer

from batchfact.config import AlignObjective, Identity
from batchfact.text.rouge import Aligner
from bench.facts import command_line, write_result

SENTENCE_WORDS = 20
REPEATS = 15
JOINER = " qzjoinerzq "
"""Between selected sentences, so that the package makes no bigram across two of them: no target has this word."""

Selection = tuple[int, ...]
ByPackage = Callable[[Sequence[str], Sequence[str], int], list[Selection]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--words", type=int, default=4000)
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--sentences", type=int, default=Identity().align_sentences, help="selected for each window")
    parser.add_argument("--seed", type=int, default=0)


def measure(args: argparse.Namespace) -> None:
    draw = random.Random(args.seed)
    # A Pareto tail gives word frequencies like those of prose: a few words are in nearly every sentence.
    words = [f"w{min(int(draw.paretovariate(0.7)), 50_000)}" for _ in range(args.words)]
    sentences = [" ".join(words[at : at + SENTENCE_WORDS]) for at in range(0, len(words), SENTENCE_WORDS)]
    targets = [" ".join(draw.sample(words, SENTENCE_WORDS)) for _ in range(args.windows)]
    result: dict[str, Any] = {
        "command": command_line("bench", sys.argv[1:]),
        "document_words": len(words),
        "document_sentences": len(sentences),
        "windows": len(targets),
        "sentences_a_window": args.sentences,
        "measured": "seconds for all windows; ours counts the document's n-grams within them; best of repeats",
    }
    objectives: tuple[tuple[AlignObjective, ByPackage], ...] = (
        ("greedy", greedy_by_package),
        ("independent", independent_by_package),
    )
    for objective, by_package in objectives:
        seconds, ours = best_of(REPEATS, lambda: align(sentences, targets, objective, args.sentences))  # noqa: B023
        package_seconds, theirs = best_of(1, lambda: by_package(sentences, targets, args.sentences))  # noqa: B023
        result[objective] = {
            "seconds": round(seconds, 5),
            "rouge_score_seconds": round(package_seconds, 3),
            "times_faster": round(package_seconds / seconds, 1),
            "same_selection": ours == theirs,
        }
        print(objective, result[objective], flush=True)
    write_result("alignment", result)


def align(sentences: Sequence[str], targets: Sequence[str], objective: AlignObjective, count: int) -> list[Selection]:
    aligner = Aligner(sentences)
    return [aligner.select(target, objective=objective, max_sentences=count) for target in targets]


def independent_by_package(sentences: Sequence[str], targets: Sequence[str], count: int) -> list[Selection]:
    found = []
    for target in targets:
        recalls = [recall(target, sentence) for sentence in sentences]
        found.append(tuple(sorted(range(len(sentences)), key=lambda each: -recalls[each])[:count]))
    return found


def greedy_by_package(sentences: Sequence[str], targets: Sequence[str], count: int) -> list[Selection]:
    found = []
    for target in targets:
        taken: list[int] = []
        while len(taken) < min(count, len(sentences)):
            before = JOINER.join(sentences[each] for each in taken)
            recalls = [
                recall(target, before + JOINER + sentence) if place not in taken else -1.0
                for place, sentence in enumerate(sentences)
            ]
            taken.append(recalls.index(max(recalls)))
        found.append(tuple(taken))
    return found


SCORER = RougeScorer(["rouge1", "rouge2"])


def recall(target: str, selected: str) -> float:
    scores = SCORER.score(target, selected)
    return float(scores["rouge1"].recall + scores["rouge2"].recall)


def best_of(repeats: int, work: Callable[[], list[Selection]]) -> tuple[float, list[Selection]]:
    best, found = float("inf"), list[Selection]()
    for _ in range(repeats):
        started = time.perf_counter()
        found = work()
        best = min(best, time.perf_counter() - started)
    return best, found
