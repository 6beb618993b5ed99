"""Scored Parquet files as a run writes them, from plain values: for tests of what reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchfact.sink import VERDICT_FIELDS

METADATA: dict[str, Any] = {
    "batchfact_version": "0.1.0",
    "versions": {"python": "3.11"},
    "identity": {"model": "m", "paradigm": "sent-nli", "document_column": "document", "summary_column": "summary"},
    "fold": {"threshold": 0.4, "aggregation": "any", "min_label_mass": 0.01},
    "columns": {"column_prefix": "batchfact_"},
    "early_exit": False,
    "inputs": ["in.parquet"],
}


def finding(text: str, part: str, label: str | None = "inconsistent", **more: Any) -> dict[str, Any]:
    """A finding on `part` of a summary, wherever it first stands in `text`."""
    start = text.index(part)
    score = {"consistent": 0.9, "inconsistent": 0.125}.get(label or "")
    fields = {field.name: None for field in VERDICT_FIELDS[5].type.value_type}
    found = {"start": start, "end": start + len(part), "label": label, "score": score, "label_mass": 0.5}
    return {**fields, "status": "ok" if label else "unparsed", "evidence": [], **found, **more}


def span(text: str, part: str) -> dict[str, int]:
    return {"start": text.index(part), "end": text.index(part) + len(part)}


def row(document: str | None, summary: str, findings: Sequence[Mapping[str, Any]] = (), **more: Any) -> dict[str, Any]:
    """A row with the verdict that its findings give; `more` are further columns, or other values of these."""
    labels = [each["label"] for each in findings]
    label = "inconsistent" if "inconsistent" in labels else "consistent" if labels and all(labels) else None
    scores = [each["score"] for each in findings if each["score"] is not None]
    return {
        "document": document,
        "summary": summary,
        "batchfact_label": label,
        "batchfact_score": min(scores) if label else None,
        "batchfact_score_raw": min(scores) if label else None,
        "batchfact_status": "ok" if label else "incomplete",
        "batchfact_message": "A sentence for a person.",
        "batchfact_findings": list(findings),
        "batchfact_tokens": {"prompt": 100, "cached": 40, "output": 2},
        **more,
    }


def write_scored(
    path: Path, rows: Sequence[Mapping[str, Any]], *, metadata: Any = METADATA, prefix: str = "batchfact_"
) -> Path:
    """Write rows with the output's own types; other columns get the types of their values."""
    own = [field.with_name("batchfact_" + field.name) for field in VERDICT_FIELDS]
    names = list(rows[0]) if rows else ["document", "summary", *(field.name for field in own)]
    types = {field.name: field.type for field in own} | {"document": pa.string(), "summary": pa.string()}
    columns = {name: pa.array([each[name] for each in rows], types.get(name)) for name in names}
    table = pa.table({name.replace("batchfact_", prefix): column for name, column in columns.items()})
    described = {"batchfact": json.dumps(metadata)} if metadata is not None else None
    pq.write_table(table.replace_schema_metadata(described), path)
    return path
