"""Prompt segments to token ids: each document is tokenised once per group, and the pieces are joined.

Segments flow in, ids flow out; nothing here knows what a prompt means. Two promises hold for every prompt. Its ids are
those of its whole text tokenised in one go: segments are cut apart only where a local check shows that joining makes no
difference, and are encoded together elsewhere. And text of the user's never becomes a special token, whatever markers
it holds; where both promises cannot be kept, this second one is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from batchfact.engines.base import LabelIds, LabelSpeller, Tokenizer
from batchfact.errors import UsageError
from batchfact.records import Data, Prompt, Template, Tokens

Mode = Literal["plain", "anchored", "merged"]
"""How segments are joined.

`plain`: as they are. `anchored`: the tokenizer puts a dummy space in front of every text (SentencePiece), so later
segments are encoded behind a known anchor whose ids are dropped. `merged`: whole runs of segments are encoded as one.
"""

Text = Template | Data
Unit = tuple[Text, ...]
"""Neighbouring segments that are encoded as one string."""

Start = Literal["fresh", "behind"]
"""How a unit is encoded: as a text of its own, or as one that stands behind other text."""

Cache = dict[tuple[Unit, Start], list[int]]

Ends = tuple[str, list[int], str, list[int]]
"""The text before a place with its ids, and the text after it with its."""

ANCHORS = ("\n", ".", ":")
MAX_CACHED = 4096
EDGE_CHARS = 64
EDGE_WORDS = 3
FORMS: tuple[tuple[str, Callable[[str], str]], ...] = tuple(
    (space, case) for space in ("", " ") for case in (str, str.capitalize, str.lower, str.upper)
)


class Assembler:
    """Turns prompts into ids for one tokenizer. Safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._joiner = Joiner(tokenizer)

    @property
    def mode(self) -> Mode:
        return self._joiner.mode

    def for_group(self) -> GroupAssembler:
        """An assembler that remembers the user's texts too; drop it when the document group is done."""
        return GroupAssembler(self._joiner)

    def assemble(self, prompt: Prompt) -> list[int]:
        """Ids of one prompt, with exactly one BOS where the model wants one."""
        return self.for_group().assemble(prompt)

    def calibrate(self, samples: Iterable[Prompt]) -> None:
        """Prove on sample prompts that joined ids equal whole-string ids; else fall back to `merged` for good."""
        for sample in samples:
            if self.assemble(sample) != self._joiner.whole(sample):
                self._joiner.mode = "merged"
                return

    def label_ids(self, prompt_before: Prompt, labels: tuple[str, ...]) -> LabelIds:
        """For each label the ids of its single-token spellings right after `prompt_before`, or as its model's tokenizer
        spells them (`LabelSpeller`).

        Spellings are the word with and without a leading space, as given, capitalised, lower and upper case; one counts
        where it is a single token for every label, so that no label gains by having more of them.
        Raises: UsageError where a label has no such token, or shares one with another label.
        """
        spellings = [[self._spell(prompt_before, label, *form) for label in labels] for form in FORMS]
        shared = [ids for ids in spellings if None not in ids] or spellings
        found = tuple(tuple(sorted({each for each in ids if each is not None})) for ids in zip(*shared, strict=True))
        tokenizer = self._joiner.tokenizer
        owner: dict[int, str] = {}
        for label, ids in zip(labels, found, strict=True):
            if not ids:
                pieces = [tokenizer.decode([each]) for each in self._behind(prompt_before, label)]
                raise UsageError(f"label {label!r} is no single token for this model but {pieces}; use another word")
            for each in ids:
                if each in owner:
                    token = tokenizer.decode([each])
                    raise UsageError(f"labels {owner[each]!r} and {label!r} share the token {token!r}")
                owner[each] = label
        return found

    def _spell(self, before: Prompt, label: str, space: str, case: Callable[[str], str]) -> int | None:
        """The one token that a spelling becomes behind the prompt's last text; None where it is not one."""
        word = case(label.strip())
        ids = self._behind(before, space + word)
        # A special token decodes to nothing, so this also refuses one whose text happens to be a label.
        return ids[0] if len(ids) == 1 and self._joiner.tokenizer.decode(ids).strip() == word else None

    def _behind(self, before: Prompt, text: str) -> list[int]:
        """Ids of `text` behind the prompt's last text; none where the two merge."""
        tokenizer, spelled = self._joiner.tokenizer, Data(text)
        if isinstance(tokenizer, LabelSpeller):
            return tokenizer.spell(text)
        runs = _runs(before)
        last = runs[-1] if runs else None
        if not isinstance(last, tuple):
            return self._joiner.behind((spelled,))
        edge = _tail(last)
        context = self._joiner.encode(edge)
        joined = self._joiner.encode((*edge, spelled))
        return joined[len(context) :] if joined[: len(context)] == context else []


class GroupAssembler:
    """An assembler for the prompts of one document group: each of its texts is tokenised once. One thread at a time."""

    def __init__(self, joiner: Joiner) -> None:
        self._joiner = joiner
        self._own: Cache = {}
        self._before: dict[Prompt, list[int]] = {}

    def assemble(self, prompt: Prompt) -> list[int]:
        """Ids of one prompt, with exactly one BOS where the model wants one."""
        ids = self._around_last_text(prompt)
        return self._joiner.with_bos(self._joined(prompt) if ids is None else ids)

    def _joined(self, prompt: Prompt) -> list[int]:
        ids: list[int] = []
        for part in self._joiner.cut(prompt):
            ids += part.ids if isinstance(part, Tokens) else self._ids_of(*part)
        return ids

    def _around_last_text(self, prompt: Prompt) -> list[int] | None:
        """The same ids sooner, for the usual prompt: only its last text of the user's is new, between known templates.

        Then that text is encoded once, in its place, where the general way looks at either edge by itself. None where
        the prompt is no such one, or the text merges with what stands around it.
        """
        if len(prompt) < 3:
            return None
        left, text, right = prompt[-3:]
        if not (isinstance(left, Template) and isinstance(text, Data) and isinstance(right, Template)):
            return None
        middle = self._joiner.between(left, text, right)
        if middle is None:
            return None
        before = prompt[:-2]
        known = self._before.get(before)
        if known is None:
            _bound(self._before)
            known = self._before[before] = self._joined(before)
        return known + middle + self._ids_of((right,), "behind")

    def _ids_of(self, unit: Unit, start: Start) -> list[int]:
        constant = all(isinstance(each, Template) for each in unit)
        cache = self._joiner.constant if constant else self._own
        ids = cache.get((unit, start))
        if ids is None:
            _bound(cache)
            ids = cache[unit, start] = self._joiner.ids_of(unit, start)
        return ids


class Joiner:
    """Knows for one tokenizer where texts may be cut apart, and how a piece is encoded. Only its caches change."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.constant: Cache = {}
        self._edges: dict[tuple[Unit, Unit], Start | None] = {}
        self._ends: dict[tuple[Template, Template], Ends] = {}
        self._anchor = _find_anchor(tokenizer)
        self.mode: Mode = "plain" if self._anchor is None else "anchored"

    def cut(self, prompt: Prompt) -> list[Tokens | tuple[Unit, Start]]:
        """The prompt as units that are encoded apart, each with the way it is encoded; empty texts left out."""
        parts: list[Tokens | tuple[Unit, Start]] = []
        for segment in prompt:
            last = parts[-1] if parts else None
            if isinstance(segment, Tokens):
                parts.append(segment)
            elif not segment.text:
                continue
            elif last is None or isinstance(last, Tokens):
                parts.append(((segment,), "fresh" if last is None else "behind"))
            else:
                unit, start = last
                found = self._start_of(unit, (segment,))
                if found is None:
                    parts[-1] = ((*unit, segment), start)
                    self._rejoin(parts)
                else:
                    parts.append(((segment,), found))
        return parts

    def between(self, left: Template, text: Data, right: Template) -> list[int] | None:
        """Ids of `text` where it stands; None where it may not be cut apart there, or a marker stands at an edge."""
        if self.mode == "merged" or not text.text:
            return None
        edges = self._ends.get((left, right))
        if edges is None:
            _bound(self._ends)
            edges = self._ends[left, right] = self._make_ends(left, right)
        before, before_ids, after, after_ids = edges
        if not before_ids or not after_ids:
            return None
        joined = self.tokenizer.encode(before + text.text + after, special=False)
        middle = joined[len(before_ids) : -len(after_ids)]
        return middle if joined == before_ids + middle + after_ids else None

    def _make_ends(self, left: Template, right: Template) -> Ends:
        """What stands around a text, and its ids; no ids where it holds a marker, or nothing at all."""
        before, after = _tail((left,)), _head((right,))
        if any(self._has_marker(part) for part in (*before, *after)):
            return "", [], "", []
        return before[0].text, self.encode(before), after[0].text, self.behind(after)

    def _rejoin(self, parts: list[Tokens | tuple[Unit, Start]]) -> None:
        """Look again at the text before a unit that has grown: a line break may merge with it only now, as two."""
        while len(parts) > 1:
            before, grown = parts[-2:]
            if isinstance(before, Tokens) or isinstance(grown, Tokens):
                return
            found = self._start_of(before[0], grown[0])
            if found is not None:
                parts[-1] = (grown[0], found)
                return
            parts[-2:] = [((*before[0], *grown[0]), before[1])]

    def whole(self, prompt: Prompt) -> list[int]:
        """The reference: all text between model-written tokens encoded in one go."""
        ids: list[int] = []
        for number, run in enumerate(_runs(prompt)):
            if isinstance(run, Tokens):
                ids += run.ids
            else:
                ids += self.encode(run) if number == 0 else self.behind(run)
        return self.with_bos(ids)

    def with_bos(self, ids: list[int]) -> list[int]:
        bos = self.tokenizer.bos_id
        return ids if bos is None or ids[:1] == [bos] else [bos, *ids]

    def ids_of(self, unit: Unit, start: Start) -> list[int]:
        return self.encode(unit) if start == "fresh" else self.behind(unit)

    def encode(self, unit: Unit) -> list[int]:
        """Ids of a unit as a text of its own; markers count in its templates only."""
        if len(unit) == 1:
            return self.tokenizer.encode(unit[0].text, special=isinstance(unit[0], Template))
        text = "".join(each.text for each in unit)
        plain = self.tokenizer.encode(text, special=False)
        marked = self.tokenizer.encode(text, special=True)
        if plain == marked or not any(self._has_marker(each) for each in unit if isinstance(each, Template)):
            return plain
        if not any(self._has_marker(each) for each in unit if isinstance(each, Data)):
            return marked
        apart = self.encode(unit[:1])
        return apart + [each for part in unit[1:] for each in self.behind((part,))]

    def behind(self, unit: Unit) -> list[int]:
        """Ids of a unit that stands behind other text: without the dummy space that some tokenizers put in front."""
        if self._anchor is None:
            return self.encode(unit)
        anchor = Template(self._anchor)
        dropped, ids = self.encode((anchor,)), self.encode((anchor, *unit))
        return ids[len(dropped) :] if ids[: len(dropped)] == dropped else self.encode(unit)

    def _start_of(self, left: Unit, right: Unit) -> Start | None:
        """How `right` may be encoded apart from `left`; None where the two must be encoded together."""
        if self.mode == "merged":
            return None
        edge = (_tail(left), _head(right))
        try:
            return self._edges[edge]  # no look before: another thread may clear the cache in between
        except KeyError:
            _bound(self._edges)
            found = self._edges[edge] = self._check(*edge)
            return found

    def _check(self, left: Unit, right: Unit) -> Start | None:
        before, joined = self.encode(left), self.encode((*left, *right))
        if joined == before + self.behind(right):
            return "behind"
        return "fresh" if joined == before + self.encode(right) else None

    def _has_marker(self, part: Text) -> bool:
        return self.tokenizer.encode(part.text, special=True) != self.tokenizer.encode(part.text, special=False)


def _runs(prompt: Prompt) -> Sequence[Tokens | Unit]:
    """Neighbouring texts as one unit each, model-written tokens as they are; empty texts left out."""
    runs: list[Tokens | Unit] = []
    for segment in prompt:
        last = runs[-1] if runs else None
        if isinstance(segment, Tokens):
            runs.append(segment)
        elif segment.text and isinstance(last, tuple):
            runs[-1] = (*last, segment)
        elif segment.text:
            runs.append((segment,))
    return runs


def _find_anchor(tokenizer: Tokenizer) -> str | None:
    """A text behind which words keep their ids, for a tokenizer that puts a dummy space in front; else None."""

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, special=False)

    if all(encode(f"{anchor}Yes") == encode(anchor) + encode("Yes") for anchor in ANCHORS):
        return None
    for anchor in ANCHORS:
        dropped = encode(anchor)
        if dropped and encode(f"{anchor}Yes")[: len(dropped)] == dropped:
            return anchor
    return None


def _tail(unit: Unit) -> Unit:
    """The unit's last words: what decides whether its end may merge with what follows."""
    tail: list[Text] = []
    room = EDGE_CHARS
    for segment in reversed(unit):
        words = segment.text[-room:].split(" ")
        kept = " ".join(words[-EDGE_WORDS:])
        tail.append(type(segment)(kept))
        room -= len(kept)
        if len(kept) < len(segment.text) or room <= 0:
            break
    return tuple(reversed(tail))


def _head(unit: Unit) -> Unit:
    """The unit's first words: what decides whether its start may merge with what comes before."""
    head: list[Text] = []
    room = EDGE_CHARS
    for segment in unit:
        words = segment.text[:room].split(" ")
        kept = " ".join(words[:EDGE_WORDS])
        head.append(type(segment)(kept))
        room -= len(kept)
        if len(kept) < len(segment.text) or room <= 0:
            break
    return tuple(head)


def _bound(cache: dict[Any, Any]) -> None:
    """Keep a cache small: what is in use comes back at once."""
    if len(cache) >= MAX_CACHED:
        cache.clear()
