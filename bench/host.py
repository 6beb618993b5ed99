"""CPU time of everything around the engine, by stage, for each request and pair: the engine answers at once."""

from __future__ import annotations

import argparse
import math
import resource
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import anyio

from batchfact import preparation
from batchfact.assembly import Assembler
from batchfact.config import RunConfig
from batchfact.engines.base import Capacity, ChooseAnswer, LabelIds, Tokenizer, WriteAnswer
from batchfact.grouping import group_pairs
from batchfact.journal import Journal
from batchfact.paradigms.contexts import Counters, DocumentContext, Room
from batchfact.paradigms.fold import fold_outcome
from batchfact.paradigms.program import Running
from batchfact.progress import Progress
from batchfact.records import DocumentGroup, Outcome, Request, Usage
from batchfact.scheduler import Scheduler
from batchfact.settings import make_config
from batchfact.sink import merge
from batchfact.source import Source
from batchfact.text.windows import windows
from bench.facts import command_line, write_result
from bench.inputs import write_input
from bench.throughput.inputs import LAYOUTS, lay_out, read_pool, write_rows

TARGET_US = 100
DOCUMENT_BYTES = 4096
REPEATS = 3
ALIGNED_TOKENS = 256
"""What is shown of a document when alignment is measured: no document of the input fits."""

T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--input", type=Path, nargs="*", help="Parquet files with real text [made-up text]")
    parser.add_argument("--model", default="smollm2-135m", help="whose tokenizer and prompts are taken")
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--part-rows", type=int, default=4096)


class InstantEngine:
    """Answers every label request at once, with the same log-probabilities."""

    def __init__(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        self.tokenizer = tokenizer
        self.capacity = Capacity(
            kv_tokens=1 << 20, block_tokens=32, max_num_seqs=128, max_model_len=max_model_len, num_replicas=1
        )

    async def choose(self, prompt_ids: list[int], labels: LabelIds, **_: Any) -> ChooseAnswer:
        await anyio.lowlevel.checkpoint()
        return ChooseAnswer(tuple(-1.0 for _ in labels), Usage(len(prompt_ids), 0, 1))

    async def write(self, prompt_ids: list[int], **_: Any) -> WriteAnswer:
        raise NotImplementedError("labels only are asked for here")


class Stopwatch:
    """CPU seconds of this process, threads included, by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, stage: str, work: Callable[[], T], repeats: int = REPEATS) -> T:
        """Do it `repeats` times and keep the least: on a busy machine others' work costs cache misses, never less."""
        for _ in range(repeats):
            before = _cpu_s()
            done = work()
            self.seconds[stage] = min(self.seconds.get(stage, math.inf), _cpu_s() - before)
        return done


def measure(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="batchfact-bench-") as name:
        folder = Path(name)
        path = folder / "in.parquet"
        if args.input:
            write_rows(path, lay_out(read_pool(args.input), LAYOUTS["adjacent"], args.pairs, seed=0))
        else:
            write_input(path, args.pairs, DOCUMENT_BYTES)
        options = {"model": args.model, "engine": "vllm", "quiet": True, "calibration": "none", "max-model-len": 8192}
        config = make_config((str(path),), str(folder / "out.parquet"), options)
        prepared = preparation.prepare(config)
        result = _measure(prepared, config, args.part_rows)
    write_result("host", {"command": command_line("bench", sys.argv[1:]), **result})
    for stage in result["stages"]:
        print(f"{stage['us_a_request']:8.1f} us a request: {stage['what']}")


def _measure(prepared: preparation.Prepared, config: RunConfig, part_rows: int) -> dict[str, Any]:
    watch, source, method = Stopwatch(), prepared.source, prepared.method
    windows("It loads the splitter. It is slow.", sentences_per_window=1)
    groups = watch.time("reading", lambda: _groups(source, prepared.journal))
    pairs = [pair for group in groups for pair in group.pairs]
    watch.time("splitting", lambda: [windows(pair.summary, sentences_per_window=1) for pair in pairs])
    documents = [group.document for group in groups]
    watch.time("documents", lambda: [method.tokenizer.encode(each.strip(), special=False) for each in documents])
    requests = watch.time("programs", lambda: _first_requests(method.paradigm, groups))
    num_requests = sum(map(len, requests))
    watch.time("assembly", lambda: _assemble(Assembler(method.tokenizer), requests))
    watch.time("alignment", lambda: _align(groups, preparation.make_counters(method.tokenizer)), repeats=1)
    outcomes = watch.time("run", lambda: anyio.run(_schedule, prepared, groups))
    watch.time("fold", lambda: [fold_outcome(outcome, config.fold) for outcome in outcomes])
    with preparation.open_journal(prepared) as journal:
        watch.time("journal", lambda: _append(journal, outcomes, part_rows), repeats=1)
        metadata = preparation.metadata(prepared)
        watch.time(
            "output",
            lambda: merge(source, journal, config.output, config.fold, config.columns, metadata, lambda _: None),
            repeats=1,
        )
    return _report(watch.seconds, len(pairs), num_requests, len(documents))


def _groups(source: Source, folder: Path) -> list[DocumentGroup]:
    runtime = RunConfig(inputs=(), output="").runtime
    items = group_pairs(
        source.pairs(),
        mode="window",
        look_ahead_rows=runtime.look_ahead_rows,
        look_ahead_bytes=runtime.look_ahead_bytes,
        spill_dir=folder / "spill",
        expected_bytes=source.num_bytes,
    )
    return [item for item in items if isinstance(item, DocumentGroup)]


def _first_requests(paradigm: Any, groups: Sequence[DocumentGroup]) -> list[list[Request]]:
    return [[request for pair in group.pairs for request in Running(paradigm(pair)).wanted] for group in groups]


def _assemble(assembler: Assembler, requests: Sequence[Sequence[Request]]) -> None:
    for group in requests:
        of_group = assembler.for_group()
        for request in group:
            of_group.assemble(request.prompt)


def _align(groups: Sequence[DocumentGroup], counters: Counters) -> None:
    """Pick the sentences nearest to each window, as for a document that does not fit."""
    room = Room(mode="align", max_sentences=5, max_tokens=ALIGNED_TOKENS)
    for group in groups:
        document = DocumentContext(group.document, room, counters)
        for pair in group.pairs:
            for window in windows(pair.summary, sentences_per_window=1):
                document._aligned(counters, window.text_of(pair.summary), None)  # noqa: SLF001


async def _schedule(prepared: preparation.Prepared, groups: Sequence[DocumentGroup]) -> list[Outcome]:
    method = prepared.method
    engine = InstantEngine(method.tokenizer, method.max_model_len or 8192)
    scheduler = Scheduler(engine, Assembler(method.tokenizer), method.paradigm, Progress(prepared.num_rows))
    send, receive = anyio.create_memory_object_stream[Outcome](8)
    outcomes: list[Outcome] = []

    async def each() -> AsyncIterator[DocumentGroup]:
        for group in groups:
            yield group

    async def collect() -> None:
        async with receive:
            outcomes.extend([outcome async for outcome in receive])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(collect)
        async with send:
            await scheduler.run(each(), send)
    return outcomes


def _append(journal: Journal, outcomes: list[Outcome], part_rows: int) -> None:
    for start in range(0, len(outcomes), part_rows):
        journal.append(outcomes[start : start + part_rows])
        journal.compact_if_needed()


def _report(seconds: dict[str, float], num_pairs: int, num_requests: int, num_documents: int) -> dict[str, Any]:
    scheduling = seconds["run"] - seconds["programs"] - seconds["assembly"]
    counted = {
        "assembly: texts to ids, each document once": seconds["assembly"],
        "scheduling: tasks, admission, sharing, replies": scheduling,
        "fold": seconds["fold"],
        "journal": seconds["journal"],
    }
    apart = {
        "reading and grouping": seconds["reading"],
        "programs: prompts and the search for what fits, splitting included": seconds["programs"],
        "of it: summaries into sentences": seconds["splitting"],
        "of assembly: documents to ids": seconds["documents"],
        "writing the output from input and journal": seconds["output"],
        "alignment, where a document does not fit": seconds["alignment"],
    }
    stages = [_stage(what, value, num_requests, num_pairs) for what, value in counted.items()]
    total = _stage("together (aim: 100)", sum(counted.values()), num_requests, num_pairs)
    beside = [_stage(f"apart: {what}", value, num_requests, num_pairs) for what, value in apart.items()]
    return {
        "kind": "host",
        "pairs": num_pairs,
        "requests": num_requests,
        "documents": num_documents,
        "target_us": TARGET_US,
        "stages": [*stages, total, *beside],
    }


def _stage(what: str, seconds: float, num_requests: int, num_pairs: int) -> dict[str, Any]:
    return {
        "what": what,
        "us_a_request": round(seconds * 1e6 / num_requests, 2),
        "us_a_pair": round(seconds * 1e6 / num_pairs, 2),
    }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
