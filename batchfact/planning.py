"""Measures an input without a model: rows, documents, how scattered their pairs are, windows, requests, tokens."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from batchfact.config import Identity, RunConfig
from batchfact.paradigms.judging import MAX_ANSWER_TOKENS
from batchfact.paradigms.qg_qa import MAX_CLAIM_TOKENS, MAX_REASONED_CLAIM_TOKENS
from batchfact.preparation import BYTES_PER_TOKEN
from batchfact.records import Rejected
from batchfact.source import Source
from batchfact.text.windows import windows

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]

SCATTER_LIMIT = 0.05
"""Share of a document's further pairs beyond the look-ahead above which --group global is recommended."""
SAMPLED_SUMMARIES = 50_000
"""Summaries that are split into windows; above that every n-th is."""
CLAIMS_A_WINDOW = 3.0
"""Guess for qg-qa, where only a model knows."""
TEMPLATE_TOKENS = 170
"""About what instructions and chat markers of one prompt take."""
SUFFIX_TOKENS = 30
"""About what follows a window in a prompt."""
SENTENCE_TOKENS = 30
"""About what a document sentence takes, for aligned windows."""
MODEL_TOKENS = 8192
"""The longest prompt where --max-model-len does not say."""


class InputPlan(Struct, frozen=True, kw_only=True):
    """What a run over an input will have to do. Token figures are estimates from characters."""

    rows: int
    rejected: dict[str, int]
    documents: int
    largest_group: int
    adjacent_share: float
    """Of the pairs whose document came before: the share that follows directly."""
    look_ahead_share: float
    """The same: the share within the look-ahead of --group window."""
    windows: int
    requests: int
    duplicate_pairs: int
    document_tokens: int
    long_pairs: int
    prompt_tokens: int
    computed_tokens: int
    output_tokens: int
    """What answers may have at most; most are shorter."""
    sampled: bool
    notes: tuple[str, ...] = ()

    @property
    def scored_rows(self) -> int:
        return self.rows - sum(self.rejected.values())

    def price(self, *, per_million_in: float, per_million_out: float) -> float:
        """What a server that charges by tokens, and gives no discount for cached ones, would take at most."""
        return (self.prompt_tokens * per_million_in + self.output_tokens * per_million_out) / 1e6

    @property
    def advice(self) -> str:
        """Which --group to use, and why."""
        if self.look_ahead_share < 1 - SCATTER_LIMIT:
            return "--group global: many pairs of one document lie further apart than the look-ahead"
        if self.adjacent_share < 1:
            return "--group window: pairs of one document lie apart, but within the look-ahead"
        return "any --group: pairs of one document already follow each other"


def plan_input(source: Source, config: RunConfig) -> InputPlan:
    """Read the whole input once; memory is 24 bytes a row, and as much again to sort."""
    document_hashes, text_hashes = array("Q"), array("Q")
    characters = array("Q")
    rejected: dict[str, int] = {}
    stride = max(1, source.num_rows // SAMPLED_SUMMARIES)
    summary_windows = summary_characters = sampled = 0
    for item in source.pairs(stop=config.runtime.limit):
        if isinstance(item, Rejected):
            rejected[item.status] = rejected.get(item.status, 0) + 1
            continue
        document_hashes.append(item.document_hash)
        text_hashes.append(item.text_hash)
        characters.append(len(item.document))
        summary_characters += len(item.summary)
        if item.row % stride == 0:
            sampled += 1
            summary_windows += len(windows(item.summary, sentences_per_window=config.identity.window_sentences))
    hashes = np.frombuffer(document_hashes, dtype=np.uint64) if document_hashes else np.zeros(0, np.uint64)
    pairs = len(hashes)
    scaled_windows = round(summary_windows * pairs / sampled) if sampled else 0
    _, first, counts = np.unique(hashes, return_index=True, return_counts=True)
    lengths = np.frombuffer(characters, dtype=np.uint64) if characters else np.zeros(0, np.uint64)
    document_tokens = int(lengths[first].sum() / BYTES_PER_TOKEN)
    adjacent, near = _nearness(hashes, config.runtime.look_ahead_rows)
    requests, with_document = _requests(config, pairs, scaled_windows)
    own_tokens = requests * SUFFIX_TOKENS + summary_characters / BYTES_PER_TOKEN
    tokens = lengths / BYTES_PER_TOKEN
    is_long, is_aligned, shown = _shown(tokens, config.identity)
    aligned_share = shown[is_aligned].sum() / max(pairs, 1)
    return InputPlan(
        rows=pairs + sum(rejected.values()),
        rejected=rejected,
        documents=len(first),
        largest_group=int(counts.max()) if pairs else 0,
        adjacent_share=adjacent,
        look_ahead_share=near,
        windows=scaled_windows,
        requests=requests,
        duplicate_pairs=pairs - len(np.unique(np.frombuffer(text_hashes, dtype=np.uint64))) if pairs else 0,
        document_tokens=document_tokens,
        long_pairs=int(is_long.sum()),
        prompt_tokens=round(own_tokens + requests * TEMPLATE_TOKENS + with_document * float(shown.mean()))
        if pairs
        else 0,
        computed_tokens=round(
            own_tokens + float(tokens[first][~is_aligned[first]].sum()) + with_document * float(aligned_share)
        ),
        output_tokens=_output_tokens(config.identity, requests, scaled_windows),
        sampled=stride > 1,
        notes=_notes(config.identity, int(is_long.sum()), int(is_aligned.sum())),
    )


def _shown(tokens: Floats, identity: Identity) -> tuple[Booleans, Booleans, Floats]:
    """For each pair: whether its document does not fit, whether it is aligned, and tokens of it in one prompt."""
    is_long = tokens + TEMPLATE_TOKENS + SUFFIX_TOKENS > (identity.max_model_len or MODEL_TOKENS)
    is_aligned = np.full(len(tokens), identity.long_documents == "align")
    if identity.long_documents == "auto":
        is_aligned = is_long
    aligned = identity.align_sentences * SENTENCE_TOKENS if identity.by_window else identity.context_tokens
    return is_long, is_aligned, np.where(is_aligned, np.minimum(tokens, aligned), tokens)


def _notes(identity: Identity, num_long: int, num_aligned: int) -> tuple[str, ...]:
    unit = "window" if identity.by_window else "summary"
    notes = []
    if num_aligned:
        notes.append(f"{num_aligned:,} pairs are aligned: each {unit} has its own context, so nothing of it is shared")
    if num_long and identity.long_documents == "chunk":
        notes.append(f"{num_long:,} documents are read in chunks: a request for each chunk, which is not counted here")
    if num_long and identity.long_documents == "fail":
        notes.append(f"about {num_long:,} pairs will be too_long; --long-documents align or chunk scores them")
    return tuple(notes)


def _requests(config: RunConfig, pairs: int, num_windows: int) -> tuple[int, int]:
    """Requests in all, and those of them whose prompt holds the document."""
    identity = config.identity
    is_parsed = identity.label_mode == "parse"  # reasoning and label are one text
    steps = 2 if (identity.reasoning or identity.paradigm == "cot") and not is_parsed else 1
    if identity.paradigm == "sbs":
        each = pairs if is_parsed else num_windows
        return each, each
    if identity.paradigm in ("summ-nli", "vanilla", "cot"):
        return pairs * steps, pairs * steps
    if identity.paradigm == "sent-nli":
        return num_windows * steps, num_windows * steps
    answers = round(num_windows * CLAIMS_A_WINDOW) * steps
    return num_windows + answers, answers


def _output_tokens(identity: Identity, requests: int, num_windows: int) -> int:
    """The most that the answers to `requests` may have: one token for a label, the limits for texts."""
    if identity.label_mode == "parse":
        return requests * (MAX_ANSWER_TOKENS + (identity.reasoning_tokens if identity.reasoning else 0))
    questions = num_windows if identity.paradigm == "qg-qa" else 0
    answers = requests - questions
    claim_tokens = MAX_REASONED_CLAIM_TOKENS if identity.reasoning else MAX_CLAIM_TOKENS
    if identity.reasoning or identity.paradigm == "cot":
        return questions * claim_tokens + answers // 2 * (identity.reasoning_tokens + 1)
    return questions * claim_tokens + answers


def _nearness(hashes: np.ndarray[Any, np.dtype[np.uint64]], look_ahead_rows: int) -> tuple[float, float]:
    """Of all pairs whose document was seen before: the shares that lie 1 row, and at most the look-ahead, behind it."""
    order = np.argsort(hashes, kind="stable")
    same = hashes[order][1:] == hashes[order][:-1]
    gaps = np.diff(order)[same]
    if not len(gaps):
        return 1.0, 1.0
    return float((gaps == 1).mean()), float((gaps <= look_ahead_rows).mean())
