"""`batchfact eval` and `calibrate` through the real command line, on what a run wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.pipeline.command_line import PAIRS, CommandLine, rows


@pytest.fixture
def scored(cli: CommandLine, make_input: Any, tmp_path: Path) -> Path:
    source = make_input(
        PAIRS, id=[f"p{row}" for row in range(40)], summarizer=["a", "b"] * 20, label=[1, 0, 1, 1, 0] * 8
    )
    cli.run(source, "out.parquet")
    return tmp_path / "out.parquet"


def test_scored_calibrated_and_evaluated(cli: CommandLine, scored: Path, tmp_path: Path) -> None:
    shown = cli("eval", scored).stdout
    assert "Labels" in shown and "By summariser" in shown

    # Labels that the scores do predict, from another file.
    table = pq.read_table(scored)
    better = [row["batchfact_score"] > 0.2 for row in rows(scored)]
    gold = table.select(["id"]).append_column("label", [better])
    pq.write_table(gold, tmp_path / "gold.parquet")
    cli("calibrate", scored, "--labels", "gold.parquet", "-o", "calibration.toml")
    cli("reduce", scored, "--calibration", "calibration.toml")
    found = json.loads(cli("eval", scored, "--labels", "gold.parquet", "--json").stdout)

    (cell,) = found["cells"]
    assert cell["system"].endswith("sent-nli calibrated")
    assert cell["runs"][0]["measures"]["balanced_accuracy"]["value"] > 0.9
    assert cell["runs"][0]["measures"]["rows"] == 40

    cli("eval", scored, "--labels", "gold.parquet", "--fit-threshold", "cv5", "--csv", "--plots", "plots")
    assert (tmp_path / "plots" / "roc.svg").exists()
    cli("eval", scored, "--threshold-from", scored, "--markdown", "--where", "summarizer == 'a'")


def test_a_calibration_is_never_written_over_what_it_was_fitted_on(cli: CommandLine, scored: Path) -> None:
    before = scored.read_bytes()

    assert "is an input; name another output" in cli("calibrate", scored, "-o", "out.parquet", code=2).stderr
    assert scored.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--label-column", "gold"), "no label column 'gold'"),
        (("--where", "summarizer = 'a'"), "is no condition"),
        (("--json", "--csv"), "--json and --csv exclude each other"),
        (("--threshold", "0.4", "--fit-threshold", "cv5"), "--threshold and --fit-threshold exclude each other"),
        (("--labels", "nowhere.parquet"), "nowhere.parquet does not exist"),
        (("--threshold", "nan"), "--threshold must lie between 0 and 1"),
        (("--threshold", "2"), "--threshold must lie between 0 and 1"),
    ],
)
def test_bad_input_is_said_in_one_line(
    cli: CommandLine, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    from tests.unit.scored_files import write_scored

    write_scored(tmp_path / "a.parquet", [1, 0], [0.9, 0.1], summarizer=["a", "b"])
    done = cli("eval", "a.parquet", *options, code=2)

    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
