"""Scores pairs in a Ray Dataset on the cluster at ADDRESS and prints the rows as JSON: `ADDRESS MODEL DATA` (JSON)."""

from __future__ import annotations

import json
import sys

import ray
import ray.data

from batchfact.errors import UsageError
from batchfact.ray import score_dataset

if __name__ == "__main__":
    address, model, pairs = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    ray.init(address=address, log_to_driver=False)
    dataset = ray.data.from_items([{"id": i, "document": each[0], "summary": each[1]} for i, each in enumerate(pairs)])
    try:
        score_dataset(dataset, model=model, engine="fake", document_column="text")
        refusal = ""
    except UsageError as error:
        refusal = str(error)
    rows = score_dataset(dataset, model=model, engine="fake", workers=2, batch_rows=8).take_all()
    print(json.dumps({"refusal": refusal, "rows": sorted(rows, key=lambda row: row["id"])}))
