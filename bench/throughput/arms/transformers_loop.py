"""A plain transformers loop, as a notebook has it: padded batches, one forward pass for each."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from batchfact.engines.answers import log_sum_exp
from batchfact.records import Choose, Chosen, Reply, Request
from bench.throughput.prompts import answer_in_waves, prepare
from bench.throughput.task import ArmRecord, ArmUnavailableError, Task

BATCH = 8


def score(task: Task) -> ArmRecord:
    if task.reasoning:
        raise ArmUnavailableError("the loop reads labels only")
    import torch
    from transformers import AutoModelForCausalLM

    prompts = prepare(task)
    first = {id(request): prompts.ids(request) for running in prompts.programs for request in running.wanted}
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = AutoModelForCausalLM.from_pretrained(prompts.method.spec.model, dtype=getattr(torch, prompts.dtype))
    model = model.to(task.device).eval()
    num_first = len(prompts.programs[0].wanted)
    calls: list[tuple[int, int, int]] = []
    answered_at: list[float] = []

    def forward(batch: Sequence[list[int]]) -> torch.Tensor:
        """Log-probabilities (len(batch), vocab) of each prompt's next token; padded in front."""
        width = max(map(len, batch))
        ids = torch.tensor([[0] * (width - len(each)) + each for each in batch], device=task.device)
        mask = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in batch], device=task.device)
        places = (mask.cumsum(-1) - 1).clamp(min=0)
        logits = model(
            input_ids=ids, attention_mask=mask, position_ids=places, logits_to_keep=1, use_cache=False
        ).logits
        return logits[:, -1].float().log_softmax(-1).cpu()

    def answer(requests: Sequence[Request]) -> list[Reply]:
        replies: list[Reply] = []
        for start in range(0, len(requests), BATCH):
            batch = requests[start : start + BATCH]
            rows = forward([first[id(request)] for request in batch])
            answered_at.append(time.monotonic())
            for request, row in zip(batch, rows, strict=True):
                assert isinstance(request, Choose)
                logprobs = tuple(log_sum_exp(row[list(ids)].tolist()) for ids in prompts.labels(request))
                replies.append(Chosen(key="", logprobs=logprobs))
                calls.append((len(first[id(request)]), 0, 1))
        return replies

    ready_at = time.monotonic()
    with torch.inference_mode():
        answer_in_waves(prompts.programs, answer)
    return ArmRecord(
        ready_at=ready_at,
        first_row_at=answered_at[(num_first - 1) // BATCH],
        finished_at=answered_at[-1],
        findings=prompts.findings(),
        calls=calls,
        prepare_s=prompts.prepare_s,
        same_prompts=1.0,
    )
