"""What an output says about its making."""

from __future__ import annotations

import json

from batchfact.config import FoldPolicy, OutputOptions
from batchfact.metadata import describe_run, versions


def test_it_names_versions_method_fold_columns_and_inputs():
    described = describe_run(
        {"model": "m", "input": {"a.parquet": {"rows": 1}}},
        FoldPolicy(threshold=0.4),
        OutputOptions(keep_columns=("id",)),
        {"inputs": ("a.parquet",), "early_exit": True, "quiet": True},
        {"engine_restarts": 2},
        None,
    )
    found = json.loads(json.dumps(described))
    assert found["identity"] == {"model": "m"}
    assert found["fold"] == {"threshold": 0.4, "aggregation": "any", "min_label_mass": 0.01, "calibration": None}
    assert found["columns"] == {"column_prefix": "batchfact_", "keep_columns": ["id"], "drop_document": False}
    assert found["incidents"] == {"engine_restarts": 2}
    assert found["early_exit"] is True and found["inputs"] == ["a.parquet"]
    assert found["versions"] == versions() and {"batchfact", "python", "pyarrow"} <= versions().keys()
