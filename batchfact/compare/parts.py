"""The rows of a data set that get one paradigm, as a Parquet file that `run` can read.

A data set and a part flow in, a file flows out: its rows in their order, with the row's number as id where there is
none, so that the parts of a data set can be joined again.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from batchfact.compare.cells import Cell, Part
from batchfact.durable import durable_file


def write_part(cell: Cell, part: Part, id_column: str) -> None:
    """Write the cell's input, unless it is there: its name says which rows of which data it holds.

    Raises: OSError where the disk is full or fails.
    """
    path = Path(cell.input)
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset = cell.data_set.open()
    has_ids = id_column in dataset.schema.names
    schema = dataset.schema if has_ids else dataset.schema.append(pa.field(id_column, pa.string()))
    first_row = 0
    with durable_file(path) as file, pq.ParquetWriter(file, schema) as writer:
        for read in dataset.to_batches():
            ids = [f"row {row}" for row in range(first_row, first_row + read.num_rows)]
            batch = (
                read
                if has_ids
                else pa.RecordBatch.from_arrays([*read.columns, pa.array(ids, pa.string())], schema=schema)
            )
            values = batch.column(part.by.column).to_pylist()
            chosen = pa.array([part.by.paradigm_of(value) == part.paradigm for value in values], pa.bool_())
            writer.write_batch(batch.filter(chosen))
            first_row += batch.num_rows
