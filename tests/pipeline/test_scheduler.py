from __future__ import annotations

import re
from typing import Any

import anyio
import anyio.to_thread
import pytest
from batchfact_fake import FakeEngine

from batchfact.assembly import Assembler
from batchfact.config import FoldPolicy, Identity
from batchfact.engines.base import EngineSpec
from batchfact.errors import RunFailedError, root_cause
from batchfact.grouping import group_pairs
from batchfact.paradigms import make_paradigm
from batchfact.paradigms.fold import decides
from batchfact.preparation import make_contexts, make_counters
from batchfact.progress import Progress
from batchfact.prompts.loader import PromptBook
from batchfact.records import Outcome, Usage
from batchfact.scheduler import Sampling, Scheduler
from batchfact.source import rows_of

pytestmark = pytest.mark.anyio

PAIRS = [
    (f"Document number {i // 3}. It is about item {i // 3}.", f"Item {i}. Sold. For {i % 2} euro.") for i in range(24)
]


@pytest.mark.parametrize("buffer", [0, 1, 8])
@pytest.mark.parametrize("paradigm", ["summ-nli", "sent-nli", "qg-qa"])
@pytest.mark.parametrize("reasoning", [False, True])
async def test_every_row_comes_out_once(
    make_engine: Any, make_groups: Any, make_scheduler: Any, score_all: Any, buffer: int, paradigm: str, reasoning: bool
) -> None:
    scheduler = make_scheduler(make_engine(max_num_seqs="3"), paradigm, reasoning=reasoning)
    outcomes = await score_all(scheduler, make_groups(PAIRS), buffer)

    assert sorted(outcome.row for outcome in outcomes) == list(range(24))
    assert all(finding.status == "ok" for outcome in outcomes for finding in outcome.findings)
    assert all(outcome.findings for outcome in outcomes)


async def test_answers_do_not_depend_on_admission(
    make_engine: Any, make_groups: Any, make_scheduler: Any, score_all: Any
) -> None:
    def findings(outcomes: list[Outcome]) -> dict[int, Any]:
        return {outcome.row: outcome.findings for outcome in outcomes}

    roomy = await score_all(make_scheduler(make_engine(), "qg-qa"), make_groups(PAIRS))
    tight = await score_all(make_scheduler(make_engine(max_num_seqs="1", kv_tokens="64"), "qg-qa"), make_groups(PAIRS))

    assert findings(roomy) == findings(tight)


async def test_requests_in_flight_never_pass_twice_the_sequences(
    make_engine: Any, make_groups: Any, make_scheduler: Any, score_all: Any
) -> None:
    engine = make_engine(max_num_seqs="2")
    scheduler = make_scheduler(engine)
    peak = 0
    choose = engine.choose

    async def spy(*args: Any, **kwargs: Any) -> Any:
        nonlocal peak
        peak = max(peak, scheduler.progress.num_in_flight)
        return await choose(*args, **kwargs)

    engine.choose = spy
    await score_all(scheduler, make_groups(PAIRS))

    assert peak == 4


async def test_equal_pairs_and_equal_windows_of_a_document_are_asked_once(
    make_engine: Any, make_groups: Any, make_scheduler: Any, score_all: Any
) -> None:
    engine = make_engine()
    document = "The shop sold a red lamp."
    pairs = [(document, "A lamp was sold."), (document, "A lamp was sold."), (document, "A lamp was sold. It was red.")]
    outcomes = sorted(await score_all(make_scheduler(engine), make_groups(pairs)), key=lambda outcome: outcome.row)

    assert engine.num_requests == 2
    assert outcomes[0].findings == outcomes[1].findings
    assert outcomes[2].findings[0].logprobs == outcomes[0].findings[0].logprobs
    assert sum(outcome.usage.output for outcome in outcomes) == 2
    assert outcomes[1].usage == Usage()


async def test_sampled_requests_share_nothing_and_have_seeds_of_their_own(
    make_engine: Any, make_groups: Any, make_scheduler: Any, score_all: Any
) -> None:
    sampling = Sampling(temperature=0.7, seed=3)
    pairs = [("The shop sold a red lamp.", "A lamp was sold.")] * 3
    outcomes = await score_all(make_scheduler(make_engine(), reasoning=True, sampling=sampling), make_groups(pairs))
    again = await score_all(make_scheduler(make_engine(), reasoning=True, sampling=sampling), make_groups(pairs))
    texts = {outcome.row: outcome.findings[0].reasoning for outcome in outcomes}

    assert len(set(texts.values())) == 3
    assert {outcome.row: outcome.findings[0].reasoning for outcome in again} == texts
    assert all(outcome.usage.output > 1 for outcome in outcomes)


def test_a_request_s_seed_is_its_own_and_fits_every_engine() -> None:
    seeds = [Sampling(1.0, seed).seed_of(row, key) for seed in range(4) for row in range(4) for key in ("w0", "w1")]

    assert len(set(seeds)) == 32
    assert all(0 <= seed < 2**32 for seed in seeds)


async def test_costs_of_rows_add_up_to_the_cost_of_all_requests(
    make_engine: Any, make_groups: Any, make_scheduler: Any, score_all: Any
) -> None:
    scheduler = make_scheduler(make_engine(), "qg-qa", reasoning=True)
    outcomes = await score_all(scheduler, make_groups(PAIRS))

    assert sum((outcome.usage for outcome in outcomes), Usage()) == scheduler.progress.usage


async def test_one_failed_request_makes_one_unknown_finding(
    make_engine: Any, make_groups: Any, make_scheduler: Any, score_all: Any
) -> None:
    engine = make_engine(fail_key_text="Statement:\nItem 7.")
    outcomes = await score_all(make_scheduler(engine), make_groups(PAIRS))
    failed = [finding for outcome in outcomes for finding in outcome.findings if finding.status == "engine_error"]

    assert len(failed) == 1
    assert len(outcomes) == 24


async def test_a_prompt_beyond_the_model_is_too_long_and_is_not_asked(
    make_engine: Any, make_groups: Any, make_scheduler: Any, score_all: Any
) -> None:
    engine = make_engine()
    pairs = [("word " * 300_000, "A word."), ("Short.", "Short.")]
    outcomes = sorted(await score_all(make_scheduler(engine), make_groups(pairs)), key=lambda outcome: outcome.row)

    assert [finding.status for outcome in outcomes for finding in outcome.findings] == ["too_long", "ok"]
    assert engine.num_requests == 1


async def test_a_dead_engine_is_the_error_that_comes_out(
    make_engine: Any, make_groups: Any, make_scheduler: Any, score_all: Any
) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await score_all(make_scheduler(make_engine(die_after="5")), make_groups(PAIRS))

    assert isinstance(root_cause(raised.value), RunFailedError)


async def test_early_exit_cancels_what_no_longer_matters(
    make_engine: Any, make_groups: Any, make_scheduler: Any, score_all: Any
) -> None:
    policy = FoldPolicy(threshold=0.99)
    engine = make_engine(max_num_seqs="1", latency_s="0.001")
    pairs = [("A document.", " ".join(f"Sentence {i} is here." for i in range(40)))]
    scheduler = make_scheduler(engine, decides=lambda findings: decides(findings, policy))
    (outcome,) = await score_all(scheduler, make_groups(pairs))

    statuses = [finding.status for finding in outcome.findings]
    assert len(statuses) == 40
    assert statuses.count("cancelled") == 40 - statuses.count("ok") > 30
    assert scheduler.replicas.admissions[0].tokens == scheduler.replicas.admissions[0].num_requests == 0


async def test_early_exit_copes_with_a_sentence_that_is_said_twice(
    make_engine: Any, make_groups: Any, make_scheduler: Any, score_all: Any
) -> None:
    scheduler = make_scheduler(make_engine(), decides=lambda findings: len(findings) > 0)
    (outcome,) = await score_all(scheduler, make_groups([("A document.", "It is so. It is so. Other.")]))

    assert [finding.status for finding in outcome.findings].count("ok") == 1
    assert len(outcome.findings) == 3


async def test_early_exit_leaves_requests_that_another_pair_waits_for(
    make_engine: Any, make_groups: Any, make_scheduler: Any, score_all: Any
) -> None:
    engine = make_engine(max_num_seqs="1", latency_s="0.001")
    shared = "Sentence 3 is here."
    pairs = [("A document.", f"Wrong. {shared} Other. More."), ("A document.", f"{shared} Another.")]

    def is_wrong(findings: Any) -> bool:
        return any(finding.start == 0 and finding.end == 6 for finding in findings)

    outcomes = await score_all(make_scheduler(engine, decides=is_wrong), make_groups(pairs))
    second = next(outcome for outcome in outcomes if outcome.row == 1)

    assert [finding.status for finding in second.findings] == ["ok", "ok"]


async def test_cancelling_from_outside_leaves_nothing_in_flight(
    make_engine: Any, make_groups: Any, make_scheduler: Any, score_all: Any
) -> None:
    scheduler = make_scheduler(make_engine(latency_s="3600"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(score_all, scheduler, make_groups(PAIRS))
        await anyio.wait_all_tasks_blocked()

        assert scheduler.progress.num_in_flight > 0

        tasks.cancel_scope.cancel()
    assert scheduler.progress.num_in_flight == 0
    assert scheduler.replicas.admissions[0].num_requests == 0


async def test_a_stalled_reader_stops_the_scheduler(
    make_engine: Any, make_groups: Any, make_scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def inline(function: Any, *args: Any) -> Any:
        return function(*args)

    monkeypatch.setattr(anyio.to_thread, "run_sync", inline)  # so that blocked tasks are all there is to wait for
    engine = make_engine(max_num_seqs="1")
    groups = make_groups([(f"Document {i}.", "One. Two.") for i in range(200)])
    scheduler = make_scheduler(engine)

    async def stream() -> Any:
        for group in groups:
            yield group

    send, receive = anyio.create_memory_object_stream[Outcome](1)

    async def run() -> None:
        async with send:
            await scheduler.run(stream(), send)

    async with anyio.create_task_group() as tasks, receive:
        tasks.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        stalled_at = engine.num_requests
        rows = [outcome.row async for outcome in receive]

    assert 0 < stalled_at < 200
    assert engine.num_requests == 400
    assert sorted(rows) == list(range(200))


async def test_a_group_of_two_kinds_of_prompts_holds_the_document_once(
    make_engine: Any, make_groups: Any, make_scheduler: Any, score_all: Any
) -> None:
    document = "A long story. " * 200
    scheduler = make_scheduler(make_engine(), "qg-qa")
    costs: list[int] = []
    acquire = scheduler.replicas.admissions[0].acquire
    choose = scheduler.engine.choose
    are_many = anyio.Event()
    num_asked = 0

    async def wait_for_others(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 6:
            are_many.set()
        await are_many.wait()
        return await choose(*args, **kwargs)

    scheduler.engine.choose = wait_for_others

    async def spy(priority: int, tokens: int) -> None:
        costs.append(tokens)
        await acquire(priority, tokens)

    scheduler.replicas.admissions[0].acquire = spy
    await score_all(scheduler, make_groups([(document, f"Item {i}. Sold {i}.") for i in range(6)]))

    assert len(costs) >= 18
    # The first question on the document is charged for it, and the first one after a moment without any.
    assert len([cost for cost in costs if cost >= len(document)]) <= 2
    assert scheduler.replicas.admissions[0].tokens == 0


@pytest.mark.parametrize("num_replicas", [1, 3])
async def test_all_requests_of_a_document_go_to_one_replica(
    tmp_path: Any, make_groups: Any, make_scheduler: Any, score_all: Any, num_replicas: int
) -> None:
    engine = FakeEngine(EngineSpec(model=tmp_path, data_parallel_size=num_replicas, extra={"max_num_seqs": "2"}))
    replicas: dict[int, set[int]] = {}
    choose = engine.choose

    async def spy(ids: Any, labels: Any, *, priority: int, replica: int) -> Any:
        replicas.setdefault(priority, set()).add(replica)
        return await choose(ids, labels, priority=priority, replica=replica)

    engine.choose = spy  # type: ignore[method-assign,assignment]
    await score_all(make_scheduler(engine), make_groups(PAIRS))

    assert all(len(used) == 1 for used in replicas.values())
    assert set.union(*replicas.values()) == set(range(num_replicas))


async def test_a_document_of_several_groups_stays_on_one_replica(
    tmp_path: Any, make_scheduler: Any, score_all: Any
) -> None:
    engine = FakeEngine(EngineSpec(model=tmp_path, data_parallel_size=3, extra={"max_num_seqs": "2"}))
    homes: dict[str, set[int]] = {}
    choose = engine.choose

    async def spy(ids: Any, labels: Any, *, priority: int, replica: int) -> Any:
        document = re.findall(r"Document \d", engine.tokenizer.decode(ids))[0]
        homes.setdefault(document, set()).add(replica)
        return await choose(ids, labels, priority=priority, replica=replica)

    engine.choose = spy  # type: ignore[method-assign,assignment]
    groups = group_pairs(
        rows_of((f"Document {i % 4}. It is long.", f"Item {i}. Sold {i}.") for i in range(48)),
        mode="window",
        look_ahead_rows=8,
        look_ahead_bytes=1 << 20,
        spill_dir=tmp_path,
        max_group_pairs=2,
    )
    await score_all(make_scheduler(engine), list(groups))

    assert len(homes) == 4
    assert all(len(used) == 1 for used in homes.values())
    assert len(set.union(*homes.values())) > 1


async def test_windows_with_excerpts_of_their_own_are_in_flight_together(
    make_engine: Any, make_groups: Any, score_all: Any
) -> None:
    engine = make_engine(max_num_seqs="4", kv_tokens="8000")
    identity = Identity(paradigm="sent-nli", long_documents="align")
    contexts = make_contexts(identity, make_counters(engine.tokenizer), 1000)
    paradigm = make_paradigm(
        identity, PromptBook(engine.tokenizer.render_chat), reasoning=False, demonstrations=(), contexts=contexts
    )
    scheduler = Scheduler(engine, Assembler(engine.tokenizer), paradigm, Progress(0))
    document = " ".join(f"Item {i} was sold for {i} euro in shop {i}." for i in range(200))
    peak = 0
    choose = engine.choose

    async def spy(*args: Any, **kwargs: Any) -> Any:
        nonlocal peak
        peak = max(peak, scheduler.progress.num_in_flight)
        await anyio.wait_all_tasks_blocked()
        return await choose(*args, **kwargs)

    engine.choose = spy
    outcomes = await score_all(
        scheduler, make_groups([(document, f"Item {i} was sold for {i} euro.") for i in range(20)])
    )

    assert len(outcomes) == 20
    assert all(outcome.findings[0].evidence for outcome in outcomes)
    assert peak >= 4
    assert scheduler.replicas.admissions[0].tokens == 0
