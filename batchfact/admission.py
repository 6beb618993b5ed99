"""How much is in flight at once: a bound on requests and on the KV cache's tokens, for one engine replica.

Document groups reserve their shared prefix, requests what they add to it. Both wait here, outside the engine, so that
its queue stays short and its prefix cache is not thrashed. The lowest priority number goes first, so that a group's
follow-up requests go before the first requests of newer groups, while their prefix is still cached. One group and one
request are always let in, however large.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from batchfact.engines.base import Capacity

KV_SHARE = 0.85
"""Share of the KV cache that admission fills; the rest is for partly filled blocks and for the engine's own slack."""
RECENT_DOCUMENTS = 4096
"""So many documents keep their replica; of older ones a replica's cache holds nothing any more."""


class Replicas:
    """The budgets of all replicas, and which documents are on which."""

    def __init__(self, capacity: Capacity) -> None:
        self.admissions = [Admission(capacity) for _ in range(capacity.num_replicas)]
        self._homes: OrderedDict[int, int] = OrderedDict()
        self._turns = itertools.count()

    def home(self, document_hash: int) -> int:
        """The replica that a document's requests go to: where it was lately, or else the one with the least to do.

        A document with many pairs comes as several groups, and all of them find its prefix in that replica's cache.
        """
        replica = self._homes.pop(document_hash, None)
        if replica is None:
            first = next(self._turns)  # equal ones take turns
            turns = [(first + turn) % len(self.admissions) for turn in range(len(self.admissions))]
            replica = min(turns, key=lambda each: self.admissions[each].load)
        self._homes[document_hash] = replica
        if len(self._homes) > RECENT_DOCUMENTS:
            self._homes.popitem(last=False)
        return replica


class Admission:
    """The budget of one replica, in requests and in KV tokens rounded up to whole blocks."""

    def __init__(self, capacity: Capacity) -> None:
        self.max_requests = 2 * capacity.max_num_seqs
        self.max_tokens = int(capacity.kv_tokens * KV_SHARE)
        self.num_requests = 0
        self.num_groups = 0
        self.tokens = 0
        self._block_tokens = capacity.block_tokens
        self._waiters: list[tuple[int, int, int, anyio.Event]] = []
        self._order = itertools.count()
        self._group_change = anyio.Event()

    @property
    def load(self) -> int:
        """Requests in flight and waiting."""
        return self.num_requests + len(self._waiters)

    @asynccontextmanager
    async def group(self, prefix_tokens: int) -> AsyncIterator[None]:
        """Hold a group's shared prefix; waits until it fits and no backlog of requests stands before it.

        Groups whose requests are answered count until their outcomes are taken, so that a stalled journal stops all.
        """
        tokens = self.in_blocks(prefix_tokens)
        while self.num_groups and (
            self.num_groups >= self.max_requests
            or self.load >= self.max_requests
            or self.tokens + tokens > self.max_tokens
        ):
            await self._group_change.wait()
        self.num_groups += 1
        self.tokens += tokens
        try:
            yield
        finally:
            self.num_groups -= 1
            self._release(tokens)

    def hold(self, tokens: int) -> int:
        """Hold more at once, without waiting, for a prefix that several requests share; returns what `unhold` takes."""
        tokens = self.in_blocks(tokens)
        self.tokens += tokens
        return tokens

    def unhold(self, tokens: int) -> None:
        """Give back what `hold` returned."""
        if tokens:
            self._release(tokens)

    async def acquire(self, priority: int, tokens: int) -> None:
        """Take the budget for one request's own `tokens` (suffix and reserved output); `release` gives it back."""
        tokens = self.in_blocks(tokens)
        if self._waiters or not self._fits(tokens):
            await self._wait(priority, tokens)
        else:
            self._take(tokens)

    def release(self, tokens: int) -> None:
        """Give back what one `acquire` of the same `tokens` took."""
        self.num_requests -= 1
        self._release(self.in_blocks(tokens))

    def in_blocks(self, tokens: int) -> int:
        """`tokens` rounded up to whole blocks."""
        return -(-tokens // self._block_tokens) * self._block_tokens

    def _fits(self, tokens: int) -> bool:
        if self.num_requests == 0:
            return True
        return self.num_requests < self.max_requests and self.tokens + tokens <= self.max_tokens

    def _take(self, tokens: int) -> None:
        self.num_requests += 1
        self.tokens += tokens

    async def _wait(self, priority: int, tokens: int) -> None:
        """The releasing side takes the budget for the waiter, so that nobody overtakes before it resumes."""
        waiter = (priority, next(self._order), tokens, anyio.Event())
        heapq.heappush(self._waiters, waiter)
        try:
            await waiter[3].wait()
        except BaseException:
            if waiter[3].is_set():
                self.num_requests -= 1
                self._release(tokens)
            else:
                self._waiters.remove(waiter)
                heapq.heapify(self._waiters)
            raise

    def _release(self, tokens: int) -> None:
        self.tokens -= tokens
        while self._waiters and self._fits(self._waiters[0][2]):
            _, _, needed, event = heapq.heappop(self._waiters)
            self._take(needed)
            event.set()
        self._group_change.set()
        self._group_change = anyio.Event()
