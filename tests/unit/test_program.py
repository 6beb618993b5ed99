from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchfact.paradigms.program import Program, Running, answer, together
from batchfact.records import Choose, Chosen, Failed, Finding, Reply, Request, Template


def choose(key: str) -> Choose:
    return Choose(key=key, prompt=(Template("?"),), labels=(" Yes", " No"))


def chosen(request: Request) -> Chosen:
    return Chosen(key=request.key, logprobs=(-float(len(request.key)), -1.0))


def two_steps(name: str, fan_out: int) -> Program:
    yield [choose(f"{name}.first")]
    replies = yield [choose(f"{name}.{i}") for i in range(fan_out)]
    return tuple(Finding(start=i, end=i + 1, message=reply.key) for i, reply in enumerate(replies))


def nested(sizes: list[int]) -> Program:
    return (yield together(two_steps(f"p{i}", size) for i, size in enumerate(sizes)))


def messages(findings: tuple[Finding, ...]) -> list[str | None]:
    return [finding.message for finding in findings]


def run_in_order(running: Running, pick: Any) -> None:
    wanted: list[Request] = []
    while running.findings is None:
        wanted += running.wanted
        running.wanted = []
        running.take(chosen(wanted.pop(pick(len(wanted)))))


@given(st.lists(st.integers(0, 3), max_size=4), st.randoms(use_true_random=False))
def test_findings_do_not_depend_on_the_order_of_replies(sizes: list[int], random: Any) -> None:
    running = Running(nested(sizes))
    if running.findings is None:
        run_in_order(running, random.randrange)

    assert running.findings is not None
    assert messages(running.findings) == [f"p{i}.{j}" for i, size in enumerate(sizes) for j in range(size)]
    assert running.findings == answer(nested(sizes), chosen)


def test_a_program_does_not_wait_for_its_siblings() -> None:
    running = Running(nested([1, 1]))
    first = running.wanted[0]
    running.wanted = []
    running.take(chosen(first))

    assert [request.key for request in running.wanted] == ["p0.0"]


def test_findings_so_far_hold_the_programs_that_have_ended() -> None:
    running = Running(nested([1, 2]))
    for key in ("p0.first", "p0.0"):
        running.take(Failed(key=key, status="cancelled", message=""))

    assert messages(tuple(running.findings_so_far)) == ["p0.0"]
    assert running.findings is None


def test_findings_so_far_hold_each_finding_once_however_deep_it_lies() -> None:
    def outer() -> Program:
        return (yield together([nested([1]), two_steps("p1", 1)]))

    running = Running(outer())
    for key in [request.key for request in running.wanted][:1]:
        running.take(Failed(key=key, status="cancelled", message=""))
    running.take(Failed(key="p0.0", status="cancelled", message=""))

    assert messages(tuple(running.findings_so_far)) == ["p0.0"]


def test_a_reply_that_nothing_waits_for_is_an_error() -> None:
    with pytest.raises(KeyError):
        Running(nested([1])).take(Failed(key="other", status="cancelled", message=""))


def test_waiting_names_every_request_without_a_reply() -> None:
    def ask() -> Program:
        replies: list[Reply] = yield [choose("a"), choose("b")]
        return tuple(Finding(start=0, end=1) for _ in replies)

    running = Running(ask())
    running.take(Failed(key="a", status="cancelled", message=""))

    assert running.waiting == ("b",)
