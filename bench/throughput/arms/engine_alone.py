"""The engine as batchfact starts it, fed ids that were made before, in perfect order, with nothing else to do."""

from __future__ import annotations

import time

import anyio
import msgspec

from batchfact.engines.base import Engine
from batchfact.records import Choose, Chosen, Reply, Request, Usage, Written
from bench.throughput.prompts import Prompts, prepare, take_wanted
from bench.throughput.task import ArmRecord, Task


def score(task: Task) -> ArmRecord:
    return anyio.run(_score, task)


async def _score(task: Task) -> ArmRecord:
    prompts = prepare(task, ordered=True)
    wanted = [(running, request, prompts.ids(request)) for running, request in take_wanted(prompts.programs)]
    spec = msgspec.structs.replace(prompts.method.spec, log_file=task.folder / "engine.log")
    calls: list[tuple[int, int, int]] = []
    answered_at: list[float] = []
    scored_at: list[float] = []
    async with prompts.method.engine.open(spec) as engine:
        ready_at = time.monotonic()
        slots = anyio.Semaphore(2 * engine.capacity.max_num_seqs)
        async with anyio.create_task_group() as tasks:

            async def ask(running: object, request: Request, ids: list[int]) -> None:
                reply, usage = await _ask(engine, prompts, request, ids)
                slots.release()
                calls.append((usage.prompt, usage.cached, usage.output))
                answered_at.append(time.monotonic())
                program = by_id[id(running)]
                program.take(reply)
                if program.findings is not None:
                    scored_at.append(time.monotonic())
                for each, follow_up in take_wanted([program]):
                    await slots.acquire()
                    tasks.start_soon(ask, each, follow_up, prompts.ids(follow_up))

            by_id = {id(program): program for program in prompts.programs}
            for running, request, ids in wanted:
                await slots.acquire()
                tasks.start_soon(ask, running, request, ids)
    return ArmRecord(
        ready_at=ready_at,
        first_row_at=scored_at[0],
        finished_at=answered_at[-1],
        findings=prompts.findings(),
        calls=calls,
        prepare_s=prompts.prepare_s,
        same_prompts=1.0,
    )


async def _ask(engine: Engine, prompts: Prompts, request: Request, ids: list[int]) -> tuple[Reply, Usage]:
    if isinstance(request, Choose):
        chosen = await engine.choose(ids, prompts.labels(request), priority=0, replica=0)
        return Chosen(key=request.key, logprobs=chosen.logprobs), chosen.usage
    text = await engine.write(
        ids, max_tokens=request.max_tokens, stop=request.stop, schema=request.schema, priority=0, replica=0
    )
    return Written(key=request.key, text=text.text, ids=text.ids, finish=text.finish), text.usage
