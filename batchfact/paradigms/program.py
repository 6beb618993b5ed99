"""A paradigm's program: a generator that asks for replies and returns findings, and touches nothing else.

It yields either a batch of requests, and gets their replies in the same order, or `Together`, and gets the results of
several programs that run side by side, so that none waits for another's replies.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from msgspec import Struct

from batchfact.records import Finding, Pair, Reply, Request

Findings = tuple[Finding, ...]
Program = Generator["Sequence[Request] | Together", Any, Findings]
Paradigm = Callable[[Pair], Program]


class Together(Struct, frozen=True):
    """Programs that run side by side; the yield gives their findings, joined in the programs' order."""

    programs: tuple[Program, ...]


def together(programs: Iterable[Program]) -> Together:
    return Together(tuple(programs))


def in_step(programs: Sequence[Program]) -> Program:
    """Several programs as one: each round asks for all that they want, and their findings come out together.

    Unlike with `Together`, no finding is seen before all are there: for findings that only count together. The programs
    themselves may yield requests only.
    """
    results: list[Findings] = [()] * len(programs)
    replies: dict[int, Any] = dict.fromkeys(range(len(programs)))
    while replies:
        wanted: dict[int, Sequence[Request]] = {}
        for place, got in replies.items():
            try:
                batch = programs[place].send(got)
            except StopIteration as end:
                results[place] = end.value
            else:
                assert not isinstance(batch, Together)
                wanted[place] = batch
        if not wanted:
            break
        answered = iter((yield tuple(request for batch in wanted.values() for request in batch)))
        replies = {place: tuple(next(answered) for _ in batch) for place, batch in wanted.items()}
    return tuple(finding for findings in results for finding in findings)


def answer(program: Program, ask: Callable[[Request], Reply]) -> Findings:
    """Run a program to its end with a plain function for an engine, as tests do."""
    try:
        wanted = next(program)
        while True:
            if isinstance(wanted, Together):
                got: object = tuple(finding for each in wanted.programs for finding in answer(each, ask))
            else:
                got = tuple(ask(request) for request in wanted)
            wanted = program.send(got)
    except StopIteration as end:
        findings: Findings = end.value
        return findings


class _Frame:
    """One program at its present yield: what it still waits for, and where its findings go."""

    __slots__ = ("has_parts", "missing", "parent", "place", "program", "results")

    def __init__(self, program: Program, parent: _Frame | None, place: int) -> None:
        self.program = program
        self.parent = parent
        self.place = place
        self.results: list[Any] = []
        self.missing = 0
        self.has_parts = False


class Running:
    """A program under way: it hands out requests and takes their replies in any order.

    `take` and the constructor collect newly wanted requests in `wanted`, which the caller empties. `findings` is set
    once the program has returned. `findings_so_far` holds those of side-by-side programs that have returned.
    """

    def __init__(self, program: Program) -> None:
        self.wanted: list[Request] = []
        self.findings: Findings | None = None
        self.findings_so_far: list[Finding] = []
        self._waiting: dict[str, tuple[_Frame, int]] = {}
        self._advance(_Frame(program, None, 0), None)

    def take(self, reply: Reply) -> None:
        """Deliver one reply by its key.

        Raises: KeyError if nothing waits for that key.
        """
        frame, place = self._waiting.pop(reply.key)
        frame.results[place] = reply
        self._settle(frame, tuple)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The keys of all requests that have no reply yet."""
        return tuple(self._waiting)

    def _settle(self, frame: _Frame, join: Callable[[list[Any]], object]) -> None:
        frame.missing -= 1
        if frame.missing == 0:
            self._advance(frame, join(frame.results))

    def _advance(self, frame: _Frame, got: object) -> None:
        try:
            wanted = frame.program.send(got)
            while not (wanted.programs if isinstance(wanted, Together) else wanted):
                wanted = frame.program.send(())
        except StopIteration as end:
            self._finish(frame, end.value)
            return
        if isinstance(wanted, Together):
            self._open(frame, wanted)
        else:
            frame.results = [None] * len(wanted)
            frame.missing = len(wanted)
            for place, request in enumerate(wanted):
                assert request.key not in self._waiting, f"two requests of one pair have the key {request.key!r}"
                self._waiting[request.key] = frame, place
            self.wanted.extend(wanted)

    def _open(self, frame: _Frame, wanted: Together) -> None:
        frame.has_parts = True
        frame.results = [()] * len(wanted.programs)
        frame.missing = len(wanted.programs)
        for place, program in enumerate(wanted.programs):
            self._advance(_Frame(program, frame, place), None)

    def _finish(self, frame: _Frame, findings: Findings) -> None:
        if frame.parent is None:
            self.findings = findings
            return
        if not frame.has_parts:  # those of its parts are there already
            self.findings_so_far.extend(findings)
        frame.parent.results[frame.place] = findings
        self._settle(frame.parent, _joined)


def _joined(results: list[Findings]) -> Findings:
    return tuple(finding for findings in results for finding in findings)
