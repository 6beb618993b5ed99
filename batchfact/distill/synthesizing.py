"""`batchfact distill synthesize`: synthetic labelled pairs from raw text.

Parquet files with a document column flow in; one labelled file flows out, which `build` takes like any other. The same
seed gives the same file.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from batchfact.config import require
from batchfact.distill.labelled import Row, parse_rule
from batchfact.distill.synthesis import Claim, claims
from batchfact.durable import durable_file
from batchfact.errors import UsageError, nearest
from batchfact.output_files import refuse_overwriting
from batchfact.text.sentences import sentences

NUM_OTHERS = 3
"""Other documents that a document's false claims draw on."""
LEAST_SENTENCES = 5
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("document", pa.string()),
        ("summary", pa.string()),
        ("label", pa.int8()),
        ("how", pa.string()),
        ("source", pa.string()),
    ]
)


class Plan(Struct, frozen=True, kw_only=True):
    """How much is made of what.

    `passage_words` takes, in place of each document, one passage of a random number of words between the two; None
    takes documents whole. `max_documents` of each file are drawn; None takes all. `where` are rules that a row must
    meet, as in a recipe. `true_summaries` is a rule too: the summaries of rows that meet it are true.
    """

    claims_a_document: int = 12
    passage_words: tuple[int, int] | None = None
    max_documents: int | None = None
    seed: int = 0
    document_column: str = "document"
    where: tuple[str, ...] = ()
    true_summaries: str | None = None

    def __post_init__(self) -> None:
        require(self.claims_a_document >= 1, "--claims must be at least 1", self.claims_a_document)
        words = self.passage_words
        require(words is None or 0 < words[0] <= words[1], "--passage-words takes LEAST,MOST", words)
        require(
            self.max_documents is None or self.max_documents >= 1,
            "--max-documents must be at least 1",
            self.max_documents,
        )
        require(
            not (words and self.true_summaries),
            "--true-summaries speak of whole documents, so they do not go with --passage-words",
            words,
        )


def synthesize(inputs: Sequence[Path], output: Path, plan: Plan) -> dict[str, int]:
    """Write the pairs; returns how many there are of each kind, and of documents that gave none.

    Raises: UsageError for a file that cannot be read, has no such column, is the output too, or if nothing came of all
        of them.
    """
    refuse_overwriting(output, inputs)
    texts = [(file.stem, text, summaries) for file in inputs for text, summaries in _passages(file, plan)]
    if plan.true_summaries and not any(summaries for _, _, summaries in texts):
        raise UsageError(f"--true-summaries {plan.true_summaries!r}: no row that is used meets it")
    made: Counter[str] = Counter()
    documents = [text for _, text, _ in texts]
    with durable_file(output) as file, pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for number, (source, text, summaries) in enumerate(texts):
            found = claims(
                text,
                _others(documents, number, plan.seed),
                plan.claims_a_document,
                seed=f"{plan.seed} {text}",
                true_summaries=summaries,
            )
            made.update(claim.how for claim in found)
            made["documents without claims"] += not found
            writer.write_table(pa.Table.from_pylist(list(_rows(found, text, f"{source}-{number}", source)), SCHEMA))
        if made.total() == made["documents without claims"]:
            raise UsageError(
                "no document or passage that is used has the three sentences of 5 to 40 words that claims are made of"
            )
    return dict(made.most_common())


def passage(document: str, words: tuple[int, int], rng: random.Random) -> str | None:
    """Whole sentences of a document, from a random one on, that reach a random number of words; None if too few."""
    spans = sentences(document)
    sizes = [len(document[span.start : span.end].split()) for span in spans]
    wanted = rng.randint(*words)
    # Words up to each sentence; from the first of `starts` to the last, enough are left behind it.
    before = [0, *accumulate(sizes)]
    starts = [place for place in range(len(spans)) if before[-1] - before[place] >= wanted]
    first = end = rng.choice(starts) if starts else 0
    while end < len(spans) and before[end] - before[first] < wanted:
        end += 1
    return document[spans[first].start : spans[end - 1].end] if end - first >= LEAST_SENTENCES else None


def _passages(file: Path, plan: Plan) -> Iterator[tuple[str, list[str]]]:
    """The file's different documents, or a passage of each, with the summaries that are true of it."""
    rng = random.Random(f"{plan.seed} {file.stem}")
    summaries: dict[str, list[str]] = {}
    for document, summary in _documents(file, plan):
        summaries.setdefault(document, []).extend([summary] if summary else [])
    documents = list(summaries)
    if plan.max_documents is not None and len(documents) > plan.max_documents:
        documents = rng.sample(documents, plan.max_documents)
    for document in documents:
        text = passage(document, plan.passage_words, rng) if plan.passage_words else document
        if text:
            yield text, summaries[document]


def _documents(file: Path, plan: Plan) -> Iterator[tuple[str, str | None]]:
    """Each usable row's document, and its summary where that is known to be true."""
    column = plan.document_column
    try:
        with pq.ParquetFile(file) as parquet:
            names = parquet.schema_arrow.names
            if column not in names:
                raise UsageError(
                    f"{file} has no column {column!r}; its columns are {', '.join(names)}{nearest(column, names)} "
                    "(--document-column)"
                )
            rules = [parse_rule(rule, names, str(file)) for rule in plan.where]
            is_true = _truth(plan, names, file)
            for batch in parquet.iter_batches(1024):
                for row in batch.to_pylist():
                    text = row[column].strip() if isinstance(row[column], str) else ""
                    if text and all(rule(row) for rule in rules):
                        yield text, row["summary"] if is_true(row) else None
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"{file} cannot be read ({str(error).splitlines()[0]})") from error


def _truth(plan: Plan, names: list[str], file: Path) -> Callable[[Row], bool]:
    """Whether a row's summary is known to be true."""
    if plan.true_summaries is None:
        return lambda _: False
    if "summary" not in names:
        raise UsageError(f"--true-summaries needs a column summary, which {file} lacks")
    return parse_rule(plan.true_summaries, names, str(file))


def _others(texts: Sequence[str], number: int, seed: int) -> list[str]:
    """Texts of other documents."""
    rng = random.Random(f"{seed} others {number}")
    drawn = rng.sample(range(len(texts)), min(NUM_OTHERS + 1, len(texts)))
    return [texts[each] for each in drawn if each != number][:NUM_OTHERS]


def _rows(found: Sequence[Claim], document: str, prefix: str, source: str) -> Iterator[dict[str, object]]:
    for number, claim in enumerate(found):
        yield {
            "id": f"{prefix}-{number}",
            "document": document,
            "summary": claim.text,
            "label": int(claim.label == "consistent"),
            "how": claim.how,
            "source": source,
        }
