"""Labelled pairs become training examples: a prompt as a run renders it, and the completion that a model shall write.

A labelled pair, its teachers' answers and compiled templates flow in; examples flow out. It touches no file.

Source: Xu 2024, section 4.1. Differs: windows can be examples too, with the labels that annotators, the summary's own
label or a teacher gives them; human reasons count as reasoning. A sentence that stands in a consistent summary of the
document too is not what is wrong with an inconsistent one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Literal

from msgspec import Struct

from batchfact.distill.labelled import Labelled
from batchfact.distill.recipe import Set, Unit
from batchfact.distill.teachers import Answer, Answers
from batchfact.prompts.loader import DEMONSTRATIONS, PromptBook, PromptTemplate, Slot
from batchfact.records import Data, Label, Tokens, Window
from batchfact.text.rouge import words
from batchfact.text.windows import windows

Kind = Literal["gold", "synthetic", "implied", "teacher", "any"]
"""How the label of a statement is known.

`gold`: from its annotators. `synthetic`: by how it was made. `implied`: its summary is consistent. `teacher`: from one
that judged the summary right. `any`: only its summary is known to be inconsistent, so at least one of the windows is.
"""


class Field(Struct, frozen=True):
    """Characters `start` to `end` of a prompt that are the user's text, not the template's."""

    name: str
    start: int
    end: int


class Example(Struct, frozen=True, kw_only=True):
    """One prompt and its completion.

    `labels` are the label words, the consistent one first; the completion ends in one of them. `group` names the
    summary, `window` its window's number, None for all of it. `source` is whose reasoning is learnt, None without.
    """

    prompt: str
    completion: str
    fields: tuple[Field, ...]
    labels: tuple[str, str]
    label: Label
    kind: Kind
    unit: Unit
    data_set: str
    group: str
    window: int | None = None
    source: str | None = None


class Statement(Struct, frozen=True):
    """A text of a summary that is judged, with its label, how that is known, and why it is so in someone's words."""

    text: str
    window: int | None
    label: Label
    kind: Kind
    reason: tuple[str, str] | None = None
    """Whose, and the words."""


def make_examples(
    pair: Labelled,
    entry: Set,
    teachers: Sequence[Answers],
    prompts: PromptBook,
    *,
    reasoning: bool,
    supported: Collection[str] = (),
) -> Iterator[Example]:
    """All examples of one pair, for each unit of its data set: without reasoning, and with it where there is one.

    Args:
        teachers: in order of preference.
        reasoning: the strategy T-w-R; without it (T-wo-R) nobody's reasoning is learnt.
        supported: sentences of the document's consistent summaries, as `plain_sentences` gives them.
    """
    said = [(each, _answers(each, pair)) for each in teachers]
    for unit in entry.units:
        if unit == "summary":
            statements = [_summary_statement(pair, entry, said)]
        else:
            statements = _window_statements(pair, entry, said, supported)
        name = "summ_nli" if unit == "summary" else "sent_nli"
        for statement in statements:
            yield _example(pair, unit, statement, prompts[name], None)
            if reasoning and statement.reason:
                yield _example(pair, unit, statement, prompts[f"{name}_reasoning"], statement.reason)


Judged = tuple[Answers, tuple[Answer | None, Answer | None]]


def _answers(teacher: Answers, pair: Labelled) -> tuple[Answer | None, Answer | None]:
    key = (pair.document, pair.summary)
    return teacher.summ_nli.get(key), teacher.sent_nli.get(key)


def _summary_statement(pair: Labelled, entry: Set, said: Sequence[Judged]) -> Statement:
    """A person's reason, else that of the first teacher that is right, by summ-nli or else by sent-nli."""
    reason = ("human", pair.reason) if pair.reason else None
    for teacher, answers in said:
        right = [each.reasoning for each in answers if each and each.label == pair.label and each.reasoning]
        if reason is None and right:
            reason = (teacher.name, right[0])
    return Statement(pair.summary, None, pair.label, "synthetic" if entry.synthetic else "gold", reason)


def plain_sentences(summary: str) -> list[str]:
    """A summary's sentences without case and punctuation, to find them in another summary."""
    return [_plain(window.text_of(summary)) for window in windows(summary, sentences_per_window=1)]


def _plain(text: str) -> str:
    return " ".join(words(text))


def _window_statements(
    pair: Labelled, entry: Set, said: Sequence[Judged], supported: Collection[str]
) -> list[Statement]:
    """The summary's windows; where one of them is known to be wrong, but not which, those in question."""
    cut = windows(pair.summary, sentences_per_window=1)
    right = [(teacher.name, sent) for teacher, (_, sent) in said if sent and sent.label == pair.label]
    labels, kind = _window_labels(pair, entry, cut, [answer for _, answer in right])
    statements = [
        Statement(window.text_of(pair.summary), number, label, kind, _window_reason(window, label, right))
        for number, (window, label) in enumerate(zip(cut, labels, strict=True))
    ]
    doubtful = [each for each in statements if _plain(each.text) not in supported] if kind == "any" else []
    return doubtful or statements


def _window_labels(
    pair: Labelled, entry: Set, cut: Sequence[Window], right: Sequence[Answer]
) -> tuple[tuple[Label, ...], Kind]:
    given = pair.sentence_labels
    if given and len(given) == len(cut) and (pair.label == "inconsistent") == ("inconsistent" in given):
        return given, "gold"
    if len(cut) == 1:
        return (pair.label,), "synthetic" if entry.synthetic else "gold"
    if pair.label == "consistent":
        return (pair.label,) * len(cut), "implied"
    for answer in right:
        by_place = {(each.start, each.end): each.label for each in answer.said}
        found = [by_place.get((window.start, window.end)) for window in cut]
        known = tuple(label for label in found if label)
        if len(known) == len(cut):
            return known, "teacher"
    return (pair.label,) * len(cut), "any"


def _window_reason(window: Window, label: Label, right: Sequence[tuple[str, Answer]]) -> tuple[str, str] | None:
    """What the first teacher that agrees on the window said of it."""
    for name, answer in right:
        for each in answer.said:
            if (each.start, each.end, each.label) == (window.start, window.end, label) and each.reasoning:
                return name, each.reasoning
    return None


def _example(
    pair: Labelled, unit: Unit, statement: Statement, template: PromptTemplate, reason: tuple[str, str] | None
) -> Example:
    prompt, fields = render(template, document=pair.document, window=statement.text)
    consistent, inconsistent = template.labels
    word = consistent if statement.label == "consistent" else inconsistent
    thought = ""
    if reason is not None:
        assert template.answer_cue is not None, f"prompt template {template.name} asks for no reasoning"
        thought = f" {reason[1]}{template.answer_cue.text}"
    return Example(
        prompt=prompt,
        completion=thought + word,
        fields=fields,
        labels=(consistent, inconsistent),
        label=statement.label,
        kind=statement.kind,
        unit=unit,
        data_set=pair.data_set,
        group=f"{pair.data_set}:{pair.id}",
        window=statement.window,
        source=reason[0] if reason else None,
    )


def render(template: PromptTemplate, *, document: str, window: str) -> tuple[str, tuple[Field, ...]]:
    """A filled template as text, and where the user's texts are in it, by the template's names for them."""
    names = iter([part.field for part in template.parts if isinstance(part, Slot) and part.field != DEMONSTRATIONS])
    text, fields = "", []
    for segment in template.fill(document=document, window=window):
        assert not isinstance(segment, Tokens), "a prompt that nobody answered holds no tokens"
        if isinstance(segment, Data):
            fields.append(Field(next(names), len(text), len(text) + len(segment.text)))
        text += segment.text
    return text, tuple(fields)
