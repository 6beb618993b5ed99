"""The real vLLM with two workers: two copies of the model, and one copy in two parts, a core each."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from batchfact.engines.base import EngineSpec
from batchfact.engines.vllm import VllmEngine, factory
from batchfact.errors import UsageError
from tests.engine.test_vllm import checks, yes_no
from tests.tiny_models import save_llama

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two workers need two cores"),
]

WINDOWS = ["The lighthouse will open next spring.", "The mayor is called Peter.", "Fishermen asked for silence."]


async def margins(engine: VllmEngine, replica: int) -> tuple[list[float], list[int]]:
    """Yes against No for each window, one after the other, and the prompt tokens that came from the cache."""
    labels = yes_no(engine)
    answers = [await engine.choose(ids, labels, priority=0, replica=replica) for ids in checks(engine, WINDOWS)]
    return [each.logprobs[0] - each.logprobs[1] for each in answers], [each.usage.cached for each in answers]


async def test_requests_pinned_to_a_replica_find_their_prefix_there_and_nowhere_else(spec: EngineSpec, quiet_imports):
    two = msgspec.structs.replace(spec, data_parallel_size=2, kv_cache_bytes=1 << 28)
    async with factory.open(two) as engine:
        assert engine.capacity.num_replicas == 2
        first, cached_first = await margins(engine, 0)
        second, cached_second = await margins(engine, 1)
        both = await asyncio.gather(margins(engine, 0), margins(engine, 1))

    assert cached_first[0] == cached_second[0] == 0, "neither replica had seen the document"
    assert all(cached_first[1:]) and cached_first[1:] == cached_second[1:]
    assert first == second
    assert [each for each, _ in both] == [pytest.approx(first, abs=0.3)] * 2


async def test_a_model_in_two_parts_answers_as_a_plain_forward_pass(tmp_path: Path, quiet_imports):
    """A random model whose heads can be parted: the default model has nine."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = save_llama(tmp_path / "model", hidden_size=128)
    two = EngineSpec(
        model=folder,
        dtype="float32",
        max_model_len=512,
        kv_cache_bytes=1 << 28,
        tensor_parallel_size=2,
        log_file=tmp_path / "log",
    )
    labels = ((10,), (11, 12))
    async with factory.open(two) as engine:
        ids = engine.tokenizer.encode("The council met. It voted to repair the old lighthouse.", special=False)
        answer = await engine.choose(ids, labels, priority=0, replica=0)
        again = await engine.choose(ids, labels, priority=0, replica=0)

    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32, local_files_only=True)
    with torch.no_grad():
        full = torch.log_softmax(model(torch.tensor([ids])).logits[0, -1], dim=-1)
    expected = [torch.logsumexp(full[list(each)], dim=0).item() for each in labels]
    assert answer.logprobs == pytest.approx(expected, abs=1e-3)
    assert again.logprobs == pytest.approx(expected, abs=1e-3)


async def test_heads_that_cannot_be_parted_are_a_usage_error(spec: EngineSpec, quiet_imports):
    with pytest.raises(UsageError, match="attention heads"):
        async with factory.open(msgspec.structs.replace(spec, tensor_parallel_size=2)):
            pass
