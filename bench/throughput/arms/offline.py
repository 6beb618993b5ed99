"""vLLM's own offline class, as people write it: one call over all prompts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from batchfact.engines.tokenizer import FastTokenizer
from batchfact.engines.vllm import choose_params, greedy_params, read_choice, read_text
from batchfact.records import Choose, Chosen, Reply, Request, Written
from bench.throughput.prompts import Prompts, answer_in_waves, prepare
from bench.throughput.task import ArmRecord, Task

Send = Callable[[Any, Sequence[Request], Sequence[Any]], Sequence[Any]]
"""Engine, requests and their sampling parameters to outputs."""


def chat(task: Task) -> ArmRecord:
    """`LLM.chat` over all conversations in file order; plain text where the model has no chat format."""
    prompts = prepare(task, as_text=True)
    # A script has its messages as they are: reading ours back from a prompt is no part of its time.
    first = {id(request): prompts.conversation(request) for running in prompts.programs for request in running.wanted}

    def send(llm: Any, requests: Sequence[Request], params: Sequence[Any]) -> Sequence[Any]:
        conversations = [
            first.pop(id(request)) if id(request) in first else prompts.conversation(request) for request in requests
        ]
        if not conversations[0].messages:
            return llm.generate([each.open_turn for each in conversations], params, use_tqdm=False)
        messages = [
            [*({"role": turn.role, "content": turn.content} for turn in each.messages), _opened(each.open_turn)]
            for each in conversations
        ]
        return llm.chat(messages, params, use_tqdm=False, add_generation_prompt=False, continue_final_message=True)

    return _measure(task, prompts, send)


def generate(task: Task) -> ArmRecord:
    """`LLM.generate` over ids that were made before, sorted by document."""
    prompts = prepare(task, ordered=True)
    return _measure(task, prompts, _sender_of_ids(prompts))


def without_cache(task: Task) -> ArmRecord:
    """`LLM.generate` with prefix caching off, as MiniCheck's `LLMCheck` calls it by default."""
    prompts = prepare(task)
    return _measure(task, prompts, _sender_of_ids(prompts), enable_prefix_caching=False)


def _sender_of_ids(prompts: Prompts) -> Send:
    first = {id(request): prompts.ids(request) for running in prompts.programs for request in running.wanted}

    def send(llm: Any, requests: Sequence[Request], params: Sequence[Any]) -> Sequence[Any]:
        ids = [first.pop(id(request)) if id(request) in first else prompts.ids(request) for request in requests]
        return llm.generate([{"prompt_token_ids": each} for each in ids], params, use_tqdm=False)

    return send


def _measure(task: Task, prompts: Prompts, send: Send, **settings: Any) -> ArmRecord:
    from vllm import LLM

    tokenizer = prompts.method.tokenizer
    assert isinstance(tokenizer, FastTokenizer)
    llm = LLM(
        model=str(prompts.method.spec.model),
        dtype=prompts.dtype,
        hf_overrides=prompts.hf_overrides,
        max_model_len=task.max_model_len,
        kv_cache_memory_bytes=task.kv_cache_bytes,
        enforce_eager=not task.compile,
        seed=0,
        **settings,
    )
    calls: list[tuple[int, int, int]] = []
    asked: list[list[int]] = []

    def answer(requests: Sequence[Request]) -> list[Reply]:
        params = [
            choose_params(prompts.labels(request))
            if isinstance(request, Choose)
            else greedy_params(request.max_tokens, request.stop, request.schema)
            for request in requests
        ]
        outputs = send(llm, requests, params)
        replies: list[Reply] = []
        for request, output in zip(requests, outputs, strict=True):
            asked.append(output.prompt_token_ids)
            if isinstance(request, Choose):
                chosen = read_choice(output, prompts.labels(request))
                usage = chosen.usage
                replies.append(Chosen(key="", logprobs=chosen.logprobs))
            else:
                text = read_text(output, tokenizer, request.stop)
                usage = text.usage
                ids = text.ids if prompts.as_text is None else tuple(prompts.as_text.encode(text.text, special=False))
                replies.append(Written(key="", text=text.text, ids=ids, finish=text.finish))
            calls.append((usage.prompt, usage.cached, usage.output))
        return replies

    ready_at = time.monotonic()
    answer_in_waves(prompts.programs, answer)
    finished_at = time.monotonic()
    return ArmRecord(
        ready_at=ready_at,
        first_row_at=finished_at,  # the call gives nothing before it gives all
        finished_at=finished_at,
        findings=prompts.findings(),
        calls=calls,
        prepare_s=prompts.prepare_s,
        same_prompts=_share_same(task, asked),
    )


def _share_same(task: Task, asked: Sequence[list[int]]) -> float:
    """The share of the first prompts that have exactly the ids of batchfact's."""
    reference = prepare(task)
    ours = {tuple(reference.ids(request)) for running in reference.programs for request in running.wanted}
    first = asked[: sum(len(running.wanted) for running in reference.programs)]
    return sum(tuple(ids) in ours for ids in first) / len(first)


def _opened(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}
