"""Shows what one pair makes a run ask: its windows, its requests and their exact prompts, with token counts."""

from __future__ import annotations

import json

from batchfact.assembly import Assembler
from batchfact.config import RunConfig
from batchfact.errors import UsageError
from batchfact.paradigms.program import Running
from batchfact.preparation import Method
from batchfact.records import (
    Choose,
    Chosen,
    Data,
    Finding,
    Pair,
    Prompt,
    Rejected,
    Reply,
    Request,
    Template,
    Write,
    Written,
)
from batchfact.source import Source, open_source
from batchfact.text.windows import windows

STAND_IN_REASONING = "(the model's reasoning stands here.)"
STAND_IN_QUESTION = "What does the model ask here?"


def open_input(config: RunConfig) -> Source:
    """Raises: UsageError for files that are missing or foreign, or a column that is."""
    identity = config.identity
    return open_source(config.inputs, document_column=identity.document_column, summary_column=identity.summary_column)


def find_row(source: Source, row: int) -> Pair:
    """One row of the input.

    Raises: UsageError if there is no such row, or nothing can be asked about it.
    """
    if not 0 <= row < source.num_rows:
        raise UsageError(f"--row {row} is not there: the input has rows 0 to {source.num_rows - 1}")
    item = next(source.pairs(start=row, stop=row + 1))
    if isinstance(item, Rejected):
        raise UsageError(f"row {row} gets the status {item.status} without a model: {item.message}")
    return item


def explain_pair(pair: Pair, method: Method, config: RunConfig) -> str:
    """A text with every window and every request of `pair`, in the order of asking."""
    assembler = Assembler(method.tokenizer)
    running = Running(method.paradigm(pair))
    parts = [_windows_text(pair, config)]
    while running.wanted:
        requests, running.wanted = running.wanted, []
        for request in requests:
            parts.append(_request_text(request, len(assembler.assemble(request.prompt)), config))
            running.take(_stand_in(request, pair.summary, method))
    parts += [_shown_text(finding) for finding in running.findings or () if finding.evidence or finding.message]
    return "\n".join(parts)


def _windows_text(pair: Pair, config: RunConfig) -> str:
    lines = [f"row {pair.row}: document of {len(pair.document):,} characters, summary of {len(pair.summary):,}"]
    if config.identity.paradigm not in ("summ-nli", "vanilla", "cot"):
        found = windows(pair.summary, sentences_per_window=config.identity.window_sentences)
        lines += [
            f"window {number}, characters {window.start} to {window.end}: {window.text_of(pair.summary)!r}"
            for number, window in enumerate(found)
        ]
    return "\n".join(lines) + "\n"


def _shown_text(finding: Finding) -> str:
    """What of the document a finding is judged by, where that is not all of it."""
    unit = f"characters {finding.start} to {finding.end} of the summary"
    unit += f", question {finding.question!r}" if finding.question else ""
    if finding.message:
        return f"{unit}: {finding.status}, {finding.message}\n"
    part = f"chunk {finding.chunk}" if finding.chunk is not None else f"{finding.left_out} sentences left out"
    spans = ", ".join(f"{span.start} to {span.end}" for span in finding.evidence)
    return f"{unit}: judged by characters {spans} of the document ({part})\n"


def _request_text(request: Request, num_tokens: int, config: RunConfig) -> str:
    if isinstance(request, Choose) and len(request.labels) > 2:
        wanted = f"probabilities of the ratings {', '.join(request.labels)} (the last means fully consistent)"
    elif isinstance(request, Choose):
        wanted = f"probabilities of {' and '.join(map(repr, request.labels))} (the first means consistent)"
    else:
        wanted = f"at most {request.max_tokens} tokens of text"
        wanted += f", before {' or '.join(map(repr, request.stop))}" if request.stop else ""
        wanted += f", following the JSON schema {request.schema}" if request.schema else ""
        wanted += ", from which the label is parsed" if _is_parsed(request, config) else ""
        temperature = config.identity.temperature
        wanted += f", sampled at temperature {temperature:g}" if temperature > 0 else ""
    return f"--- request {request.key}: {num_tokens} tokens; asks for {wanted}\n{_prompt_text(request.prompt)}\n"


def _is_parsed(request: Request, config: RunConfig) -> bool:
    return isinstance(request, Write) and request.schema is None and config.identity.label_mode == "parse"


def _prompt_text(prompt: Prompt) -> str:
    return "".join(segment.text if isinstance(segment, Template | Data) else STAND_IN_REASONING for segment in prompt)


def _stand_in(request: Request, summary: str, method: Method) -> Reply:
    """What a model might write; a claim on something that the summary does not say would be dropped."""
    if isinstance(request, Choose):
        return Chosen(key=request.key, logprobs=tuple(-1.0 for _ in request.labels))
    claim = {"entity": max(summary.split(), key=len).strip(".,;:!?"), "question": STAND_IN_QUESTION}
    text = json.dumps({"claims": [claim]}) if request.schema else STAND_IN_REASONING
    ids = tuple(method.tokenizer.encode(text, special=False))
    return Written(key=request.key, text=text, ids=ids, finish="stop")
