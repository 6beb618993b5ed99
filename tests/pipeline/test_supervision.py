"""Engines that die, hang and do not come up again: every row is answered, or the run ends and says why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from batchfact_fake import Factory

from batchfact.engines.base import EngineSpec
from batchfact.errors import RunFailedError
from batchfact.progress import Progress
from batchfact.records import Finding, Outcome
from batchfact.supervision import Limits, Patience, supervised

pytestmark = pytest.mark.anyio

PAIRS = [(f"Document {i // 3}. It is about item {i // 3}.", f"Item {i}. Sold {i}.") for i in range(90)]
NUM_REQUESTS = 2 * len(PAIRS)


@pytest.fixture
def score(tmp_path: Path, make_groups: Any, make_scheduler: Any, score_all: Any) -> Callable[..., Any]:
    """Scores PAIRS with a supervised fake engine that has these faults; gives the outcomes by row, and the counters."""

    async def run(
        *, max_restarts: int = 10, stall_s: float = 60.0, **faults: str
    ) -> tuple[dict[int, Outcome], Progress]:
        progress = Progress(len(PAIRS))
        spec = EngineSpec(model=tmp_path, extra=faults)
        async with supervised(Factory(), spec, progress, Limits(max_restarts, stall_s)) as engine:
            outcomes = await score_all(make_scheduler(engine), make_groups(PAIRS))
        return {outcome.row: outcome for outcome in outcomes}, progress

    return run


def findings(outcomes: dict[int, Outcome]) -> dict[int, tuple[Finding, ...]]:
    return {row: outcome.findings for row, outcome in outcomes.items()}


def failed_rows(outcomes: dict[int, Outcome]) -> list[int]:
    statuses = {row: {finding.status for finding in outcome.findings} for row, outcome in outcomes.items()}
    return sorted(row for row, found in statuses.items() if "engine_error" in found)


@pytest.mark.parametrize("width", ["1", "4", "256"])
@pytest.mark.parametrize("fault", [{"die_after": "50", "die_times": "1"}, {"hang_after": "50", "hang_times": "1"}])
async def test_an_engine_that_ends_by_itself_costs_no_row(score: Any, width: str, fault: dict[str, str]) -> None:
    whole, _ = await score()
    outcomes, progress = await score(max_num_seqs=width, stall_s=0.1, **fault)

    assert findings(outcomes) == findings(whole)
    assert (progress.num_restarts, progress.num_given_up) == (1, 0)


@pytest.mark.parametrize("width", ["1", "4", "256"])
@pytest.mark.parametrize("fault", ["die_text", "hang_text"])
async def test_only_a_request_that_ends_the_engine_twice_is_given_up(score: Any, width: str, fault: str) -> None:
    whole, _ = await score()
    outcomes, progress = await score(max_num_seqs=width, stall_s=0.1, **{fault: "Statement:\nItem 40."})

    assert failed_rows(outcomes) == [40]
    assert [finding.status for finding in outcomes[40].findings] == ["engine_error", "ok"]
    assert "ended twice on this request" in outcomes[40].findings[0].message
    assert findings(outcomes) | {40: ()} == findings(whole) | {40: ()}
    assert progress.num_given_up == 1
    assert 2 <= progress.num_restarts <= 3


async def test_with_few_requests_in_flight_the_second_death_is_enough(score: Any) -> None:
    _, progress = await score(max_num_seqs="8", die_text="Statement:\nItem 40.")

    assert progress.num_restarts == 2


async def test_an_engine_that_is_broken_ends_the_run_and_no_request_is_blamed(score: Any) -> None:
    with pytest.raises(RunFailedError, match=r"the engine died .* given up after 4 restarts.*run the same command"):
        await score(die_after="50", max_restarts=4, max_num_seqs="1")


async def test_a_broken_engine_of_a_single_request_blames_nobody_either(score: Any) -> None:
    with pytest.raises(RunFailedError, match="given up after 4 restarts"):
        await score(die_after="0", max_restarts=4)


async def test_without_restarts_the_first_death_ends_the_run(score: Any) -> None:
    with pytest.raises(RunFailedError, match=r"the engine died \(as it was told\); given up\."):
        await score(die_after="50", max_restarts=0)


async def test_a_first_start_that_fails_ends_the_run_at_once(tmp_path: Path, score: Any) -> None:
    class Broken(Factory):
        num_tries = 0

        def open(self, spec: EngineSpec) -> Any:
            self.num_tries += 1
            raise RunFailedError("the engine did not start")

    factory = Broken()
    with pytest.raises(RunFailedError, match="did not start"):
        async with supervised(factory, EngineSpec(model=tmp_path), Progress(0), Limits()):
            pass
    assert factory.num_tries == 1


async def test_a_restart_that_fails_is_tried_again(score: Any) -> None:
    outcomes, progress = await score(die_after="50", die_times="1", start_failures="1")

    assert len(outcomes) == len(PAIRS)
    assert not failed_rows(outcomes)
    assert progress.num_restarts == 2


async def test_what_happened_is_warned_of_and_recorded(
    tmp_path: Path, make_groups: Any, make_scheduler: Any, score_all: Any
):
    events: list[str] = []
    progress = Progress(len(PAIRS))
    progress.record = lambda event, **_: events.append(event)
    spec = EngineSpec(model=tmp_path, extra={"die_after": "50", "die_times": "1"})
    async with supervised(Factory(), spec, progress, Limits()) as engine:
        await score_all(make_scheduler(engine), make_groups(PAIRS))

    assert progress.warnings == ["the engine died (as it was told); it is started again (1 of 10)"]
    assert [event for event in events if event not in ("warning", "phase")] == [
        "engine_ready",
        "engine_ended",
        "engine_restarting",
        "engine_ready",
    ]


async def test_it_closes_while_an_engine_is_starting_again(tmp_path: Path) -> None:
    progress = Progress(0)
    spec = EngineSpec(model=tmp_path, extra={"die_after": "0", "start_failures": "3"})
    async with supervised(Factory(), spec, progress, Limits()) as engine, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: engine.choose([1], ((4,), (5,)), priority=0, replica=0))
        while not progress.num_restarts:
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()

    assert progress.num_restarts >= 1


async def test_an_error_of_the_block_comes_out_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with supervised(Factory(), EngineSpec(model=tmp_path), Progress(0), Limits()):
            raise ZeroDivisionError


def test_patience_grows_with_the_longest_answer_and_is_longer_before_the_first() -> None:
    patience = Patience(stall_s=100)
    assert patience.limit_s == 300
    patience.answered(2)
    assert patience.limit_s == 100
    patience.answered(30)
    patience.answered(1)
    assert patience.limit_s == 300
    assert not patience.is_over(300)
    assert patience.is_over(1)
    patience.answered(1)
    assert not patience.is_over(1)
    patience.begin()
    assert patience.limit_s == 300
