"""Ray Data LLM: a data set of chat rows through Ray's vLLM processor.

Its engine starts in an actor of each execution, unseen from here. So one row is scored first, and what that takes
counts as the start of the execution over all rows, and not once more as that of the process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from batchfact.records import Choose, Chosen, Reply, Request
from bench.throughput.prompts import Prompts, answer_in_waves, prepare
from bench.throughput.task import ArmRecord, ArmUnavailableError, Calls, Task

SLOTS = 8
"""Ray's own count of cores: each of its stages holds one while it waits for the others."""


def score(task: Task) -> ArmRecord:
    if task.reasoning:
        raise ArmUnavailableError("a row has one request: no request can follow from an answer")
    try:
        import ray
        from ray.data import llm as ray_llm
    except ImportError as error:
        raise ArmUnavailableError(f"Ray Data LLM cannot be imported: {error}") from error
    prompts = prepare(task, as_text=True)
    requests = [request for running in prompts.programs for request in running.wanted]
    if not prompts.conversation(requests[0]).messages:
        raise ArmUnavailableError("it takes chat messages only, and this model's prompts are plain text")
    runtime = {"worker_process_setup_hook": _make_event_loop}
    # On a CPU there is a GPU by name alone: the engine's stage asks for one, whatever its bundles say, and waits.
    num_gpus = None if task.device == "cuda" else 1
    ray.init(num_cpus=SLOTS, num_gpus=num_gpus, include_dashboard=False, log_to_driver=False, runtime_env=runtime)
    rows = [_row(place, request, prompts) for place, request in enumerate(requests)]
    processor = _processor(ray_llm, task, prompts)
    started = time.monotonic()
    _take(ray, processor, rows[:1])
    start_s = time.monotonic() - started
    ready_at = time.monotonic() + start_s
    answers = _take(ray, processor, rows)
    finished_at = time.monotonic()
    if finished_at <= ready_at:
        raise RuntimeError("all rows took no longer than one: too few to measure")
    calls: Calls = []
    replies: dict[int, Reply] = {}
    for found in answers:
        request = requests[found["place"]]
        assert isinstance(request, Choose)
        token = int(found["generated_tokens"][0])
        label = next(number for number, ids in enumerate(prompts.labels(request)) if token in ids)
        replies[found["place"]] = Chosen(key="", logprobs=(), label=label)

    def answer(wanted: Sequence[Request]) -> Sequence[Reply]:
        return [replies[place] for place in range(len(wanted))]

    answer_in_waves(prompts.programs, answer)
    return ArmRecord(
        ready_at=ready_at,
        first_row_at=finished_at,
        finished_at=finished_at,
        findings=prompts.findings(),
        calls=calls,  # Ray tells no cached tokens
        prepare_s=prompts.prepare_s,
        probe_s=start_s,
    )


def _make_event_loop() -> None:
    """Ray Data asks for the main thread's event loop; Ray takes uvloop where it is there, which makes none unasked."""
    asyncio.set_event_loop(asyncio.new_event_loop())


def _row(place: int, request: Request, prompts: Prompts) -> dict[str, Any]:
    assert isinstance(request, Choose)
    conversation = prompts.conversation(request)
    turns = [{"role": turn.role, "content": turn.content} for turn in conversation.messages]
    # Ray's chat stage goes on in the last turn where that is the assistant's.
    messages = [*turns, {"role": "assistant", "content": conversation.open_turn}]
    allowed = [each for label in prompts.labels(request) for each in label]
    return {"place": place, "messages": messages, "allowed": allowed}


def _processor(ray_llm: Any, task: Task, prompts: Prompts) -> Any:
    config = ray_llm.vLLMEngineProcessorConfig(
        model_source=str(prompts.method.spec.model),
        concurrency=1,
        batch_size=64,
        accelerator_type=None,
        log_engine_metrics=False,
        placement_group_config=None if task.device == "cuda" else {"bundles": [{"CPU": 1}]},
        engine_kwargs={
            "dtype": prompts.dtype,
            "hf_overrides": prompts.hf_overrides,
            "max_model_len": task.max_model_len,
            "kv_cache_memory_bytes": task.kv_cache_bytes,
            "enforce_eager": not task.compile,
            "distributed_executor_backend": "mp",
        },
    )
    build = getattr(ray_llm, "build_processor", None) or ray_llm.build_llm_processor

    def to_request(row: dict[str, Any]) -> dict[str, Any]:
        params = {"max_tokens": 1, "temperature": 0.0, "allowed_token_ids": list(row["allowed"]), "detokenize": False}
        return {"place": row["place"], "messages": row["messages"], "sampling_params": params}

    def to_answer(row: dict[str, Any]) -> dict[str, Any]:
        return {"place": row["place"], "generated_tokens": row["generated_tokens"]}

    return build(config, preprocess=to_request, postprocess=to_answer)


def _take(ray: Any, processor: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    taken: list[dict[str, Any]] = processor(ray.data.from_items(rows)).take_all()
    return taken
