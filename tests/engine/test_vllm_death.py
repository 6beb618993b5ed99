"""The real vLLM loses its engine process in mid-run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from batchfact.run_log import read_log

SCRIPT = """
import sys

import psutil

from batchfact import committing
from batchfact.cli import main

commit = committing.Committer._flush
is_killed = False


async def kill_then_commit(self):
    global is_killed
    if self._part and not is_killed:
        is_killed = True
        (core,) = [each for each in psutil.Process().children(recursive=True) if "EngineCore" in each.cmdline()[0]]
        core.kill()
    await commit(self)


committing.Committer._flush = kill_then_commit
main()
"""


def test_a_killed_engine_process_is_replaced_and_every_row_is_scored_as_without(
    model_folder: Path, make_input: Any, tmp_path: Path
) -> None:
    """The engine is killed when the first rows are committed: most requests are then with it, or still to come."""
    pairs = [(f"The shop sold {i} lamps and a chair.", f"It sold {i} lamps. It sold a table.") for i in range(24)]
    (tmp_path / "options.toml").write_text("part_rows = 2\nmax_restarts = 2\n")
    (tmp_path / "killing.py").write_text(SCRIPT)
    words = ["run", str(make_input(pairs)), "out.parquet", "--engine", "vllm", "--model", str(model_folder)]
    words += ["--kv-cache-memory", "1GiB", "--max-model-len", "1024", "--config", "options.toml"]
    words += ["--engine-arg", "max_num_seqs=2", "--compile", "off"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "killing.py", *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "it is started again (1 of 2)" in done.stderr
    found = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert len(found) == len(pairs)
    assert {row["batchfact_status"] for row in found} == {"ok"}
    metadata = json.loads(pq.read_schema(tmp_path / "out.parquet").metadata[b"batchfact"])
    assert metadata["incidents"] == {"engine_restarts": 1, "requests_given_up": 0}
    (ended,) = [each for each in read_log(tmp_path / "out.parquet.journal") if each.event == "engine_ended"]
    assert ended.in_flight
