from __future__ import annotations

from typing import Any

import anyio
import pytest

from batchfact.committing import Committer
from batchfact.records import Outcome

pytestmark = pytest.mark.anyio


class Spy:
    """A journal that remembers its parts."""

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.parts: list[list[int]] = []
        self.fails_at = fails_at

    def append(self, part: list[Outcome]) -> None:
        if len(self.parts) == self.fails_at:
            raise OSError("disk full")
        self.parts.append([outcome.row for outcome in part])

    def compact_if_needed(self) -> None:
        pass


async def commit(journal: Any, rows: int, *, max_rows: int = 3, max_seconds: float = 3600) -> list[int]:
    counted: list[int] = []
    committer = Committer(
        journal, max_rows=max_rows, max_seconds=max_seconds, committed=lambda part: counted.append(len(part))
    )
    send, receive = anyio.create_memory_object_stream[Outcome](8)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(committer.run, receive)
        async with send:
            for row in range(rows):
                await send.send(Outcome(row=row, text_hash=row))
    return counted


async def test_full_parts_are_written_and_the_end_writes_the_rest() -> None:
    journal = Spy()

    assert await commit(journal, 7) == [3, 3, 1]
    assert journal.parts == [[0, 1, 2], [3, 4, 5], [6]]


async def test_time_alone_writes_a_part() -> None:
    journal, written = Spy(), anyio.Event()
    committer = Committer(journal, max_rows=100, max_seconds=0.01, committed=lambda _: written.set())  # type: ignore[arg-type]
    send, receive = anyio.create_memory_object_stream[Outcome](8)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(committer.run, receive)
        async with send:
            await send.send(Outcome(row=5, text_hash=5))
            with anyio.fail_after(30):
                await written.wait()

    assert journal.parts == [[5]]


async def test_the_first_parts_come_soon_and_the_later_ones_further_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    has_waited = anyio.Event()
    sleep = anyio.sleep

    async def note(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 5:
            has_waited.set()
        await sleep(0)

    monkeypatch.setattr("batchfact.committing.anyio.sleep", note)
    committer = Committer(Spy(), max_rows=100, max_seconds=5, committed=lambda _: None)  # type: ignore[arg-type]
    send, receive = anyio.create_memory_object_stream[Outcome](8)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(committer.run, receive)
        async with send:
            await anyio.wait_all_tasks_blocked()
            assert not waits  # no time runs before the first outcome
            await send.send(Outcome(row=1, text_hash=1))
            with anyio.fail_after(30):
                await has_waited.wait()

    assert waits[:5] == [1, 2, 4, 5, 5]


async def test_what_had_arrived_is_committed_when_another_stage_fails() -> None:
    journal = Spy()
    committer = Committer(journal, max_rows=100, max_seconds=3600, committed=lambda _: None)  # type: ignore[arg-type]
    send, receive = anyio.create_memory_object_stream[Outcome](8)

    async def fail() -> None:
        async with send:
            await send.send(Outcome(row=1, text_hash=1))
            await anyio.wait_all_tasks_blocked()
            raise ValueError("another stage")

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(committer.run, receive)
            tasks.start_soon(fail)

    with pytest.raises(ExceptionGroup):
        await run()

    assert journal.parts == [[1]]


async def test_a_full_disk_is_raised_and_counts_nothing() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await commit(Spy(fails_at=0), 3)

    assert raised.group_contains(OSError, match="disk full")
