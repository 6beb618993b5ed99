"""Measures an input without a model: rows, documents, how scattered their pairs are, windows, requests, tokens."""

from __future__ import annotations

from array import array

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from batchfact.config import Identity, RunConfig
from batchfact.cost.prefixes import count_computed
from batchfact.cost.roofline import Work
from batchfact.paradigms.judging import MAX_ANSWER_TOKENS
from batchfact.paradigms.qg_qa import MAX_CLAIM_TOKENS, MAX_REASONED_CLAIM_TOKENS
from batchfact.preparation import BYTES_PER_TOKEN
from batchfact.records import Rejected
from batchfact.source import Source
from batchfact.text.windows import windows

Floats = NDArray[np.float64]
Hashes = NDArray[np.uint64]
Booleans = NDArray[np.bool_]

SCATTER_LIMIT = 0.05
"""Share of a document's further pairs beyond the look-ahead above which --group global is recommended."""
SAMPLED_SUMMARIES = 50_000
"""Summaries that are split into windows; above that every n-th is."""
CLAIMS_A_WINDOW = 3.0
"""Guess for qg-qa, where only a model knows."""
SENTENCE_TOKENS = 30
"""About what a document sentence takes, for aligned windows."""
MODEL_TOKENS = 8192
"""The longest prompt where --max-model-len does not say."""


class TokenRates(Struct, frozen=True, kw_only=True):
    """Tokens of texts and prompts: guesses for English and the long templates; `token_rates` measures a model's own.

    `lead` and `tail` are the instructions and markers of one prompt before its document, and behind it without the
    window. `block` tokens at a time are found in an engine's prefix cache.
    """

    characters_per_token: float = BYTES_PER_TOKEN
    lead: float = 170.0
    tail: float = 30.0
    block: int = 16
    is_measured: bool = False


class InputPlan(Struct, frozen=True, kw_only=True):
    """What a run over an input will have to do. Token figures are estimates from characters.

    `prompt_tokens` are those of all prompts, `computed_tokens` those that the prefix cache cannot have. `attended` and
    `reread` are what `cost.roofline.Work` says.
    """

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
    distinct_requests: int
    """Without those that are equal to another one of the same document, which is asked once."""
    attended: float
    reread: float
    longest_prompt: int
    sampled: bool
    notes: tuple[str, ...] = ()

    @property
    def scored_rows(self) -> int:
        return self.rows - sum(self.rejected.values())

    def price(self, *, per_million_in: float, per_million_out: float) -> float:
        """What a server that charges by tokens, and gives no discount for cached ones, would take at most."""
        return (self.prompt_tokens * per_million_in + self.output_tokens * per_million_out) / 1e6

    @property
    def cached_tokens(self) -> int:
        return max(0, self.prompt_tokens - self.computed_tokens)

    @property
    def work(self) -> Work:
        """What an engine has to compute. Label-only requests end with the prefill."""
        generated = max(0, self.output_tokens - self.requests)
        return Work(
            requests=self.distinct_requests,
            computed=self.computed_tokens,
            attended=self.attended,
            reread=self.reread,
            generated=generated,
            context=self.prompt_tokens / self.distinct_requests if self.distinct_requests else 0.0,
            longest=self.longest_prompt,
        )

    @property
    def advice(self) -> str:
        """Which --group to use, and why."""
        if self.look_ahead_share < 1 - SCATTER_LIMIT:
            return "--group global: many pairs of one document lie further apart than the look-ahead"
        if self.adjacent_share < 1:
            return "--group window: pairs of one document lie apart, but within the look-ahead"
        return "any --group: pairs of one document already follow each other"


def plan_input(source: Source, config: RunConfig, rates: TokenRates | None = None) -> InputPlan:
    """Read the whole input once; memory is some tens of bytes a row, and as much again to sort."""
    rates = rates or TokenRates()
    seen = _read(source, config)
    pairs = len(seen.document_hashes)
    _, first, counts = np.unique(seen.document_hashes, return_index=True, return_counts=True)
    adjacent, near = _nearness(seen.document_hashes, config.runtime.look_ahead_rows)
    requests, with_document = _requests(config, pairs, seen.windows)
    distinct_pairs = len(np.unique(seen.text_hashes))
    distinct = seen.distinct_share if config.identity.by_window else distinct_pairs / max(pairs, 1)
    tokens = seen.document_characters / rates.characters_per_token
    is_long, is_aligned, shown = _shown(tokens, config.identity, rates)
    own = rates.tail + seen.summary_characters / rates.characters_per_token / max(requests, 1)
    computed = count_computed(
        shown,
        is_first=_marks(first, pairs),
        is_apart=is_aligned,
        requests_a_pair=distinct * with_document / max(pairs, 1),
        lead=rates.lead,
        own=own,
        block=rates.block,
    )
    without_document = (requests - with_document) * distinct
    return InputPlan(
        rows=pairs + sum(seen.rejected.values()),
        rejected=seen.rejected,
        documents=len(first),
        largest_group=int(counts.max()) if pairs else 0,
        adjacent_share=adjacent,
        look_ahead_share=near,
        windows=seen.windows,
        requests=requests,
        duplicate_pairs=pairs - distinct_pairs,
        document_tokens=int(tokens[first].sum()),
        long_pairs=int(is_long.sum()),
        prompt_tokens=round(
            distinct
            * (
                requests * (rates.lead + own)
                + with_document * _mean(shown, seen.windows_of if config.identity.by_window else None)
            )
        ),
        computed_tokens=round(computed.tokens + without_document * own),
        output_tokens=_output_tokens(config.identity, requests, seen.windows),
        distinct_requests=round(requests * distinct),
        attended=computed.attended,
        reread=computed.reread,
        longest_prompt=round(rates.lead + (float(shown.max()) if pairs else 0.0) + own),
        sampled=seen.is_sampled,
        notes=_notes(config.identity, int(is_long.sum()), int(is_aligned.sum())),
    )


class _Seen(Struct, frozen=True, kw_only=True):
    """What one pass over the rows found; arrays have one entry for each row that can be scored."""

    rejected: dict[str, int]
    document_hashes: Hashes
    text_hashes: Hashes
    document_characters: Floats
    summary_characters: int
    windows_of: Floats
    """Windows of each row's summary; 0 for rows that are not sampled."""
    windows: int
    distinct_share: float
    is_sampled: bool


def _read(source: Source, config: RunConfig) -> _Seen:
    document_hashes, text_hashes, characters, windows_of = array("Q"), array("Q"), array("Q"), array("Q")
    rejected: dict[str, int] = {}
    stride = max(1, source.num_rows // SAMPLED_SUMMARIES)
    summary_characters = sampled = 0
    distinct: set[int] = set()
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
            found = windows(item.summary, sentences_per_window=config.identity.window_sentences)
            distinct |= {hash((item.document_hash, window.text_of(item.summary))) for window in found}
        windows_of.append(len(found) if item.row % stride == 0 else 0)
    sampled_windows = sum(windows_of)
    return _Seen(
        rejected=rejected,
        document_hashes=np.array(document_hashes, dtype=np.uint64),
        text_hashes=np.array(text_hashes, dtype=np.uint64),
        document_characters=np.array(characters, dtype=np.float64),
        summary_characters=summary_characters,
        windows_of=np.array(windows_of, dtype=np.float64),
        windows=round(sampled_windows * len(document_hashes) / sampled) if sampled else 0,
        distinct_share=len(distinct) / sampled_windows if sampled_windows else 1.0,
        is_sampled=stride > 1,
    )


def _mean(values: Floats, weights: Floats | None) -> float:
    """The mean, 0 for none. A row with many windows has many prompts, and often a long document."""
    if not len(values):
        return 0.0
    return float(np.average(values, weights=weights if weights is not None and weights.any() else None))


def _marks(places: NDArray[np.intp], size: int) -> Booleans:
    marked = np.zeros(size, dtype=bool)
    marked[places] = True
    return marked


def _shown(tokens: Floats, identity: Identity, rates: TokenRates) -> tuple[Booleans, Booleans, Floats]:
    """For each pair: whether its document does not fit, whether it is aligned, and tokens of it in one prompt."""
    is_long = tokens + rates.lead + rates.tail > (identity.max_model_len or MODEL_TOKENS)
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


def _nearness(hashes: Hashes, look_ahead_rows: int) -> tuple[float, float]:
    """Of all pairs whose document was seen before: the shares that lie 1 row, and at most the look-ahead, behind it."""
    order = np.argsort(hashes, kind="stable")
    same = hashes[order][1:] == hashes[order][:-1]
    gaps = np.diff(order)[same]
    if not len(gaps):
        return 1.0, 1.0
    return float((gaps == 1).mean()), float((gaps <= look_ahead_rows).mean())
