"""What a request adds to the KV cache beside the other requests of its document group, in tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from batchfact.admission import Admission

LOOK_BACK = 8
"""So many kinds of prompts, the newest ones, are looked at for a shared prefix."""


class SharedPrefixes:
    """The prefixes of one group: that of its first prompts, held with the group, and those of later kinds of prompts.

    A question on the document, after prompts on the summary, is of another kind. Its first prompt is charged whole. The
    second one shows what they share, which is held, beside the budget's queue, while any prompt of the kind is waiting
    or in flight. Where nothing is shared (each window with an excerpt of its own), each prompt is a kind of its own.
    """

    def __init__(self, admission: Admission) -> None:
        self.first: list[int] = []
        self._admission = admission
        self._kinds: dict[int, _Kind] = {}
        self._numbers = itertools.count()

    def take(self, prompts: Iterator[list[int]]) -> None:
        """Find what the group's first prompts share."""
        self.first = list(next(prompts, []))
        for ids in prompts:
            del self.first[common_prefix(self.first, ids) :]

    @contextmanager
    def own_tokens(self, ids: list[int]) -> Iterator[int]:
        """Tokens of a prompt that no other one brings, for as long as it waits and is in flight."""
        shared = common_prefix(self.first, ids)
        if 2 * shared >= len(ids):
            yield len(ids) - shared
            return
        number, own_tokens = self._kind_of(ids, shared)
        kind = self._kinds[number]
        kind.num_prompts += 1
        try:
            yield own_tokens
        finally:
            kind.num_prompts -= 1
            if kind.num_prompts == 0:
                del self._kinds[number]
                self._admission.unhold(kind.held_tokens)

    def _kind_of(self, ids: list[int], shared: int) -> tuple[int, int]:
        for number in itertools.islice(reversed(self._kinds), LOOK_BACK):
            kind = self._kinds[number]
            common = common_prefix(kind.prefix, ids)
            if 2 * common >= len(ids):
                if not kind.held_tokens:
                    del kind.prefix[common:]
                    kind.held_tokens = self._admission.hold(common - shared)
                return number, len(ids) - common
        number = next(self._numbers)
        self._kinds[number] = _Kind(ids)
        return number, len(ids) - shared


class _Kind:
    """Prompts that share a prefix: of one prompt all of it, of several what they have in common."""

    def __init__(self, ids: list[int]) -> None:
        self.prefix = list(ids)
        self.num_prompts = 0
        self.held_tokens = 0


def common_prefix(left: list[int], right: list[int]) -> int:
    """How many leading ids are the same: a binary search over slices, which compare at C speed."""
    if right[: len(left)] == left:
        return len(left)
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
