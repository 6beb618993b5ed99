"""`batchfact distill synthesize`: synthetic labelled pairs from raw text.

Parquet files with a document column flow in; one labelled file flows out, which `build` takes like any other. The same
seed gives the same file.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from batchfact.config import require
from batchfact.distill.labelled import parse_rule
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
    meet, as in a recipe.
    """

    claims_a_document: int = 12
    passage_words: tuple[int, int] | None = None
    max_documents: int | None = None
    seed: int = 0
    document_column: str = "document"
    where: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.claims_a_document >= 1, "--claims must be at least 1", self.claims_a_document)
        words = self.passage_words
        require(words is None or 0 < words[0] <= words[1], "--passage-words takes LEAST,MOST", words)
        require(
            self.max_documents is None or self.max_documents >= 1,
            "--max-documents must be at least 1",
            self.max_documents,
        )


def synthesize(inputs: Sequence[Path], output: Path, plan: Plan) -> dict[str, int]:
    """Write the pairs; returns how many there are of each kind, and of documents that gave none.

    Raises: UsageError for a file that cannot be read, has no such column, is the output too, or if nothing came of all
        of them.
    """
    refuse_overwriting(output, inputs)
    texts = [(file.stem, text) for file in inputs for text in _passages(file, plan)]
    made: Counter[str] = Counter()
    with durable_file(output) as file, pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for number, (source, text) in enumerate(texts):
            found = claims(text, _others(texts, number, plan.seed), plan.claims_a_document, seed=f"{plan.seed} {text}")
            made.update(claim.how for claim in found)
            made["documents without claims"] += not found
            writer.write_table(pa.Table.from_pylist(list(_rows(found, text, f"{source}-{number}", source)), SCHEMA))
        if made.keys() == {"documents without claims"}:
            raise UsageError("no document has the three sentences of 5 to 40 words that claims are made of")
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


def _passages(file: Path, plan: Plan) -> Iterator[str]:
    """The file's different documents, or a passage of each."""
    rng = random.Random(f"{plan.seed} {file.stem}")
    documents = list(dict.fromkeys(_documents(file, plan)))
    if plan.max_documents is not None and len(documents) > plan.max_documents:
        documents = rng.sample(documents, plan.max_documents)
    for document in documents:
        text = passage(document, plan.passage_words, rng) if plan.passage_words else document
        if text:
            yield text


def _documents(file: Path, plan: Plan) -> Iterator[str]:
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
            for batch in parquet.iter_batches(1024):
                kept = (row[column] for row in batch.to_pylist() if all(rule(row) for rule in rules))
                yield from (text.strip() for text in kept if text and text.strip())
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"{file} cannot be read ({str(error).splitlines()[0]})") from error


def _others(texts: Sequence[tuple[str, str]], number: int, seed: int) -> list[str]:
    """Texts of other documents."""
    rng = random.Random(f"{seed} others {number}")
    drawn = rng.sample(range(len(texts)), min(NUM_OTHERS + 1, len(texts)))
    return [texts[each][1] for each in drawn if each != number][:NUM_OTHERS]


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
