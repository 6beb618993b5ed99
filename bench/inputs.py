"""Simulated inputs and a stand-in for a model, for measurements of everything around an engine."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.facts import ROOT

FAKE_ENGINE = ROOT / "tests" / "fake_engine"
ROWS_A_GROUP = 20_000
PAIRS_A_DOCUMENT = 4


def fake_engine_environment() -> dict[str, str]:
    """The environment of a process that finds the tests' fake engine."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(FAKE_ENGINE), str(ROOT)])}


def make_fake_model(folder: Path) -> Path:
    """A folder that looks like a model to everything but a real engine."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (model / "tokenizer.json").write_text("{}")
    return model


def write_input(path: Path, rows: int, document_bytes: int) -> None:
    schema = pa.schema([("document", pa.string()), ("summary", pa.string())])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for first in range(0, rows, ROWS_A_GROUP):
            pairs = list(_pairs(first, min(rows, first + ROWS_A_GROUP), document_bytes))
            documents, summaries = zip(*pairs, strict=True)
            writer.write_table(pa.table({"document": documents, "summary": summaries}, schema=schema))


def _pairs(first: int, stop: int, document_bytes: int) -> Iterator[tuple[str, str]]:
    """Documents of made-up words; each summary has three sentences, one of them from the document."""
    document, sentences = "", [""]
    for row in range(first, stop):
        if row % PAIRS_A_DOCUMENT == 0 or not document:
            draw = random.Random(row // PAIRS_A_DOCUMENT)
            words = [f"w{draw.getrandbits(16):x}" for _ in range(document_bytes // 5)]
            sentences = [" ".join(words[start : start + 12]).capitalize() + "." for start in range(0, len(words), 12)]
            document = " ".join(sentences)[:document_bytes]
        yield document, f"{sentences[row % len(sentences)]} Row {row} has a fact. It was sold on day {row % 365}."
