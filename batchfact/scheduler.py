"""Keeps the engine full: document groups flow in, outcomes of rows flow out as they finish.

Each pair's paradigm program runs to its findings; its requests are assembled into token ids, equal ones of a document
are asked once, and all wait for admission outside the engine. The scheduler knows nothing of files, of what a prompt
means, or of folding: it only asks the policy whether findings decide, for early exit.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable, Callable

import anyio
from anyio.abc import TaskGroup, TaskStatus
from anyio.streams.memory import MemoryObjectSendStream
from msgspec import Struct

from batchfact.admission import Replicas
from batchfact.assembly import Assembler, GroupAssembler
from batchfact.engines.base import Engine, LabelIds, RequestError
from batchfact.paradigms.program import Paradigm, Running
from batchfact.progress import Progress
from batchfact.records import (
    Choose,
    Chosen,
    DocumentGroup,
    Failed,
    Finding,
    Outcome,
    Pair,
    Prompt,
    Rejected,
    Reply,
    Request,
    Segment,
    Usage,
    Write,
    Written,
)
from batchfact.shared_prefixes import SharedPrefixes

Decides = Callable[[list[Finding]], bool]
"""Whether findings so far fix the verdict, whatever the rest says."""


class Sampling(Struct, frozen=True):
    """How text is written. Above temperature 0 each request has its own seed, and nothing is shared between requests.

    Source: Xu 2024, Table 4 (repeated runs).
    """

    temperature: float = 0.0
    seed: int = 0

    @property
    def is_random(self) -> bool:
        return self.temperature > 0

    def seed_of(self, row: int, key: str) -> int:
        """The request's seed, in 32 bits: the same in every run with this seed, whatever is asked beside it."""
        named = hashlib.blake2b(f"{self.seed} {row} {key}".encode(), digest_size=4)
        return int.from_bytes(named.digest(), "little")


GREEDY = Sampling()


class Scheduler:
    """Answers document groups with one engine.

    Args:
        decides: for early exit; None lets every finding finish.
        sampling: how text is written.
        progress: counts tokens and requests in flight.
    """

    def __init__(
        self,
        engine: Engine,
        assembler: Assembler,
        paradigm: Paradigm,
        progress: Progress,
        *,
        decides: Decides | None = None,
        sampling: Sampling = GREEDY,
    ) -> None:
        self.engine = engine
        self.assembler = assembler
        self.paradigm = paradigm
        self.progress = progress
        self.decides = decides
        self.sampling = sampling
        self._label_ids: dict[tuple[Segment, tuple[str, ...]], LabelIds] = {}
        self.replicas = Replicas(engine.capacity)

    def label_ids(self, request: Choose) -> LabelIds:
        """Ids of the label words right after the prompt; they depend on its last segment, the cue, alone."""
        cue = (request.prompt[-1], request.labels)
        if cue not in self._label_ids:
            self._label_ids[cue] = self.assembler.label_ids(request.prompt, request.labels)
        return self._label_ids[cue]

    async def run(
        self,
        groups: AsyncIterable[DocumentGroup | Rejected],
        outcomes: MemoryObjectSendStream[Outcome],
    ) -> None:
        """Score until `groups` ends; the streams are the caller's to close.

        Raises: RunFailedError when the engine is dead.
        """
        async with anyio.create_task_group() as tasks:
            async for item in groups:
                if isinstance(item, Rejected):
                    await outcomes.send(rejected_outcome(item))
                else:
                    await tasks.start(_GroupRun(self, item, outcomes).run)


class _Job:
    """One engine request, shared by all pairs of the group that ask exactly this."""

    def __init__(self) -> None:
        self.waiters: list[tuple[_PairRun, str]] = []
        self.scope: anyio.CancelScope | None = None
        self.reply: Reply | None = None
        self.is_cancelled = False

    def cancel(self) -> None:
        """Nobody waits for it any more; a job that has not begun yet ends as soon as it does."""
        self.is_cancelled = True
        if self.scope is not None:
            self.scope.cancel()


class _PairRun:
    """One distinct summary of a group: its program, its cost, and the rows that have exactly this text."""

    def __init__(self, pair: Pair, running: Running) -> None:
        self.rows = [pair]
        self.running = running
        self.usage = Usage()
        self.jobs: dict[str, _Job] = {}
        self.is_decided = False


class _GroupRun:
    """The pairs of one document on their way through the engine."""

    def __init__(self, scheduler: Scheduler, group: DocumentGroup, outcomes: MemoryObjectSendStream[Outcome]) -> None:
        self.scheduler = scheduler
        self.group = group
        self.outcomes = outcomes
        self.assembler: GroupAssembler = scheduler.assembler.for_group()
        self.replica = scheduler.replicas.home(group.pairs[0].document_hash)
        self.admission = scheduler.replicas.admissions[self.replica]
        self.prefixes = SharedPrefixes(self.admission)
        self.assembling = anyio.Lock()
        self.jobs: dict[object, _Job] = {}
        self.first_ids: dict[Prompt, list[int]] = {}
        self.finished: list[_PairRun] = []
        self.has_finished = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Signals `task_status` once the group is admitted, which is when the next group may be looked at."""
        pair_runs = await anyio.to_thread.run_sync(self._start_pairs)
        async with self.admission.group(len(self.prefixes.first)), anyio.create_task_group() as tasks:
            for pair_run in pair_runs:
                self._submit_wanted(pair_run, tasks)
            task_status.started()
            await self._send_finished(len(pair_runs))

    def _start_pairs(self) -> list[_PairRun]:
        """Cut summaries and documents, and tokenise the first requests, in a worker thread."""
        distinct: dict[str, _PairRun] = {}
        for pair in self.group.pairs:
            if self.scheduler.sampling.is_random:
                distinct[f"row {pair.row}"] = _PairRun(pair, Running(self.scheduler.paradigm(pair)))
            elif pair.summary in distinct:
                distinct[pair.summary].rows.append(pair)
            else:
                distinct[pair.summary] = _PairRun(pair, Running(self.scheduler.paradigm(pair)))
        self._assemble_first(list(distinct.values()))
        return list(distinct.values())

    def _assemble_first(self, pair_runs: list[_PairRun]) -> None:
        """Tokenise the first requests and find the prefix that they share."""
        for pair_run in pair_runs:
            for request in pair_run.running.wanted:
                self.first_ids[request.prompt] = self.assembler.assemble(request.prompt)
        self.prefixes.take(iter(self.first_ids.values()))

    def _submit_wanted(self, pair_run: _PairRun, tasks: TaskGroup) -> None:
        running = pair_run.running
        while running.wanted and running.findings is None:
            request = running.wanted.pop(0)
            if pair_run.is_decided:
                running.take(_cancelled(request.key))
            else:
                self._submit(pair_run, request, tasks)
        if running.findings is not None and not pair_run.jobs:
            self.finished.append(pair_run)
            self.has_finished.set()

    def _submit(self, pair_run: _PairRun, request: Request, tasks: TaskGroup) -> None:
        row = pair_run.rows[0].row
        is_shared = not self.scheduler.sampling.is_random
        identity = _identity(request) if is_shared else (row, request.key)
        job = self.jobs.get(identity)
        if job is None:
            job = self.jobs[identity] = _Job()
            tasks.start_soon(self._answer, job, request, row, tasks)
        if job.reply is not None:
            pair_run.running.take(_for_waiter(job.reply, request.key, is_first=False))
            return
        job.waiters.append((pair_run, request.key))
        pair_run.jobs[request.key] = job

    async def _answer(self, job: _Job, request: Request, row: int, tasks: TaskGroup) -> None:
        if self.scheduler.decides is None:
            job.reply = await self._ask(request, row)
        elif not job.is_cancelled:
            with anyio.CancelScope() as job.scope:
                job.reply = await self._ask(request, row)
        if job.reply is None:
            return
        is_first = True
        while job.waiters:
            pair_run, key = job.waiters.pop(0)
            del pair_run.jobs[key]
            reply = _for_waiter(job.reply, key, is_first=is_first)
            is_first = False
            pair_run.usage += reply.usage
            pair_run.running.take(reply)
            self._cancel_if_decided(pair_run)
            self._submit_wanted(pair_run, tasks)

    async def _ids_of(self, prompt: Prompt) -> list[int]:
        """A first request's ids are there; a follow-up is tokenised in a worker thread, one at a time."""
        ids = self.first_ids.pop(prompt, None)
        if ids is not None:
            return ids
        async with self.assembling:
            return await anyio.to_thread.run_sync(self.assembler.assemble, prompt)

    async def _ask(self, request: Request, row: int) -> Reply:
        ids = await self._ids_of(request.prompt)
        output_tokens = request.max_tokens if isinstance(request, Write) else 1
        limit = self.scheduler.engine.capacity.max_model_len
        if len(ids) + output_tokens > limit:
            message = f"the prompt has {len(ids)} tokens and {output_tokens} are reserved, the model takes {limit}"
            return Failed(key=request.key, status="too_long", message=message)
        with self.prefixes.own_tokens(ids) as own_tokens:
            await self.admission.acquire(self.group.number, own_tokens + output_tokens)
            self.scheduler.progress.enter_engine()
            try:
                return await self._call_engine(request, ids, row)
            except RequestError as error:
                return Failed(key=request.key, status=error.status, message=str(error))
            finally:
                self.scheduler.progress.leave_engine()
                self.admission.release(own_tokens + output_tokens)

    async def _call_engine(self, request: Request, ids: list[int], row: int) -> Reply:
        engine, priority = self.scheduler.engine, self.group.number
        if isinstance(request, Choose):
            labels = self.scheduler.label_ids(request)
            chosen = await engine.choose(ids, labels, priority=priority, replica=self.replica)
            self.scheduler.progress.add_tokens(chosen.usage)
            return Chosen(key=request.key, logprobs=chosen.logprobs, usage=chosen.usage, label=chosen.label)
        written = await engine.write(
            ids,
            max_tokens=request.max_tokens,
            stop=request.stop,
            schema=request.schema,
            priority=priority,
            replica=self.replica,
            temperature=self.scheduler.sampling.temperature,
            seed=self.scheduler.sampling.seed_of(row, request.key),
        )
        self.scheduler.progress.add_tokens(written.usage)
        return Written(key=request.key, text=written.text, ids=written.ids, finish=written.finish, usage=written.usage)

    def _cancel_if_decided(self, pair_run: _PairRun) -> None:
        """Early exit: no more is asked for this pair, and what only it waits for is cancelled."""
        decides, running = self.scheduler.decides, pair_run.running
        if decides is None or running.findings is not None or not decides(running.findings_so_far):
            return
        pair_run.is_decided = True
        jobs, pair_run.jobs = pair_run.jobs, {}
        for key, job in jobs.items():
            job.waiters.remove((pair_run, key))
            if not job.waiters and job.reply is None:
                job.cancel()
                self.jobs = {identity: each for identity, each in self.jobs.items() if each is not job}
            running.take(_cancelled(key))

    async def _send_finished(self, num_pair_runs: int) -> None:
        num_sent = 0
        while num_sent < num_pair_runs:
            await self.has_finished.wait()
            self.has_finished = anyio.Event()
            finished, self.finished = self.finished, []
            for pair_run in finished:
                for outcome in _outcomes(pair_run):
                    await self.outcomes.send(outcome)
            num_sent += len(finished)


def _identity(request: Request) -> object:
    """Equal for requests that get equal answers. Prompts share their document's string, so this holds no copies."""
    if isinstance(request, Choose):
        return request.prompt, request.labels
    return request.prompt, request.max_tokens, request.stop, request.schema


def _for_waiter(reply: Reply, key: str, *, is_first: bool) -> Reply:
    """The shared reply under the waiter's own key; only the first waiter is charged for it."""
    usage = reply.usage if is_first else Usage()
    if isinstance(reply, Chosen):
        return Chosen(key=key, logprobs=reply.logprobs, usage=usage, label=reply.label)
    if isinstance(reply, Written):
        return Written(key=key, text=reply.text, ids=reply.ids, finish=reply.finish, usage=usage)
    return Failed(key=key, status=reply.status, message=reply.message, usage=usage)


def _cancelled(key: str) -> Failed:
    return Failed(key=key, status="cancelled", message="not asked: other findings had decided")


def rejected_outcome(rejected: Rejected) -> Outcome:
    """The outcome of a row that no model is asked about."""
    return Outcome(row=rejected.row, text_hash=rejected.text_hash, status=rejected.status, message=rejected.message)


def _outcomes(pair_run: _PairRun) -> list[Outcome]:
    """One outcome a row: the first carries the cost, rows with the same text cost nothing."""
    findings = pair_run.running.findings or ()
    return [
        Outcome(
            row=pair.row,
            text_hash=pair.text_hash,
            findings=findings,
            usage=pair_run.usage if place == 0 else Usage(),
        )
        for place, pair in enumerate(pair_run.rows)
    ]
