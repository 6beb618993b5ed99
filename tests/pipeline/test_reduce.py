"""`batchfact reduce` through the real command line: its options, its warnings and its metadata are those of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.pipeline.command_line import PAIRS, CommandLine


def described(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pq.read_schema(path).metadata[b"batchfact"])
    return found


def test_kept_columns_are_named_as_in_run(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    source = make_input(PAIRS[:4], a=[1] * 4, b=[2] * 4)
    cli.run(source, "out.parquet", "--keep-columns", " a, b ,")
    cli("reduce", "out.parquet", "--keep-columns", " a, b ,", "--to", "again.parquet")

    run, again = tmp_path / "out.parquet", tmp_path / "again.parquet"
    assert pq.read_table(again) == pq.read_table(run)
    assert pq.read_schema(again).names[:2] == ["a", "b"]


def test_the_metadata_is_that_of_a_run(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    cli.run(make_input(PAIRS[:4]), "out.parquet")
    cli("reduce", "out.parquet", "--to", "again.parquet")

    assert described(tmp_path / "again.parquet") == described(tmp_path / "out.parquet")


def test_damage_in_the_journal_is_said_beside_the_error_it_causes(
    cli: CommandLine, make_input: Any, tmp_path: Path
) -> None:
    cli.run(make_input(PAIRS[:4]), "out.parquet")
    (part,) = (tmp_path / "out.parquet.journal").glob("part-*.parquet")
    part.write_bytes(part.read_bytes()[:100])
    done = cli("reduce", "out.parquet", code=1)

    assert f"warning: {part.name} is damaged" in done.stderr
    assert "error: row 0" in done.stderr
