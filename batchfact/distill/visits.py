"""A document's visit in training: some of its summaries, over the document or a cut of it, as one tree.

Examples flow in, grouped by document; trees with their groups flow out. What is shown at a visit is drawn from a seed,
so that a run that goes on sees what it would have seen.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from batchfact.assembly import Assembler, GroupAssembler
from batchfact.distill.example_files import Placed
from batchfact.distill.examples import Kind
from batchfact.distill.excerpts import excerpt
from batchfact.distill.losses import Group, Rule
from batchfact.distill.recipe import Trees
from batchfact.distill.tree import Branch, num_tokens
from batchfact.engines.base import LabelIds
from batchfact.errors import UsageError
from batchfact.records import Data, Label, Segment, Template

LEAST_WORDS = 16
"""A document is never cut to less than about this, however long a statement is."""
RULES: dict[Kind, Rule] = {"gold": "each", "synthetic": "each", "teacher": "each", "implied": "all", "any": "any"}


class Shown(Struct, frozen=True, kw_only=True):
    """One statement as it may be shown: what stands behind the document in its prompt, and what the model shall write.

    `words` is the statement alone.
    """

    tail: tuple[Segment, ...]
    completion: str
    words: str


class Summary(Struct, frozen=True, kw_only=True):
    """A summary in all the ways in which it may be shown: each a set of statements that a rule holds for.

    `label` is the summary's own. A way of one statement comes from the unit `summary` or from a single window.
    """

    group: str
    data_set: str
    label: Label
    weight: float
    is_synthetic: bool
    whole: tuple[Shown, ...] = ()
    windows: tuple[Shown, ...] = ()
    windows_rule: Rule = "each"


_Piece = tuple[Placed, Shown]
Way = tuple[Summary, tuple[Shown, ...], Rule]
"""A summary, the statements that it is shown as, and how its label holds for them."""


class Document(Struct, frozen=True, kw_only=True):
    """A document's summaries, whose prompts share `head` (what stands before the document) and the document.

    `labels` are the label words, the consistent one first.
    """

    head: tuple[Segment, ...]
    text: str
    labels: tuple[str, str]
    summaries: tuple[Summary, ...]

    @property
    def is_synthetic(self) -> bool:
        return all(summary.is_synthetic for summary in self.summaries)

    def parts(self, most: int | None, rng: random.Random | None = None) -> list[Document]:
        """The document as often as all its labelled summaries need, at most `most` each time; `rng` mixes them.

        Each part has all synthetic ones, of which a visit draws some.
        """
        labelled = [each for each in self.summaries if not each.is_synthetic]
        if most is None or len(labelled) <= most:
            return [self]
        if rng is not None:
            rng.shuffle(labelled)
        synthetic = [each for each in self.summaries if each.is_synthetic]
        return [
            msgspec.structs.replace(self, summaries=(*labelled[first : first + most], *synthetic))
            for first in range(0, len(labelled), most)
        ]


class Visit(Struct, frozen=True, kw_only=True):
    """One tree's branches, the groups they are in, and the summaries that the groups stand for.

    `label_ids` are the ids of each label's spellings behind the cue, as a run sums them up, the consistent one first.
    """

    branches: tuple[Branch, ...]
    groups: tuple[Group, ...]
    summaries: tuple[Summary, ...]
    label_ids: LabelIds


def gather(placed: Iterable[Placed]) -> list[Document]:
    """Documents in the order in which they come, each with the summaries whose prompts begin alike.

    Examples with reasoning are summaries of their own: they are shown beside the label alone (Xu 2024, section 4.1).
    """
    texts: dict[str, str] = {}
    by_head: dict[tuple[tuple[Segment, ...], str, tuple[str, str]], dict[tuple[str, bool], list[_Piece]]] = {}
    for each in placed:
        head, text, tail = _segments(each)
        text = texts.setdefault(text, text)
        groups = by_head.setdefault((head, text, each.example.labels), defaultdict(list))
        window = next(field for field in each.example.fields if field.name == "window")
        shown = Shown(
            tail=tail, completion=each.example.completion, words=each.example.prompt[window.start : window.end]
        )
        groups[each.example.group, each.example.source is not None].append((each, shown))
    return [
        Document(head=head, text=text, labels=labels, summaries=tuple(map(_summary, groups.values())))
        for (head, text, labels), groups in by_head.items()
    ]


def _segments(placed: Placed) -> tuple[tuple[Segment, ...], str, tuple[Segment, ...]]:
    """What stands before the document, the document, and what stands behind it."""
    prompt, end = placed.example.prompt, 0
    segments: list[Segment] = []
    head: tuple[Segment, ...] = ()
    text = ""
    for field in placed.example.fields:
        if field.start > end:
            segments.append(Template(prompt[end : field.start]))
        if field.name == "document":
            head, text, segments = tuple(segments), prompt[field.start : field.end], []
        else:
            segments.append(Data(prompt[field.start : field.end]))
        end = field.end
    if end < len(prompt):
        segments.append(Template(prompt[end:]))
    return head, text, tuple(segments)


def _summary(pieces: Sequence[_Piece]) -> Summary:
    windows = [(each, shown) for each, shown in pieces if each.example.unit == "window"]
    first = pieces[0][0]
    kinds = {RULES[each.example.kind] for each, _ in windows}
    return Summary(
        group=first.example.group,
        data_set=first.example.data_set,
        label="inconsistent" if any(each.example.label == "inconsistent" for each, _ in pieces) else "consistent",
        weight=first.weight,
        is_synthetic=first.example.kind == "synthetic",
        whole=tuple(shown for each, shown in pieces if each.example.unit == "summary"),
        windows=tuple(shown for _, shown in windows),
        windows_rule=kinds.pop() if len(kinds) == 1 else "each",
    )


class Visits:
    """Makes trees of documents, for one model's tokens.

    Args:
        assembler: of the base model's tokenizer, so that ids are those of a run.
    """

    def __init__(self, assembler: Assembler, settings: Trees) -> None:
        self._assembler = assembler
        self.settings = settings

    def train(self, document: Document, rng: random.Random) -> Visit:
        """What is shown of a document at one visit of training: as many summaries as fit, the document cut to let one.

        Raises: UsageError where not even a short excerpt lets a summary fit `max_tokens`.
        """
        settings = self.settings
        drawn = rng.sample(document.summaries, len(document.summaries))
        labelled = [each for each in drawn if not each.is_synthetic][: settings.max_summaries]
        most = settings.max_synthetic if labelled else settings.max_synthetic_alone
        synthetic = [each for each in drawn if each.is_synthetic][:most]
        ways = [(each, *self._way(each, rng)) for each in (*labelled, *synthetic)]
        words = rng.randint(*settings.document_words) if settings.document_words else None
        while not (visit := self._visit(document, ways, words)).groups:
            if words is None or words < LEAST_WORDS:
                raise UsageError(too_long([document.summaries[0].group], settings.max_tokens))
            words //= 2
        return visit

    def test(self, document: Document) -> Visit:
        """All of a document's summaries as they would be scored: by windows where there are any."""
        ways = [
            (each, each.windows or each.whole, each.windows_rule if each.windows else "each")
            for each in document.summaries
        ]
        return self._visit(document, ways, self.settings.test_document_words, is_bounded=False)

    def unfit(self, document: Document) -> list[str]:
        """The summaries that do not fit `max_tokens` beside the whole document, in one of the ways of showing them."""
        assembler = self._assembler.for_group()
        return [
            summary.group
            for summary in document.summaries
            if not all(
                self._fits([branch_of(assembler, document.head, document.text, each) for each in shown])
                for shown, _ in self._ways(summary)
            )
        ]

    def _way(self, summary: Summary, rng: random.Random) -> tuple[tuple[Shown, ...], Rule]:
        """One of the ways in which a summary may be shown."""
        ways = self._ways(summary)
        return ways[0] if rng.random() < self.settings.summary_share else ways[-1]

    def _ways(self, summary: Summary) -> list[tuple[tuple[Shown, ...], Rule]]:
        """The whole summary, then its windows; one of a single window is shown by its window alone.

        Where one of more windows than may be shown is wrong, and nobody knows which, the whole is surer than a part.
        """
        windows = summary.windows[: self.settings.max_windows]
        if len(summary.windows) == 1 or not summary.whole:
            return [(windows, summary.windows_rule)]
        if not windows or (summary.windows_rule == "any" and len(windows) < len(summary.windows)):
            return [(summary.whole, "each")]
        return [(summary.whole, "each"), (windows, summary.windows_rule)]

    def _visit(
        self,
        document: Document,
        ways: Sequence[Way],
        max_words: int | None,
        *,
        is_bounded: bool = True,
    ) -> Visit:
        text = document.text
        if max_words is not None:
            text = excerpt(text, [each.words for _, shown, _ in ways for each in shown], max_words)
        assembler = self._assembler.for_group()
        branches: list[Branch] = []
        groups: list[Group] = []
        kept: list[Summary] = []
        for summary, shown, rule in ways:
            grown = [branch_of(assembler, document.head, text, each) for each in shown]
            if is_bounded and not self._fits([*branches, *grown]):
                continue
            numbers = tuple(range(len(branches), len(branches) + len(grown)))
            branches += grown
            groups.append(Group(branches=numbers, rule=rule, weight=summary.weight))
            kept.append(summary)
        return Visit(
            branches=tuple(branches),
            groups=tuple(groups),
            summaries=tuple(kept),
            label_ids=self._assembler.label_ids((cue_of(document),), document.labels),
        )

    def _fits(self, branches: Sequence[Branch]) -> bool:
        return num_tokens(branches) <= self.settings.max_tokens


def cue_of(document: Document) -> Segment:
    """What stands before the label: the prompt's own cue, or the end of a reasoning with the cue behind it."""
    first = document.summaries[0]
    shown = (first.whole or first.windows)[0]
    word = next(label for label in document.labels if shown.completion.endswith(label))
    reasoning = shown.completion.removesuffix(word)
    return Data(reasoning) if reasoning else shown.tail[-1]


def too_long(groups: Sequence[str], max_tokens: int) -> str:
    """What to say of summaries that fit no tree."""
    return (
        f"{len(groups):,} summaries do not fit trees.max_tokens ({max_tokens:,}) with their document, {groups[0]} "
        "first; raise that, or cut documents with trees.document_words"
    )


def branch_of(assembler: GroupAssembler, head: tuple[Segment, ...], text: str, shown: Shown) -> Branch:
    """The ids of a prompt as a run assembles them, and those of its completion behind it.

    Raises: UsageError where the tokenizer joins the prompt's end with the completion's beginning.
    """
    prompt = (*head, Data(text), *shown.tail)
    ids = assembler.assemble(prompt)
    whole = assembler.assemble((*prompt, Data(shown.completion)))
    if whole[: len(ids)] != ids or len(whole) == len(ids):
        raise UsageError(
            f"the tokenizer joins the prompt's end with {shown.completion[:20]!r}; use labels that begin with a space"
        )
    return Branch(tuple(ids), tuple(whole[len(ids) :]))
