"""A task's prompts, by batchfact's own paradigms, for arms that ask an engine themselves.

`answer_in_waves` is how a script without batchfact goes about it: all first requests in one call, then all follow-ups.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from batchfact import preparation
from batchfact.assembly import Assembler
from batchfact.config import RunConfig
from batchfact.engines.base import LabelIds
from batchfact.engines.remote_tokenizer import Conversation, RemoteTokenizer
from batchfact.paradigms import make_paradigm
from batchfact.paradigms.fold import judge, num_judged, over_chunks
from batchfact.paradigms.program import Running
from batchfact.records import Choose, Finding, Pair, Reply, Request, Segment
from batchfact.settings import make_config
from bench.throughput.inputs import Row, by_document, read_rows
from bench.throughput.task import FindingRow, Task

Answer = Callable[[Sequence[Request]], Sequence[Reply]]


class Prompts(Struct, frozen=True, kw_only=True):
    """The rows of a task and their running programs, in the order in which they are to be asked."""

    config: RunConfig
    method: preparation.Method
    assembler: Assembler
    rows: tuple[Row, ...]
    programs: tuple[Running, ...]
    prepare_s: float
    dtype: str
    head_dtype: str
    """What the logits are computed in."""
    as_text: RemoteTokenizer | None = None
    label_ids: dict[tuple[Segment, tuple[str, ...]], LabelIds] = msgspec.field(default_factory=dict)
    """What `labels` has found, by the prompt's last segment and the labels."""

    @property
    def hf_overrides(self) -> dict[str, str]:
        """vLLM's option for `head_dtype`."""
        return {} if self.head_dtype == self.dtype else {"head_dtype": self.head_dtype}

    def ids(self, request: Request) -> list[int]:
        return self.assembler.assemble(request.prompt)

    def labels(self, request: Choose) -> LabelIds:
        """Spelled once, as batchfact and any script would: it takes milliseconds, and arms ask within their time."""
        cue = (request.prompt[-1], request.labels)
        if cue not in self.label_ids:
            self.label_ids[cue] = self.assembler.label_ids(request.prompt, request.labels)
        return self.label_ids[cue]

    def conversation(self, request: Request) -> Conversation:
        """The chat messages of a request whose prompts were made as text."""
        assert self.as_text is not None
        return self.as_text.read(Assembler(self.as_text).assemble(request.prompt))

    def findings(self) -> dict[int, list[FindingRow]]:
        """What the finished programs found, judged by batchfact's own rule."""
        return {
            number: judged(running.findings or (), self.config)
            for (number, _, _), running in zip(self.rows, self.programs, strict=True)
        }


def config_of(task: Task, output: Path | None = None) -> RunConfig:
    """The batchfact run that a task is, with the settings that all arms share."""
    shared: dict[str, Any] = {
        "model": task.model,
        "paradigm": task.paradigm,
        "reasoning": task.reasoning,
        "dtype": task.dtype,
        "max-model-len": task.max_model_len,
        "kv-cache-memory": task.kv_cache_bytes,
        "compile": "on" if task.compile else "off",
        "engine": "vllm",
        "calibration": "none",
        "quiet": True,
    }
    given = {name: value for name, value in task.options.items() if not name.startswith("engine-arg.")}
    engine_args = {
        name.partition(".")[2]: str(value) for name, value in task.options.items() if name.startswith("engine-arg.")
    }
    arguments = {"engine-arg": engine_args} if engine_args else {}
    return make_config((str(task.input),), str(output or task.folder / "out.parquet"), shared | given | arguments)


def prepare(task: Task, *, ordered: bool = False, as_text: bool = False) -> Prompts:
    """Make a task's first requests.

    Args:
        ordered: sort the rows by document first.
        as_text: for a chat interface, which tokenises itself: prompts can be read back as messages.
    """
    config = config_of(task)
    method = preparation.prepare_method(config, log_file=None, compiles=task.compile)
    started = time.monotonic()
    rows = read_rows(task.input)
    rows = by_document(rows) if ordered else rows
    tokenizer = RemoteTokenizer(is_chat=method.entry is None or method.entry.prompt_style == "chat")
    paradigm = method.paradigm
    if as_text:
        book = preparation.make_prompts(config.identity, method.entry, tokenizer, reasoning=method.reasoning)
        paradigm = make_paradigm(
            config.identity,
            book,
            reasoning=method.reasoning,
            demonstrations=(),
            contexts=preparation.make_contexts(
                config.identity, preparation.make_counters(tokenizer), method.max_model_len
            ),
        )
    programs = tuple(Running(paradigm(pair_of(row))) for row in rows)
    return Prompts(
        config=config,
        method=method,
        assembler=Assembler(method.tokenizer),
        rows=tuple(rows),
        programs=programs,
        prepare_s=time.monotonic() - started,
        dtype=str(method.identity["engine"]["dtype"]),
        head_dtype=str(method.identity["engine"]["head_dtype"]),
        as_text=tokenizer if as_text else None,
    )


def pair_of(row: Row) -> Pair:
    number, document, summary = row
    return Pair(row=number, document=document, summary=summary, document_hash=hash(document), text_hash=hash(row))


def take_wanted(programs: Sequence[Running]) -> list[tuple[Running, Request]]:
    """All requests that the programs wait for, in their order; they are no longer wanted then."""
    found = [(running, request) for running in programs for request in running.wanted]
    for running in programs:
        running.wanted = []
    return found


def answer_in_waves(programs: Sequence[Running], answer: Answer) -> None:
    """Run all programs to their end, with one call for all requests that are wanted at a time."""
    while wanted := take_wanted(programs):
        replies = answer([request for _, request in wanted])
        for (running, request), reply in zip(wanted, replies, strict=True):
            # A reply is made without the pair that it is for.
            running.take(msgspec.structs.replace(reply, key=request.key))


def judged(findings: Sequence[Finding], config: RunConfig) -> list[FindingRow]:
    """Label, score and status of each finding, as the output file has them."""
    count = num_judged(findings, config.fold)
    kept = [judge(finding, config.fold, count) for finding in over_chunks(findings, config.fold, count)]
    return [(each.label, each.finding.score, each.status) for each in kept]
