"""Show the verdicts in an output of `batchfact run`: python examples/show.py OUTPUT.parquet [ROWS]."""

from __future__ import annotations

import sys

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

WANTED = ("summary", "label", "batchfact_label", "batchfact_score", "batchfact_status")


def main(path: str, rows: int = 10) -> None:
    file = pq.ParquetFile(path)
    columns = [name for name in WANTED if name in file.schema_arrow.names]
    pairs = file.read(columns).slice(0, rows)
    table = Table(title=f"{pairs.num_rows} of {file.metadata.num_rows} rows of {path}", title_justify="left")
    for name in columns:
        table.add_column(name.replace("batchfact_", "batchfact "), overflow="fold")
    for pair in pairs.to_pylist():
        table.add_row(*(shown(pair[name]) for name in columns))
    Console().print(table)


def shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return "" if value is None else str(value) if len(str(value)) < 90 else f"{str(value)[:88]}..."


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]))
