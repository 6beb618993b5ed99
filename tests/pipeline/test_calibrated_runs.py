"""A calibration through the real command line: run, run again, reduce."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchfact.calibration import Calibration, write_calibration
from tests.pipeline.command_line import PAIRS, CommandLine, rows
from tests.pipeline.test_reduce import described
from tests.unit.test_calibration import CALIBRATION as FOR_WINDOWS

CALIBRATION = Calibration(temperature=2.0, count_weight=-0.5, bias=1.0, threshold=0.6)


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    path = tmp_path / "calibration.toml"
    write_calibration(path, CALIBRATION)
    return path


def expected(row: dict[str, Any]) -> float:
    return CALIBRATION.calibrate(row["batchfact_score_raw"], len(row["batchfact_findings"]))


def test_a_change_of_calibration_only_merges_again(
    cli: CommandLine, make_input: Any, tmp_path: Path, calibration: Path
) -> None:
    source, output = make_input(PAIRS[:8]), tmp_path / "out.parquet"
    log = f"log={tmp_path / 'requests'}"
    cli.run(source, output, "--engine-arg", log)
    raw, asked = rows(output), (tmp_path / "requests").read_text()
    cli.run(source, output, "--engine-arg", log, "--calibration", calibration)

    assert (tmp_path / "requests").read_text() == asked
    for row, before in zip(rows(output), raw, strict=True):
        assert row["batchfact_score_raw"] == before["batchfact_score"]
        assert row["batchfact_score"] == pytest.approx(expected(row), abs=1e-6)
        assert row["batchfact_label"] == ("consistent" if row["batchfact_score"] >= 0.6 else "inconsistent")
    assert {row["batchfact_label"] for row in rows(output)} == {"consistent", "inconsistent"}
    assert described(output)["fold"]["threshold"] == 0.6
    assert described(output)["fold"]["calibration"]["temperature"] == 2.0


def test_reduce_keeps_changes_and_drops_a_calibration(
    cli: CommandLine, make_input: Any, tmp_path: Path, calibration: Path
) -> None:
    output = tmp_path / "out.parquet"
    cli.run(make_input(PAIRS[:8]), output, "--threshold", "0.3")
    cli("reduce", output, "--calibration", calibration)
    assert described(output)["fold"]["threshold"] == 0.6  # 0.3 was for raw scores

    cli("reduce", output, "--drop-document")
    assert described(output)["fold"]["calibration"]["bias"] == 1.0
    assert all(row["batchfact_score"] == pytest.approx(expected(row), abs=1e-6) for row in rows(output))

    cli("reduce", output, "--calibration", "none")
    assert described(output)["fold"]["calibration"] is None
    assert described(output)["fold"]["threshold"] == 0.5
    assert all(row["batchfact_score"] == row["batchfact_score_raw"] for row in rows(output))


def test_a_registered_models_own_calibration_is_used_for_its_method(
    cli: CommandLine, make_input: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_calibration(tmp_path / "own.toml", FOR_WINDOWS)
    monkeypatch.setenv("BATCHFACT_CONFIG_DIR", str(tmp_path))
    (tmp_path / "models.toml").write_text(
        f'[tuned]\nsource = {{ kind = "folder", path = "{cli.model}" }}\ncalibration = "{tmp_path / "own.toml"}"\n'
    )
    source = make_input(PAIRS[:4])
    words = ("--engine", "fake", "--model", "tuned")
    used = cli("run", source, "used.parquet", *words)
    other = cli("run", source, "other.parquet", *words, "--paradigm", "summ-nli")
    off = cli("run", source, "off.parquet", *words, "--calibration", "none")

    folds = [described(tmp_path / f"{name}.parquet")["fold"] for name in ("used", "other", "off")]
    assert [fold["threshold"] for fold in folds] == [FOR_WINDOWS.threshold, 0.5, 0.5]
    assert [fold["calibration"] is not None for fold in folds] == [True, False, False]
    assert "the calibration was fitted with other model weights and prompts" in used.stderr
    assert "the model's own calibration is not used: it was fitted with paradigm sent-nli" in other.stderr
    assert "calibration" not in off.stderr


def test_reduce_says_that_a_calibration_is_for_other_weights(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    cli.run(make_input(PAIRS[:4]), "out.parquet")
    write_calibration(tmp_path / "c.toml", FOR_WINDOWS)
    done = cli("reduce", "out.parquet", "--calibration", "c.toml")

    assert "warning: the calibration was fitted with other model weights and prompts" in done.stderr


def test_reduce_takes_the_aggregation_from_a_calibration(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    cli.run(make_input(PAIRS[:4]), "out.parquet", "--aggregation", "mean")
    write_calibration(tmp_path / "c.toml", FOR_WINDOWS)
    cli("reduce", "out.parquet", "--calibration", "c.toml")
    assert described(tmp_path / "out.parquet")["fold"]["aggregation"] == "any"

    cli("reduce", "out.parquet", "--calibration", "none")
    assert described(tmp_path / "out.parquet")["fold"]["aggregation"] == "any"
    done = cli("reduce", "out.parquet", "--calibration", "c.toml", "--aggregation", "mean", code=2)
    assert "it was fitted with aggregation any, this run has mean" in done.stderr


def test_reduce_refuses_a_calibration_for_another_method(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    cli.run(make_input(PAIRS[:4]), "out.parquet", "--aggregation", "mean", "--paradigm", "summ-nli")
    write_calibration(tmp_path / "c.toml", FOR_WINDOWS)
    done = cli("reduce", "out.parquet", "--calibration", "c.toml", code=2)

    assert "--calibration does not fit: it was fitted with paradigm sent-nli, this run has summ-nli" in done.stderr
