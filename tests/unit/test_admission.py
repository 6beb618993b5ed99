from __future__ import annotations

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint

from batchfact.admission import RECENT_DOCUMENTS, Admission, Replicas
from batchfact.engines.base import Capacity

pytestmark = pytest.mark.anyio


def admission(*, kv_tokens: int = 10_000, max_num_seqs: int = 2) -> Admission:
    return Admission(Capacity(kv_tokens=kv_tokens, block_tokens=32, max_num_seqs=max_num_seqs, max_model_len=8192))


class Holder:
    """Takes requests one after the other and says in which order they were let in."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.admitted: list[str] = []
        self.release: dict[str, anyio.Event] = {}

    async def hold(self, name: str, priority: int, tokens: int = 32) -> None:
        self.release[name] = anyio.Event()
        await self.admission.acquire(priority, tokens)
        try:
            self.admitted.append(name)
            await self.release[name].wait()
        finally:
            self.admission.release(tokens)


async def test_no_more_than_twice_the_sequences_are_in_flight() -> None:
    holder = Holder(admission(max_num_seqs=2))
    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(holder.hold, str(number), 0)
        await wait_all_tasks_blocked()

        assert len(holder.admitted) == 4

        tasks.cancel_scope.cancel()


async def test_the_lowest_priority_number_goes_first() -> None:
    holder = Holder(admission(max_num_seqs=1))
    async with anyio.create_task_group() as tasks:
        for name, priority in (("a", 0), ("b", 1), ("late", 5), ("early", 2)):
            tasks.start_soon(holder.hold, name, priority)
            await wait_all_tasks_blocked()
        for name in ("a", "b"):
            holder.release[name].set()
            await wait_all_tasks_blocked()

        assert holder.admitted == ["a", "b", "early", "late"]

        tasks.cancel_scope.cancel()


async def test_requests_wait_for_kv_tokens_but_one_is_always_let_in() -> None:
    budget = admission(kv_tokens=1000, max_num_seqs=8)
    holder = Holder(budget)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(holder.hold, "huge", 0, 50_000)
        await wait_all_tasks_blocked()
        tasks.start_soon(holder.hold, "small", 0, 32)
        await wait_all_tasks_blocked()

        assert holder.admitted == ["huge"]

        holder.release["huge"].set()
        await wait_all_tasks_blocked()

        assert holder.admitted == ["huge", "small"]

        tasks.cancel_scope.cancel()
    assert budget.tokens == 0
    assert budget.num_requests == 0


async def test_a_waiter_that_is_cancelled_leaves_the_budget_as_it_was() -> None:
    budget = admission(max_num_seqs=1)
    holder = Holder(budget)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(holder.hold, "a", 0)
        tasks.start_soon(holder.hold, "b", 0)
        await wait_all_tasks_blocked()
        with anyio.move_on_after(0):
            await holder.hold("c", 0)
        holder.release["a"].set()
        holder.release["b"].set()
        await wait_all_tasks_blocked()

        assert budget.num_requests == 0
        assert budget.load == 0
        assert budget.tokens == 0

        tasks.cancel_scope.cancel()


async def test_a_group_waits_for_its_prefix_and_the_first_one_never_does() -> None:
    budget = admission(kv_tokens=1000)
    entered: list[int] = []

    async def enter(tokens: int, leave: anyio.Event) -> None:
        async with budget.group(tokens):
            entered.append(tokens)
            await leave.wait()

    first, second = anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(enter, 5000, first)
        await wait_all_tasks_blocked()
        tasks.start_soon(enter, 64, second)
        await wait_all_tasks_blocked()

        assert entered == [5000]

        first.set()
        await wait_all_tasks_blocked()

        assert entered == [5000, 64]

        second.set()
        await checkpoint()
    assert budget.tokens == 0


# Replicas


def replicas(num_replicas: int = 3) -> Replicas:
    return Replicas(
        Capacity(kv_tokens=10_000, block_tokens=32, max_num_seqs=2, max_model_len=8192, num_replicas=num_replicas)
    )


async def test_all_groups_of_a_document_have_one_home_however_busy_it_is() -> None:
    found = replicas()
    home = found.home(7)
    for _ in range(4):
        await found.admissions[home].acquire(0, 32)

    assert {found.home(7) for _ in range(5)} == {home}


async def test_a_new_document_goes_where_there_is_least_to_do() -> None:
    found = replicas()
    for replica in (0, 2):
        await found.admissions[replica].acquire(0, 32)

    assert found.home(7) == 1


async def test_documents_take_turns_where_replicas_are_equal() -> None:
    found = replicas()

    assert sorted(found.home(document) for document in range(6)) == [0, 0, 1, 1, 2, 2]


async def test_homes_of_old_documents_are_forgotten() -> None:
    found = replicas()
    for document in range(3 * RECENT_DOCUMENTS):
        found.home(document)
        found.home(0)

    assert len(found._homes) == RECENT_DOCUMENTS
    assert 0 in found._homes and 1 not in found._homes
