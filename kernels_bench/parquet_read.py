"""Rows from Parquet: ours, numbered, checked and hashed a batch at a time, against a whole table as Python texts."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.parquet as pq

from batchfact.records import Pair
from batchfact.source import Source
from kernels_bench.kernel import Arm, Cost, Kernel, Place, same
from kernels_bench.stored_rows import make_source

ROWS = {"tiny": 10, "full": 20_000}


def kernels(place: Place) -> Iterator[Kernel]:
    source = make_source(place.folder, ROWS[place.size])
    cost = Cost(bytes=source.num_bytes + source.plain_text_bytes)
    yield Kernel(
        shape=f"{source.num_rows:,} rows, {source.num_bytes / 1e6:.1f} MB in the file",
        reference=Arm("pyarrow, no checks", lambda: whole_table(source), cost),
        candidates=(Arm("batchfact.source", lambda: streamed(source), cost),),
        check=same,
    )


def whole_table(source: Source) -> list[tuple[str, str]]:
    table = pq.read_table(source.shards[0].path, columns=["document", "summary"])
    return list(zip(table["document"].to_pylist(), table["summary"].to_pylist(), strict=True))


def streamed(source: Source) -> list[tuple[str, str]]:
    return [(pair.document, pair.summary) for pair in source.pairs() if isinstance(pair, Pair)]
