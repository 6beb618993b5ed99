"""Small scored Parquet files as `run` writes them, for tests of what comes after."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from batchfact.config import FoldPolicy, Identity, OutputOptions
from batchfact.sink import FINDING


def facts(*, early_exit: bool = False, prefix: str = "batchfact_", **changes: Any) -> dict[str, Any]:
    """A file's metadata; `changes` are settings of the method or the fold."""
    identity: dict[str, Any] = msgspec.to_builtins(Identity())
    fold: dict[str, Any] = msgspec.to_builtins(FoldPolicy())
    identity |= {"model": "small", "model_digest": "abc", "reasoning": False, "prompts": {"sent_nli": "d1"}}
    for name, value in changes.items():
        (fold if name in fold else identity)[name] = value
    columns = msgspec.to_builtins(OutputOptions(column_prefix=prefix))
    return {
        "identity": identity,
        "fold": fold,
        "columns": columns,
        "early_exit": early_exit,
        "inputs": ["/data/input.parquet"],
    }


def write_scored(
    path: Path,
    gold: Sequence[Any],
    scores: Sequence[float | None],
    *,
    labels: Sequence[str | None] | None = None,
    statuses: Sequence[str] | None = None,
    num_findings: Sequence[int] | None = None,
    metadata: dict[str, Any] | None = None,
    **columns: Sequence[Any],
) -> str:
    """A scored file with ids r0, r1, ...; labels follow from the scores by 0.5 unless they are given."""
    metadata = facts() if metadata is None else metadata
    prefix = metadata["columns"]["column_prefix"]
    if labels is None:
        labels = [None if score is None else "consistent" if score >= 0.5 else "inconsistent" for score in scores]
    statuses = statuses or ["incomplete" if label is None else "ok" for label in labels]
    counts = num_findings or [1] * len(scores)
    findings = [
        [{"status": "ok", "score": score, "start": 0, "end": 1} for _ in range(count)] if score is not None else []
        for score, count in zip(scores, counts, strict=True)
    ]
    own = {"id": [f"r{row}" for row in range(len(scores))], "label": gold} | columns
    table = pa.table(
        {name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in own.items()}
        | {
            f"{prefix}label": pa.array(labels, pa.string()),
            f"{prefix}score": pa.array(scores, pa.float32()),
            f"{prefix}score_raw": pa.array(scores, pa.float32()),
            f"{prefix}status": pa.array(statuses, pa.string()),
            f"{prefix}findings": pa.array(findings, pa.list_(FINDING)),
        }
    )
    pq.write_table(table.replace_schema_metadata({"batchfact": json.dumps(metadata)}), path)
    return str(path)
