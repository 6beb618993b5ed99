"""The file of training examples: Parquet with `prompt` and `completion`, which other trainers read too.

Examples flow in and out. Its footer says what they were made with, so that training and export can tell what a model
was tuned for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from batchfact.distill.examples import Example
from batchfact.distill.splits import Split
from batchfact.durable import durable_file
from batchfact.errors import UsageError
from batchfact.models.registry import PromptStyle, TrainedMode
from batchfact.prompts.loader import PromptVariant

KEY = b"batchfact_distill"
ROWS = 4096

SCHEMA = pa.schema(
    [
        ("prompt", pa.string()),
        ("completion", pa.string()),
        ("label", pa.string()),
        ("weight", pa.float32()),
        ("split", pa.string()),
        ("data_set", pa.string()),
        ("group", pa.string()),
        ("unit", pa.string()),
        ("window", pa.int32()),
        ("kind", pa.string()),
        ("reasoning", pa.bool_()),
        ("source", pa.string()),
        ("document_key", pa.string()),
        ("labels", pa.list_(pa.string())),
        ("fields", pa.list_(pa.struct([("name", pa.string()), ("start", pa.int32()), ("end", pa.int32())]))),
    ]
)


class Origin(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One data set that the examples come from, with its training rows."""

    name: str
    licence: str | None
    rows: int


class Made(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the examples were made with. `base_digest` is the hash of the base model whose tokenizer rendered them."""

    recipe: str
    base: str
    base_digest: str
    prompts: PromptVariant
    prompt_style: PromptStyle
    prompt_digests: Mapping[str, str]
    modes: tuple[TrainedMode, ...]
    origins: tuple[Origin, ...]
    batchfact_version: str


class Placed(Struct, frozen=True, kw_only=True):
    """An example with its side, its weight, and the key that near-duplicate documents share."""

    example: Example
    split: Split
    weight: float
    document_key: str


def write_examples(path: Path, examples: Iterator[Placed], made: Made) -> None:
    """Write all examples, whole or not at all.

    Raises: UsageError if the file cannot be written.
    """
    schema = SCHEMA.with_metadata({KEY: msgspec.json.encode(made)})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with durable_file(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
            batch: list[dict[str, object]] = []
            for placed in examples:
                batch.append(_row(placed))
                if len(batch) == ROWS:
                    writer.write_table(pa.Table.from_pylist(batch, schema))
                    batch = []
            writer.write_table(pa.Table.from_pylist(batch, schema))
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror or error})") from error


def read_made(path: Path) -> Made:
    """Raises: UsageError if the file is not there or was not made by `batchfact distill build`."""
    try:
        kept = (pq.read_schema(path).metadata or {}).get(KEY)
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"{path} cannot be read ({str(error).splitlines()[0]})") from error
    try:
        return msgspec.json.decode(kept or b"", type=Made)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path} was not made by this version's `batchfact distill build`; build it anew") from error


def read_examples(path: Path) -> Iterator[Placed]:
    with pq.ParquetFile(path) as parquet:
        for batch in parquet.iter_batches(1024):
            yield from map(_placed, batch.to_pylist())


def _row(placed: Placed) -> dict[str, object]:
    example = placed.example
    return {
        **{name: getattr(example, name) for name in Example.__struct_fields__ if name != "fields"},
        "fields": [msgspec.to_builtins(field) for field in example.fields],
        "reasoning": example.source is not None,
        "weight": placed.weight,
        "split": placed.split,
        "document_key": placed.document_key,
    }


def _placed(row: Mapping[str, object]) -> Placed:
    placed = {name: row[name] for name in ("split", "weight", "document_key")}
    return msgspec.convert({**placed, "example": {name: row[name] for name in Example.__struct_fields__}}, Placed)
