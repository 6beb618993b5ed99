"""Few-shot examples: which of the labelled pairs are shown, in which order, and as what text (Chen 2023, section 3.2).

Labelled pairs and a seed flow in; one prompt prefix flows out, the same for every pair of a run. It knows no file, and
not which documents are scored: whoever calls it leaves those out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

import msgspec
from msgspec import Struct

from batchfact.errors import UsageError
from batchfact.paradigms.program import Paradigm, Program
from batchfact.paradigms.sbs import numbered, numbered_answers
from batchfact.prompts.loader import PromptTemplate
from batchfact.records import Data, Label, Pair, Prompt, Template
from batchfact.text.windows import windows


class Demonstration(Struct, frozen=True, kw_only=True):
    """A labelled pair. `reasoning` is the evidence for cot, `sentence_labels` one label a sentence for sbs."""

    document: str
    summary: str
    label: Label
    reasoning: str | None = None
    sentence_labels: tuple[Label, ...] | None = None


def draw(candidates: Sequence[Demonstration], num_shots: int, *, seed: int) -> tuple[Demonstration, ...]:
    """`num_shots` of the candidates, half of each label, in an order that the seed decides too.

    With an odd number the seed decides which label has one more. Neither the candidates' order nor one that is left out
    changes the choice of the others: each has its place, a hash of the seed and its text. An equal pair counts once.

    Raises: UsageError where a label has too few candidates.
    """
    pools: dict[Label, list[Demonstration]] = {"consistent": [], "inconsistent": []}
    for each in sorted(set(candidates), key=lambda each: _place(each, f"draw {seed}")):
        pools[each.label].append(each)
    first: Label = "consistent" if _hash(f"first {seed}")[0] % 2 else "inconsistent"
    drawn: list[Demonstration] = []
    for label, pool in pools.items():
        wanted = num_shots // 2 + (num_shots % 2 if label == first else 0)
        if not pool:
            raise UsageError(
                f"--shots {num_shots} needs demonstrations of both labels, none that can be used is {label}"
            )
        if len(pool) < wanted:
            raise UsageError(
                f"--shots {num_shots} needs {wanted} demonstrations that are {label}, there are {len(pool)} that can "
                "be used; take fewer shots or add demonstrations"
            )
        drawn += pool[:wanted]
    return tuple(sorted(drawn, key=lambda each: _place(each, f"order {seed}")))


def render(template: PromptTemplate, drawn: Sequence[Demonstration], *, sentences_per_window: int) -> Prompt:
    """The demonstrations as the prefix of every prompt; texts of the user's stay data.

    Args:
        template: of the paradigm; a demonstration holds `reasoning` for cot and `sentence_labels` for sbs, and neither
            for vanilla.
    """
    return tuple(segment for each in drawn for segment in _render_one(template, each, sentences_per_window))


def _render_one(template: PromptTemplate, each: Demonstration, sentences_per_window: int) -> Prompt:
    words: dict[Label, str] = {"consistent": template.labels[0], "inconsistent": template.labels[1]}
    answer: Prompt = (Template(words[each.label]),)
    statement = each.summary
    if each.sentence_labels is not None:
        cut = windows(each.summary, sentences_per_window=sentences_per_window)
        statement = numbered([window.text_of(each.summary) for window in cut])
        labels = labels_of_windows(each.sentence_labels, sentences_per_window)
        answer = (Template(numbered_answers([words[label] for label in labels])),)
    elif template.answer_cue is not None and each.reasoning is not None:
        answer = (Data(f" {each.reasoning.strip()}"), template.answer_cue, *answer)
    return template.demonstrate(answer, document=each.document, window=statement)


def labels_of_windows(sentence_labels: Sequence[Label], sentences_per_window: int) -> tuple[Label, ...]:
    """A window is consistent if all its sentences are."""
    runs = [
        sentence_labels[at : at + sentences_per_window] for at in range(0, len(sentence_labels), sentences_per_window)
    ]
    return tuple("inconsistent" if "inconsistent" in run else "consistent" for run in runs)


def digest(prompt: Prompt) -> str:
    """What tells one prefix from another: kinds and texts of its segments."""
    texts = [(type(each).__name__, each.text) for each in prompt if isinstance(each, Template | Data)]
    return hashlib.sha256(msgspec.json.encode(texts)).hexdigest()


def held_out(paradigm: Paradigm, documents: Collection[str]) -> Paradigm:
    """The paradigm, which refuses a pair on a document whose answer the prompt already shows.

    A run leaves such demonstrations out before it draws; a stream in memory cannot know what is to come.
    """
    shown = frozenset(documents)

    def program(pair: Pair) -> Program:
        if pair.document in shown:
            raise UsageError(
                f"the document of row {pair.row} is one of the demonstrations; leave it out of --demonstrations"
            )
        return paradigm(pair)

    return program


def _place(each: Demonstration, salt: str) -> bytes:
    return _hash(f"{salt}\0{each.label}\0{each.document}\0{each.summary}")


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
