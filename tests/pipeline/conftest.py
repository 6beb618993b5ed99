"""The command line and the stages around a fake engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import anyio
import pytest
from batchfact_fake import FakeEngine

from batchfact.assembly import Assembler
from batchfact.config import Identity
from batchfact.engines.base import EngineSpec
from batchfact.grouping import group_pairs
from batchfact.paradigms import make_paradigm
from batchfact.progress import Progress
from batchfact.prompts.loader import PromptBook
from batchfact.records import DocumentGroup, Outcome, Pair, Rejected
from batchfact.scheduler import Scheduler
from batchfact.source import rows_of
from tests.pipeline.command_line import CommandLine

Pairs = Iterable[tuple[str | None, str | None]]


@pytest.fixture
def cli(fake_model: Path, tmp_path: Path) -> CommandLine:
    return CommandLine(fake_model, tmp_path)


@pytest.fixture
def make_engine(tmp_path: Any) -> Callable[..., FakeEngine]:
    def make(**extra: str) -> FakeEngine:
        return FakeEngine(EngineSpec(model=tmp_path, extra=extra))

    return make


@pytest.fixture
def make_groups(tmp_path: Any) -> Callable[[Pairs], list[DocumentGroup | Rejected]]:
    def make(pairs: Pairs) -> list[DocumentGroup | Rejected]:
        return list(
            group_pairs(
                rows_of(pairs), mode="window", look_ahead_rows=1000, look_ahead_bytes=1 << 20, spill_dir=tmp_path
            )
        )

    return make


@pytest.fixture
def make_scheduler() -> Callable[..., Scheduler]:
    def make(engine: FakeEngine, paradigm: str = "sent-nli", **options: Any) -> Scheduler:
        prompts = PromptBook(engine.tokenizer.render_chat)
        identity = Identity(paradigm=paradigm)  # type: ignore[arg-type]  # a test's plain string
        program = make_paradigm(identity, prompts, reasoning=options.pop("reasoning", False))
        return Scheduler(engine, Assembler(engine.tokenizer), program, Progress(0), **options)

    return make


@pytest.fixture
def score_all() -> Callable[..., Any]:
    """Runs a scheduler over groups with a stream of any buffer size and gives the outcomes as they came."""

    async def score(scheduler: Scheduler, groups: list[DocumentGroup | Rejected], buffer: float = 8) -> list[Outcome]:
        async def stream() -> Any:
            for group in groups:
                yield group

        send, receive = anyio.create_memory_object_stream[Outcome](buffer)
        outcomes: list[Outcome] = []

        async def run() -> None:
            async with send:
                await scheduler.run(stream(), send)

        async with anyio.create_task_group() as tasks, receive:
            tasks.start_soon(run)
            outcomes.extend([outcome async for outcome in receive])
        return outcomes

    return score


def pairs_of(groups: list[DocumentGroup | Rejected]) -> list[Pair]:
    return [pair for group in groups if isinstance(group, DocumentGroup) for pair in group.pairs]
