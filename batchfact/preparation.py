"""Everything that a run decides and checks before a model loads: inputs, output, model, prompts, identity.

A configuration flows in; a `Prepared` run flows out, or a UsageError. No engine is started here.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from batchfact.assembly import Assembler
from batchfact.calibration import read_calibration
from batchfact.config import FoldPolicy, Identity, RunConfig
from batchfact.demonstrations import Shown, prepare_shots
from batchfact.disk_space import check_journal_space
from batchfact.engines.base import EngineFactory, EngineSpec, EstimatingTokenizer, Server, Tokenizer, find_engine
from batchfact.engines.model_facts import no_encoder_decoder
from batchfact.errors import UsageError
from batchfact.journal import Journal, default_folder, read_run
from batchfact.metadata import describe_run
from batchfact.models import ModelEntry, find_model, locate, model_digest
from batchfact.paradigms import METHOD_VERSION, make_paradigm, template_names
from batchfact.paradigms.contexts import Contexts, Counters, Room
from batchfact.paradigms.fold import fold_outcome
from batchfact.paradigms.program import Paradigm, Running
from batchfact.paradigms.shots import held_out
from batchfact.prompts.loader import PromptBook, shipped_texts
from batchfact.records import DocumentGroup, Outcome, Template
from batchfact.run_log import incidents, throughput
from batchfact.settings import fitted_otherwise, method_facts, reasons, unfit
from batchfact.sink import check_output
from batchfact.source import Source, open_source

BYTES_PER_TOKEN = 4.2
"""English text, for estimates before anything is tokenised."""
COMPILE_BYTES = 20 << 20
"""Size of the rows to score, as their files have it, above which compiling pays: it takes about two minutes, and
makes prefill about 1.3 times faster."""


class Method(Struct, frozen=True, kw_only=True):
    """How pairs are scored: what the command line, the Python API and `explain` share.

    `entry` is None for a model that a server runs. `notes` are what was decided that a person should know.
    """

    entry: ModelEntry | None
    reasoning: bool
    engine: EngineFactory
    spec: EngineSpec
    tokenizer: Tokenizer
    paradigm: Paradigm
    prompts: PromptBook
    identity: dict[str, Any]
    shown: Shown = Shown()
    notes: tuple[str, ...] = ()
    max_model_len: int | None = None
    """Tokens of the longest prompt with its answer; None where the engine only knows once it has started."""


class Prepared(Struct, frozen=True, kw_only=True):
    """A run that has passed every check and only needs its engine."""

    config: RunConfig
    source: Source
    num_rows: int
    """Rows to score, about so many where the run is one shard of a job array."""
    method: Method
    journal: Path
    is_retried: Callable[[Outcome], bool] | None


def prepare(config: RunConfig) -> Prepared:
    """Check everything that can be checked without a model in memory.

    Raises: UsageError for the first thing that is wrong, with the way out.
    """
    identity = config.identity
    source = open_source(
        config.inputs, document_column=identity.document_column, summary_column=identity.summary_column
    )
    shard = config.runtime.shard
    journal = (config.runtime.journal or default_folder(config.output)) / (shard.folder if shard else "")
    check_output(source, config.output, config.columns, will_resume=_is_journal_of(journal, config.output))
    # Of a job shard only about so many: which rows are its own is known once they are read.
    num_rows = -(-min(source.num_rows, config.runtime.limit or source.num_rows) // (shard.count if shard else 1))
    check_journal_space(
        journal,
        source,
        group=config.runtime.group,
        look_ahead_rows=config.runtime.look_ahead_rows,
        look_ahead_bytes=config.runtime.look_ahead_bytes,
        num_rows=num_rows,
        restart=config.runtime.restart,
    )
    log_file = None if config.runtime.verbose else journal / "engine.log"
    method = prepare_method(config, log_file=log_file, compiles=compiles(config, source, num_rows), source=source)
    return Prepared(
        config=config,
        source=source,
        num_rows=num_rows,
        method=method,
        journal=journal,
        is_retried=_retries(config),
    )


def prepare_method(
    config: RunConfig,
    *,
    log_file: Path | None,
    compiles: bool,
    source: Source | None = None,
    shown: Shown | None = None,
) -> Method:
    """Find model, engine, prompts, demonstrations and paradigm.

    Args:
        source: the input, whose documents are not shown as demonstrations; None where it is not known yet.
        shown: the demonstrations, where they were drawn before; None draws them.
    Raises: UsageError if the model or the engine cannot be had, a template does not fit the model, or the
        demonstrations cannot be used.
    """
    identity, runtime = config.identity, config.runtime
    server = _server(config)
    entry = find_model(identity.model) if server is None else None
    name, note = resolve_engine(runtime.engine, entry)
    engine_notes = () if note is None else (note,)
    engine = find_engine(name)
    reasoning = reasons(identity, entry)
    spec = EngineSpec(
        model=locate(entry) if entry else Path(identity.model),
        max_model_len=identity.max_model_len,
        dtype=identity.dtype,
        quantization=identity.quantization,
        tensor_parallel_size=runtime.tensor_parallel_size,
        data_parallel_size=runtime.data_parallel_size,
        gpu_memory_utilization=runtime.gpu_memory_utilization,
        kv_cache_bytes=runtime.kv_cache_bytes,
        compile=compiles,
        deterministic=identity.deterministic,
        samples=identity.temperature > 0,
        writes=reasoning or identity.label_mode == "parse" or identity.paradigm == "qg-qa",
        log_file=log_file,
        extra=runtime.engine_args,
        server=server,
    )
    described = engine.describe(spec)
    tokenizer = engine.load_tokenizer(spec)
    prompts = make_prompts(identity, entry, tokenizer, reasoning=reasoning)
    known = described.get("max_model_len")
    max_model_len = int(known) if known else spec.max_model_len
    counters = make_counters(tokenizer)
    if shown is None:
        shown = prepare_shots(identity, prompts, counters.prompt, max_model_len, source)
    paradigm = make_paradigm(
        identity,
        prompts,
        reasoning=reasoning,
        demonstrations=shown.prompt,
        contexts=make_contexts(identity, counters, max_model_len),
    )
    facts = _method_identity(identity, entry, spec, described, prompts, shown, reasoning=reasoning)
    return Method(
        entry=entry,
        reasoning=reasoning,
        engine=engine,
        spec=spec,
        tokenizer=tokenizer,
        paradigm=held_out(paradigm, shown.documents) if shown.documents else paradigm,
        prompts=prompts,
        identity=facts,
        shown=shown,
        notes=(
            *engine_notes,
            *_sampling_notes(identity, reasoning=reasoning),
            *_training_notes(identity, entry, prompts, reasoning=reasoning),
            *_calibration_notes(config, entry, facts),
            *_deterministic_notes(described),
        ),
        max_model_len=max_model_len,
    )


def make_counters(tokenizer: Tokenizer) -> Counters:
    """The model's tokens, or an estimate of them where only its server knows."""
    assembler = Assembler(tokenizer)
    ids_a_token = tokenizer.ids_a_token if isinstance(tokenizer, EstimatingTokenizer) else 1
    return Counters(
        text=lambda text: -(-len(tokenizer.encode(text, special=False)) // ids_a_token),
        prompt=lambda prompt: -(-len(assembler.assemble(prompt)) // ids_a_token),
    )


def make_contexts(identity: Identity, counters: Counters, max_model_len: int | None) -> Contexts:
    """What is shown of documents: `--context-tokens` bounds a whole summary's, `--align-sentences` a window's.

    Raises: UsageError for chunks where the longest prompt is not known.
    """
    if identity.long_documents == "chunk" and max_model_len is None:
        raise UsageError("--long-documents chunk needs --max-model-len with this engine")
    room = Room(
        mode=identity.long_documents,
        objective=identity.align_objective,
        model_tokens=max_model_len,
        max_sentences=identity.align_sentences if identity.by_window else None,
        max_tokens=None if identity.by_window else identity.context_tokens,
    )
    return Contexts(room, counters)


def make_prompts(identity: Identity, entry: ModelEntry | None, tokenizer: Tokenizer, *, reasoning: bool) -> PromptBook:
    """The templates in the model's own format and words; those of a server's model are not known here.

    Raises: UsageError if a label word, or a rating, that is chosen by its probability is no single token of the model.
    """
    yes, no = (entry.labels if entry else None) or (" Yes", " No")
    render_chat = tokenizer.render_chat if entry is None or entry.prompt_style == "chat" else (lambda _: None)
    texts = shipped_texts(entry.prompts if entry else "full")
    prompts = PromptBook(render_chat, yes=yes, no=no, texts=texts, reasoning_tokens=identity.reasoning_tokens)
    assembler = Assembler(tokenizer)
    for name in template_names(identity, reasoning=reasoning):
        template = prompts[name]
        cue = template.answer_cue or template.parts[-1]
        is_text = identity.label_mode == "parse" and template.consistent is not None
        if template.labels and isinstance(cue, Template) and not is_text:
            assembler.label_ids((cue,), template.labels)
    return prompts


def compiles(config: RunConfig, source: Source, num_rows: int) -> bool:
    """Whether to compile the model; by itself only for long runs, and where there is a C++ compiler for it."""
    if config.runtime.compile == "auto":
        num_bytes = source.num_bytes * num_rows / max(source.num_rows, 1)
        return num_bytes > COMPILE_BYTES and shutil.which("g++") is not None
    return config.runtime.compile == "on"


def _is_journal_of(journal: Path, output: str) -> bool:
    """Whether an output that exists is this journal's own, so that a run may write it again."""
    kept = read_run(journal)
    return kept is not None and kept.runtime.get("output") == absolute(output)


def absolute(place: str) -> str:
    """A local path from the root, so that a journal is understood from any folder; a URI stays as it is."""
    return place if "://" in place else str(Path(place).expanduser().absolute())


def resolve_engine(name: str, entry: ModelEntry | None) -> tuple[str, str | None]:
    """The engine that `name` means for a model, and what to tell where `auto` took another one than vLLM.


    Raises: UsageError with the install command where there is no engine, or for a model that vLLM does not run.
    """
    is_encoder_decoder = entry is not None and entry.prompt_style == "encoder-decoder"
    if name == "vllm" and entry is not None and is_encoder_decoder:
        raise UsageError(no_encoder_decoder(entry.name))
    if name != "auto":
        return name, None
    if find_spec("vllm") is not None and not is_encoder_decoder:
        return "vllm", None
    if find_spec("torch") is None:
        raise UsageError(
            "no engine is installed: pip install 'batchfact[gpu]' for NVIDIA GPUs, 'batchfact[cpu]' for CPUs on Linux, "
            "'batchfact[transformers]' (slower) anywhere else"
        )
    if entry is not None and is_encoder_decoder:
        return "transformers", f"the transformers engine runs {entry.name}: vLLM runs no encoder-decoder models"
    return "transformers", "the transformers engine, which is slower, runs the model: vLLM is not installed"


def _server(config: RunConfig) -> Server | None:
    runtime = config.runtime
    if runtime.base_url is None:
        return None
    return Server(base_url=runtime.base_url, model=config.identity.model, api_key_env=runtime.api_key_env)


def open_journal(prepared: Prepared) -> Journal:
    """The run's journal, locked.

    Raises: UsageError if it belongs to a run with another identity, or is in use.
    """
    config = prepared.config
    _refuse_other_fold(prepared)
    shard = config.runtime.shard
    return Journal.open(
        prepared.journal,
        {
            "input": prepared.source.fingerprint(),
            **prepared.method.identity,
            **({"shard": str(shard)} if shard else {}),
        },
        {"policy": config.fold, "columns": config.columns},
        _runtime_facts(prepared),
        restart=config.runtime.restart,
    )


def _refuse_other_fold(prepared: Prepared) -> None:
    """Raises: UsageError if rows that early exit left unfinished would be folded in another way."""
    kept = None if prepared.config.runtime.restart else read_run(prepared.journal)
    if kept is None or not kept.runtime.get("early_exit"):
        return
    if msgspec.convert(kept.fold.get("policy"), FoldPolicy) != prepared.config.fold:
        raise UsageError(
            f"the rows in {prepared.journal} were scored with --early-exit under another threshold or aggregation: "
            "their scores are only upper bounds; keep those options, or run with --restart"
        )


def _runtime_facts(prepared: Prepared) -> dict[str, Any]:
    """The runtime section of run.json; an early exit of any earlier run on this journal stays noted."""
    config = prepared.config
    before = None if config.runtime.restart else read_run(prepared.journal)
    had_early_exit = before is not None and bool(before.runtime.get("early_exit"))
    runtime: dict[str, Any] = msgspec.to_builtins(config.runtime, enc_hook=str)
    return {
        **runtime,
        "inputs": [absolute(place) for place in config.inputs],
        "output": absolute(config.output),
        "early_exit": config.runtime.early_exit or had_early_exit,
    }


def metadata(prepared: Prepared) -> dict[str, Any]:
    """What the output file says about how it was made."""
    config, journal = prepared.config, prepared.journal
    return describe_run(
        prepared.method.identity,
        config.fold,
        config.columns,
        _runtime_facts(prepared),
        incidents(journal),
        throughput(journal),
    )


def prove_joins(assembler: Assembler, method: Method, group: DocumentGroup) -> None:
    """Prove on a real document's prompts that assembled ids equal whole-string ids; else join more carefully."""
    requests = [request for pair in group.pairs[:2] for request in Running(method.paradigm(pair)).wanted[:2]]
    assembler.calibrate([request.prompt for request in requests])


def _method_identity(
    identity: Identity,
    entry: ModelEntry | None,
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
        "method_version": METHOD_VERSION,
        "model": _model_name(identity, entry),
        "model_digest": model_digest(spec.model) if entry else "remote",
        "reasoning": reasoning,
        "prompts": {name: prompts.digests[name] for name in chosen},
        "demonstrations": shown.digest,
        "engine": dict(described),
    }


def _model_name(identity: Identity, entry: ModelEntry | None) -> str:
    """The model as an identity names it: a folder by its last part, so that it may be moved."""
    if entry is None:
        return identity.model
    return Path(entry.name).absolute().name if Path(entry.name).is_dir() else entry.name


def _sampling_notes(identity: Identity, *, reasoning: bool) -> tuple[str, ...]:
    writes = reasoning or identity.label_mode == "parse" or identity.paradigm == "qg-qa"
    if identity.temperature > 0 and not writes:
        return ("--temperature changes nothing here: no text is written; add --reasoning or --label-mode parse",)
    return ()


def _training_notes(
    identity: Identity, entry: ModelEntry | None, prompts: PromptBook, *, reasoning: bool
) -> tuple[str, ...]:
    """Where a trained model is asked in a way that it was not trained for."""
    if entry is None or not entry.trained:
        return ()
    notes = []
    trained = [f"{mode.paradigm} {_mode(mode.reasoning)}" for mode in entry.trained]
    asked = f"{identity.paradigm} {_mode(reasoning)}"
    if asked not in trained:
        notes.append(f"{entry.name} is not trained for {asked}, but for {', '.join(trained)}")
    names = template_names(identity, reasoning=reasoning)
    changed = [name for name in names if entry.prompt_digests.get(name, prompts.digests[name]) != prompts.digests[name]]
    if changed:
        notes.append(f"{entry.name} was trained with another text of the prompt {' and '.join(changed)}")
    if unknown := sorted(set(names) - set(entry.prompt_digests)) if entry.prompt_digests else []:
        notes.append(f"{entry.name} was not trained with the prompt {' and '.join(unknown)}")
    return tuple(notes)


def _mode(reasoning: bool) -> str:
    return "with reasoning" if reasoning else "label only"


def _calibration_notes(config: RunConfig, entry: ModelEntry | None, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Where a calibration is for other weights or prompts, or the model's own is for another method."""
    used = config.fold.calibration
    if used is None:
        own = read_calibration(entry.calibration_file) if entry and entry.calibration_file else None
        why = own and unfit(own, method_facts(config.identity, entry), config.fold.aggregation)
        return (f"the model's own calibration is not used: {why}",) if why else ()
    note = fitted_otherwise(used, model_digest=facts["model_digest"], prompts=facts["prompts"])
    return (note,) if note else ()


def _deterministic_notes(described: Mapping[str, str]) -> tuple[str, ...]:
    how = described.get("deterministic")
    return () if how is None else (f"--deterministic: {how}; docs/reliability.md says what that guarantees",)


def _retries(config: RunConfig) -> Callable[[Outcome], bool] | None:
    """Which committed rows --retry-status asks again; None for none, which lets resume skip reading their findings."""
    retried = frozenset(config.runtime.retry_status)
    if not retried:
        return None

    return lambda outcome: fold_outcome(outcome, config.fold).status in retried
