"""Which worker has which document groups: the rules by which leases are given, asked again and given up.

Groups, and what happens to workers, flow in; assignments flow out. It is a plain state machine without clock, network
or event loop, so that the driver, a test and a simulation of 512 GPUs use the same rules:

- A lease is a few document groups; a group is never parted between workers. A worker holds three: one that it works on
  and two ahead, so that its engine never waits for the driver.
- Leases of a worker that ends are suspects, without the rows that had come back. A suspect goes to a worker that holds
  nothing else. If that one ends too, the suspect is parted into sixteen, and so on, until one pair is alone.
- A pair that ends a worker when it is alone is given up, if that worker had scored something before. A new worker is
  given a probe first: a pair that another one has scored. So a broken machine puts the blame on no pair.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from batchfact.records import DocumentGroup, Pair

HELD = 3
"""Leases that a worker holds at most."""
LEASE_ROWS = 256
"""Rows of a lease at most, but for a single larger group: three leases fill an engine of 512 sequences."""
LEASE_CHARACTERS = 1 << 20
"""Characters of a lease's texts at most, but for a single larger group: this bounds the driver's memory."""
NUM_LOTS = 16
"""A suspect that ended a worker alone is parted into so many."""
EXAMINERS = 4
"""One worker in so many, and at least one, takes suspects."""


class Lease(Struct, frozen=True, kw_only=True):
    """Document groups that one worker scores. A probe was scored before: its outcomes are dropped."""

    number: int
    groups: tuple[DocumentGroup, ...]
    is_suspect: bool = False
    is_probe: bool = False

    @property
    def rows(self) -> set[int]:
        return {pair.row for group in self.groups for pair in group.pairs}


def lease_rows(rows_left: int, num_workers: int) -> int:
    """How many rows the next lease should have: fewer towards the end, so that no worker is left with a long one.

    Source: guided self-scheduling (Polychronopoulos and Kuck 1987), with three leases a worker.
    """
    return max(1, min(LEASE_ROWS, -(-rows_left // (HELD * num_workers))))


class _Held:
    """A lease with a worker, and the rows of it that have not come back."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.missing = lease.rows


class _Worker:
    def __init__(self) -> None:
        self.held: dict[int, _Held] = {}
        self.is_proven = False
        """It has scored something, so it is able to."""
        self.is_retired = False


class Leasing:
    """The book of one run. Workers are known by numbers that the caller chooses."""

    def __init__(self) -> None:
        self._workers: dict[int, _Worker] = {}
        self._free: tuple[dict[int, None], ...] = tuple({} for _ in range(HELD))
        """Workers that may get a fresh lease, by the number of leases they hold; dicts, for their order."""
        self._examiners: dict[int, None] = {}
        self._fresh: deque[Lease] = deque()
        self._suspects: deque[Lease] = deque()
        self._probe: DocumentGroup | None = None
        self._num_leases = 0

    @property
    def wants_more(self) -> bool:
        """Whether a worker would get a fresh lease if there were one."""
        return not self._fresh and any(self._free)

    @property
    def is_idle(self) -> bool:
        """Whether no row is waiting or with a worker."""
        return not self._fresh and not self._suspects and not any(each.held for each in self._workers.values())

    def add(self, groups: Iterable[DocumentGroup]) -> None:
        """Make a fresh lease of these groups."""
        self._fresh.append(self._lease(groups))

    def join(self, worker: int) -> None:
        """A worker is ready; it holds nothing."""
        self._workers[worker] = _Worker()
        self._free[0][worker] = None

    def next(self) -> tuple[int, Lease] | None:
        """The next lease to send and the worker to send it to; None where nothing can be sent now."""
        return self._next_suspect() or self._next_fresh()

    def receive(self, worker: int, lease: int, rows: Iterable[int]) -> None:
        """These rows' outcomes have come back. With its last row the lease is finished."""
        holder = self._workers[worker]
        held = holder.held.get(lease)
        if held is None:
            return
        back = held.missing.intersection(rows)
        held.missing -= back
        if back:
            holder.is_proven = True
            self._probe = _one_of(held.lease.groups, back)
        if held.missing:
            return
        self._unlist(worker)
        del holder.held[lease]
        if not self._suspects and not holder.held:
            self._examiners.pop(worker, None)
        self._enlist(worker)

    def holds(self, worker: int, lease: int) -> bool:
        """Whether rows of this lease are missing still."""
        return lease in self._workers[worker].held

    def is_probe(self, worker: int, lease: int) -> bool:
        """Whether a lease's outcomes are there already; one that is finished was none."""
        held = self._workers[worker].held.get(lease)
        return held is not None and held.lease.is_probe

    def retire(self, worker: int) -> None:
        """A worker is about to leave: it gets no more, since what it never received would be blamed for its end."""
        self._unlist(worker)
        self._examiners.pop(worker, None)
        self._workers[worker].is_retired = True

    def leave(self, worker: int) -> tuple[Pair, ...]:
        """A worker has ended, with all that it held. Gives the pairs that are given up: they ended it alone."""
        self.retire(worker)
        left = self._workers.pop(worker)
        given_up: tuple[Pair, ...] = ()
        for held in left.held.values():
            lease = held.lease
            if lease.is_probe:
                continue
            rest = _without(lease.groups, held.missing)
            if not lease.is_suspect:
                self._suspects.append(self._lease(rest, is_suspect=True))
            elif parts := _parts(rest):
                self._suspects.extend(self._lease(part, is_suspect=True) for part in parts)
            elif left.is_proven:
                given_up += rest[0].pairs
            else:
                self._suspects.append(self._lease(rest, is_suspect=True))
        return given_up

    def _lease(self, groups: Iterable[DocumentGroup], *, is_suspect: bool = False, is_probe: bool = False) -> Lease:
        self._num_leases += 1
        return Lease(number=self._num_leases, groups=tuple(groups), is_suspect=is_suspect, is_probe=is_probe)

    def _next_fresh(self) -> tuple[int, Lease] | None:
        if not self._fresh:
            return None
        for workers in self._free:
            if workers:
                return self._give(next(iter(workers)), self._fresh.popleft())
        return None

    def _next_suspect(self) -> tuple[int, Lease] | None:
        if not self._suspects:
            return None
        self._recruit()
        for number in self._examiners:
            worker = self._workers[number]
            if worker.held:
                continue
            if worker.is_proven or self._probe is None:
                return self._give(number, self._suspects.popleft())
            return self._give(number, self._lease([self._probe], is_probe=True))
        return None

    def _recruit(self) -> None:
        """Have enough workers that take no fresh leases any more, so that they come to hold nothing."""
        able = [number for number, worker in self._workers.items() if not worker.is_retired]
        wanted = min(len(self._suspects), -(-len(able) // EXAMINERS))
        others = itertools.chain(*map(list, self._free), able)
        while len(self._examiners) < wanted:
            number = next(each for each in others if each not in self._examiners)
            self._unlist(number)
            self._examiners[number] = None

    def _give(self, number: int, lease: Lease) -> tuple[int, Lease]:
        self._unlist(number)
        self._workers[number].held[lease.number] = _Held(lease)
        self._enlist(number)
        return number, lease

    def _unlist(self, number: int) -> None:
        for workers in self._free:
            workers.pop(number, None)

    def _enlist(self, number: int) -> None:
        worker = self._workers[number]
        num_held = len(worker.held)
        if number not in self._examiners and not worker.is_retired and num_held < HELD:
            self._free[num_held][number] = None


def _without(groups: Sequence[DocumentGroup], missing: set[int]) -> tuple[DocumentGroup, ...]:
    """What of the groups is still missing."""
    rest = (
        msgspec.structs.replace(group, pairs=tuple(pair for pair in group.pairs if pair.row in missing))
        for group in groups
    )
    return tuple(group for group in rest if group.pairs)


def _one_of(groups: Iterable[DocumentGroup], rows: set[int]) -> DocumentGroup:
    """The first pair that is one of these rows, as a group."""
    return next(
        DocumentGroup(number=group.number, pairs=(pair,))
        for group in groups
        for pair in group.pairs
        if pair.row in rows
    )


def _parts(groups: Sequence[DocumentGroup]) -> list[tuple[DocumentGroup, ...]]:
    """Groups in at most NUM_LOTS parts, a single group by its pairs; none where there is a single pair."""
    if len(groups) == 1:
        if len(groups[0].pairs) == 1:
            return []
        groups = [DocumentGroup(number=groups[0].number, pairs=(pair,)) for pair in groups[0].pairs]
        return [_joined(part) for part in _parts(groups)]
    size = -(-len(groups) // NUM_LOTS)
    return [tuple(groups[start : start + size]) for start in range(0, len(groups), size)]


def _joined(groups: Sequence[DocumentGroup]) -> tuple[DocumentGroup, ...]:
    """Groups of one document as one group."""
    return (DocumentGroup(number=groups[0].number, pairs=tuple(pair for group in groups for pair in group.pairs)),)
