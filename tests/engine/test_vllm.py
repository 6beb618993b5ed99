"""The real vLLM on the small default model."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import msgspec
import psutil
import pytest
from anyio.lowlevel import checkpoint

from batchfact.assembly import Assembler
from batchfact.engines.base import EngineSpec, LabelIds, RequestError
from batchfact.engines.vllm import VllmEngine, factory
from batchfact.errors import UsageError
from batchfact.records import Data, Message, Prompt, Template

pytestmark = pytest.mark.anyio

DOCUMENT = (
    "The council of the small harbour town met on Tuesday evening. After two hours of debate it voted to repair the "
    "old lighthouse, which was damaged in the storm of 1987, and to open it to visitors next spring. The mayor, Anna "
    "Lindqvist, said the work would cost about two million euros, half of it paid by the state. Fishermen asked that "
    "the light stay on while the work goes on. "
) * 3
STORY = "Tell me a very long story about a ship, with many chapters."


def asked(engine: VllmEngine, question: str) -> list[int]:
    chat = engine.tokenizer.render_chat([Message("user", question)])
    assert chat is not None
    return engine.tokenizer.encode(chat, special=True)


def yes_no(engine: VllmEngine) -> LabelIds:
    return Assembler(engine.tokenizer).label_ids((Template("<|im_start|>assistant\n"),), ("Yes", "No"))


def checks(engine: VllmEngine, windows: list[str]) -> list[list[int]]:
    chat = engine.tokenizer.render_chat([Message("user", "$")])
    assert chat is not None
    head, _, tail = chat.partition("$")
    group = Assembler(engine.tokenizer).for_group()
    prompts: list[Prompt] = [
        (Template(f"{head}Document:\n"), Data(DOCUMENT), Template("\n\nSentence:\n"), Data(window), Template(tail))
        for window in windows
    ]
    return [group.assemble(prompt) for prompt in prompts]


async def write(engine: VllmEngine, ids: list[int], max_tokens: int, stop: tuple[str, ...] = (), schema=None):
    return await engine.write(ids, max_tokens=max_tokens, stop=stop, schema=schema, priority=0, replica=0)


def unfinished(engine: VllmEngine) -> int:
    return engine._llm.get_num_unfinished_requests()


async def submitted(engine: VllmEngine) -> None:
    while not unfinished(engine):
        await checkpoint()


async def test_log_probabilities_are_those_of_a_plain_forward_pass(engine, spec):
    import torch
    from transformers import AutoModelForCausalLM

    labels = yes_no(engine)
    model = AutoModelForCausalLM.from_pretrained(str(spec.model), dtype=torch.float32, local_files_only=True)
    for ids in checks(engine, ["The lighthouse will open next spring.", "The mayor is called Peter."]):
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1]
        full = torch.log_softmax(logits, dim=-1)
        expected = [torch.logsumexp(full[list(each)], dim=0).item() for each in labels]
        answer = await engine.choose(ids, labels, priority=0, replica=0)
        # The layers below the head compute in bfloat16.
        tolerance = 1e-3 if factory.describe(spec)["dtype"] == "float32" else 0.3
        assert answer.logprobs == pytest.approx(expected, abs=tolerance)
        assert answer.usage.prompt == len(ids)


async def test_windows_sent_together_share_their_documents_prefix(engine):
    prompts = checks(engine, [f"Window number {number} says something." for number in range(8)])
    labels = yes_no(engine)
    answers = await asyncio.gather(*(engine.choose(ids, labels, priority=0, replica=0) for ids in prompts))
    common = next(at for at, ids in enumerate(zip(*prompts, strict=False)) if len(set(ids)) > 1)
    shared = common // engine.capacity.block_tokens * engine.capacity.block_tokens
    cached = sorted(answer.usage.cached for answer in answers)
    assert shared > 0
    assert cached[1:] == [shared] * 7


async def test_text_ends_before_the_stop_string_and_its_ids_decode_to_it(engine):
    ids = asked(engine, STORY)
    free = await write(engine, ids, 48)
    assert free.finish == "length"
    word = free.text.split()[6]
    for stop in (word, word[1:], f" {word}"):
        written = await write(engine, ids, 48, (stop,))
        assert written.finish == "stop"
        assert written.text == free.text[: free.text.find(stop)]
        assert engine.tokenizer.decode(written.ids) == written.text


async def test_an_end_of_turn_token_is_neither_in_the_text_nor_in_the_ids(engine):
    written = await write(engine, asked(engine, "Answer with one word: is water wet?"), 200)
    assert written.finish == "stop"
    assert not set(written.ids) & engine.tokenizer.special_ids
    assert written.usage.output == len(written.ids) + 1


async def test_a_schema_is_followed(engine):
    """Its texts are too short for the guard against loops, which so small a model falls into."""
    schema = {
        "type": "object",
        "properties": {
            "answer": {"type": "string", "enum": ["Yes", "No"]},
            "claims": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 2, "maxItems": 3},
        },
        "required": ["answer", "claims"],
        "additionalProperties": False,
    }
    written = await write(engine, asked(engine, "Is the sky green? List claims."), 200, schema=json.dumps(schema))
    reply = json.loads(written.text)
    assert reply["answer"] in ("Yes", "No")
    assert 2 <= len(reply["claims"]) <= 3


async def test_a_loop_is_ended(engine):
    """A schema that allows one word alone keeps even a willing model in a loop."""
    schema = json.dumps({"type": "array", "items": {"const": "again"}, "minItems": 400})
    written = await write(engine, asked(engine, "Say again."), 1500, schema=schema)
    assert written.finish == "repetition"
    assert written.usage.output < 200


async def test_cancelling_frees_the_request(engine):
    """Both by asyncio and by an anyio scope, which cancels again at every await."""
    ids = asked(engine, STORY)
    schema = json.dumps({"type": "array", "items": {"type": "string", "minLength": 5}, "minItems": 500})

    task = asyncio.create_task(write(engine, ids, 1500, schema=schema))
    await submitted(engine)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert unfinished(engine) == 0

    async with anyio.create_task_group() as group:
        group.start_soon(write, engine, ids, 1500, (), schema)
        await submitted(engine)
        group.cancel_scope.cancel()
    assert unfinished(engine) == 0
    assert (await write(engine, ids, 4)).finish == "length"


async def test_an_over_long_prompt_fails_alone(engine):
    labels = yes_no(engine)
    long = asked(engine, "word " * 3000)
    with pytest.raises(RequestError, match="longer than the maximum model length of 2048"):
        await engine.choose(long, labels, priority=0, replica=0)
    with pytest.raises(RequestError, match="longer than the maximum model length of 2048"):
        await write(engine, long[:2048], 8)
    assert len((await engine.choose(long[:2047], labels, priority=0, replica=0)).logprobs) == 2


async def test_an_interrupt_to_all_processes_leaves_the_engine_up(engine):
    children = [child for child in psutil.Process().children(recursive=True) if "VLLM" in child.cmdline()[0]]
    assert children
    for child in children:
        child.send_signal(signal.SIGINT)
    answer = await engine.choose(asked(engine, "Is it so?"), yes_no(engine), priority=0, replica=0)
    assert len(answer.logprobs) == 2


async def test_capacity_is_what_the_engine_holds(engine, spec):
    capacity = engine.capacity
    assert capacity.max_model_len == 2048
    assert capacity.num_replicas == 1
    assert capacity.kv_tokens >= 2048
    assert capacity.kv_tokens % capacity.block_tokens == 0


async def test_settings_that_vllm_refuses_are_a_usage_error(spec, tmp_path):
    refused = EngineSpec(model=spec.model, dtype="float7", log_file=tmp_path / "log")
    with pytest.raises(UsageError, match="vLLM refuses"):
        async with factory.open(refused):
            pass


async def test_seeded_requests_that_do_not_fit_one_batch_are_all_answered(spec, tmp_path):
    """Cut into chunks, as they were, a seeded prompt ends vLLM's worker on a CPU."""
    sampling = msgspec.structs.replace(
        spec, samples=True, max_model_len=1024, log_file=tmp_path / "log", extra={"max_num_batched_tokens": "1024"}
    )
    async with factory.open(sampling) as engine:
        ids = engine.tokenizer.encode(DOCUMENT * 2, special=False)
        prompts = [[start, *ids] for start in range(100, 108)]
        assert len(ids) < 1000 < len(prompts) * len(ids)
        answers = await asyncio.gather(
            *(
                engine.write(
                    prompt, max_tokens=4, stop=(), schema=None, priority=0, replica=0, temperature=0.7, seed=seed
                )
                for seed, prompt in enumerate(prompts)
            )
        )
        assert [answer.usage.output for answer in answers] == [4] * 8


# No `__main__` guard, on purpose.
SCRIPT = """
import asyncio, sys
from pathlib import Path
import psutil
from batchfact.engines.base import EngineSpec
from batchfact.engines.vllm import factory
from batchfact.errors import RunFailedError

model, log_file, kv_bytes = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])

async def main():
    spec = EngineSpec(model=model, kv_cache_bytes=kv_bytes, max_model_len=2048, log_file=log_file)
    async with factory.open(spec) as engine:
        ids = engine.tokenizer.encode("Is it so?", special=False)
        answer = await engine.choose(ids, ((10,), (11,)), priority=0, replica=0)
        print("labels", len(answer.logprobs))
        for child in psutil.Process().children(recursive=True):
            if "EngineCore" in child.cmdline()[0]:
                child.kill()
        try:
            while True:
                await engine.choose(ids, ((10,), (11,)), priority=0, replica=0)
        except RunFailedError as error:
            print(error)

try:
    asyncio.run(main())
except RunFailedError as error:
    print(error)
"""


async def run_script(spec: EngineSpec, folder: Path, kv_bytes: int) -> list[str]:
    """Lines of its standard output; its standard error must be empty."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, str(script), str(spec.model), str(folder / "engine.log"), str(kv_bytes)]
    done = await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


async def test_a_script_without_a_guard_prints_only_its_own_lines_and_is_told_when_the_engine_dies(spec, tmp_path):
    first, second = await run_script(spec, tmp_path, 1 << 30)
    assert first == "labels 2"
    assert second.startswith("the engine died")
    assert second.endswith(f"its log is {tmp_path / 'engine.log'}")
    assert (tmp_path / "engine.log").stat().st_size > 0


async def test_too_little_memory_is_told_with_the_reason_from_the_log(spec, tmp_path):
    (told,) = await run_script(spec, tmp_path, 1 << 20)
    # What vLLM says depends on the dtype: not a block fits, or too few for one request.
    reasons = ("No available memory for the cache blocks", "To serve at least one request")
    assert told.startswith(tuple(f"the engine did not start (ValueError: {reason}" for reason in reasons))
    assert told.endswith(f"its log is {tmp_path / 'engine.log'}")
