"""Measures a model's tokens on some rows of an input: characters a token, and what a prompt has beside its texts.

The model's tokenizer and its prompts are used as a run uses them; weights and engine are not needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from batchfact.assembly import Assembler
from batchfact.config import Identity, RunConfig
from batchfact.demonstrations import prepare_shots
from batchfact.engines.tokenizer import FastTokenizer, load_tokenizer
from batchfact.models import ModelEntry
from batchfact.paradigms import make_paradigm
from batchfact.paradigms.program import Paradigm, Running
from batchfact.planning import MODEL_TOKENS, TokenRates
from batchfact.preparation import make_contexts, make_counters, make_prompts
from batchfact.records import Pair
from batchfact.settings import reasons
from batchfact.source import Source

SAMPLED_PAIRS = 64
"""Rows that are tokenised, spread evenly over the input."""
OTHER_DOCUMENT, OTHER_SUMMARY = "0 is a number.", "1 is another one."
"""Texts that no row has: what a prompt shares with theirs is the lead, and the lead with the document."""


def measure_rates(source: Source, config: RunConfig, entry: ModelEntry, folder: Path, *, block: int) -> TokenRates:
    """The rates of the first requests of some rows; guesses for an input without any.

    Args:
        folder: holds the model's tokenizer.
        block: tokens of a block of the prefix cache.
    """
    tokenizer = load_tokenizer(folder)
    # A document that does not fit asks for nothing here: its excerpt would not tell what its characters make.
    paradigm = _paradigm(msgspec.structs.replace(config.identity, long_documents="fail"), entry, tokenizer, source)
    assembler = Assembler(tokenizer)

    def prompts(pair: Pair) -> list[list[int]]:
        return [assembler.assemble(request.prompt) for request in Running(paradigm(pair)).wanted]

    document_characters = document_tokens = summary_characters = leads = own_tokens = num_prompts = 0
    for pair in _sample(source, config):
        if not (asked := prompts(pair)):
            continue
        elsewhere = prompts(msgspec.structs.replace(pair, document=OTHER_DOCUMENT, summary=OTHER_SUMMARY))[0]
        beside = prompts(msgspec.structs.replace(pair, summary=OTHER_SUMMARY))[0]
        summary_characters += len(pair.summary)
        for ids in asked:
            lead, prefix = common(ids, elsewhere), common(ids, beside)
            document_characters += len(pair.document)
            document_tokens += prefix - lead
            leads += lead
            own_tokens += len(ids) - prefix
            num_prompts += 1
    if document_tokens <= 0:  # no row to look at, or first requests without the document
        return TokenRates(block=block)
    characters_per_token = document_characters / document_tokens
    return TokenRates(
        characters_per_token=characters_per_token,
        lead=leads / num_prompts,
        tail=max(0.0, (own_tokens - summary_characters / characters_per_token) / num_prompts),
        block=block,
        is_measured=True,
    )


def common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many ids two prompts have in common at their start."""
    pairs = zip(left, right, strict=False)
    return next((place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(left), len(right)))


def _sample(source: Source, config: RunConfig) -> Iterator[Pair]:
    num_rows = min(source.num_rows, config.runtime.limit or source.num_rows)
    every = islice(source.pairs(stop=num_rows), 0, None, max(1, num_rows // SAMPLED_PAIRS))
    return (item for item in every if isinstance(item, Pair))


def _paradigm(identity: Identity, entry: ModelEntry, tokenizer: FastTokenizer, source: Source) -> Paradigm:
    """The paradigm as a run has it, with demonstrations, for the longest prompt that the plan counts with."""
    reasoning = reasons(identity, entry)
    prompts = make_prompts(identity, entry, tokenizer, reasoning=reasoning)
    counters = make_counters(tokenizer)
    max_model_len = identity.max_model_len or MODEL_TOKENS
    shown = prepare_shots(identity, prompts, counters.prompt, max_model_len, source)
    return make_paradigm(
        identity,
        prompts,
        reasoning=reasoning,
        demonstrations=shown.prompt,
        contexts=make_contexts(identity, counters, max_model_len),
    )
