"""Every prompting method through the real command line, with the fake engine behind its entry point."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.command_line import CommandLine, rows

PAIRS = [(f"Document {i // 2}. It is about item {i // 2}.", f"Item {i}. Sold {i}.") for i in range(12)]
NUMBERED = "text= No. 2. Yes.| Yes. 2. Yes.| Yes."


@pytest.fixture
def cli(fake_model: Path, tmp_path: Path) -> CommandLine:
    return CommandLine(fake_model, tmp_path)


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """Labelled pairs for every paradigm; the first two documents are in the input."""
    documents = [PAIRS[0][0], PAIRS[2][0], *(f"Shown {i}." for i in range(4))]
    table = pa.table(
        {
            "document": documents,
            "summary": [f"A lamp {i}. A chair {i}." for i in range(6)],
            "label": [i % 2 for i in range(6)],
            "reasoning": [f"Evidence {i}." for i in range(6)],
            "sentence_labels": [[1, i % 2] for i in range(6)],
        }
    )
    pq.write_table(table, tmp_path / "shots.parquet")
    return tmp_path / "shots.parquet"


def metadata(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pq.read_schema(path).metadata[b"batchfact"])
    return found


@pytest.mark.parametrize(
    ("words", "num_findings"),
    [
        (["--paradigm", "vanilla"], 1),
        (["--paradigm", "vanilla", "--instruction", "3"], 1),
        (["--paradigm", "cot", "--instruction", "2"], 1),
        (["--paradigm", "sbs"], 2),
        (["--paradigm", "sbs", "--shots", "2", "--demonstrations", "shots.parquet"], 2),
        (["--paradigm", "cot", "--shots", "2", "--demonstrations", "shots.parquet"], 1),
        (["--paradigm", "sent-nli", "--rating"], 2),
        (["--paradigm", "summ-nli", "--rating", "--reasoning"], 1),
        (["--paradigm", "qg-qa", "--rating"], None),
    ],
)
@pytest.mark.usefixtures("shots")
def test_every_method_scores_every_row(
    cli: CommandLine, make_input: Any, tmp_path: Path, words: list[str], num_findings: int | None
) -> None:
    cli.run(make_input(PAIRS), "out.parquet", *words)
    found = rows(tmp_path / "out.parquet")

    assert [row["batchfact_status"] for row in found] == ["ok"] * 12
    assert all(0 <= row["batchfact_score"] <= 1 for row in found)
    if num_findings:
        assert all(len(row["batchfact_findings"]) == num_findings for row in found)
    if "--rating" in words:
        share = words[1] == "qg-qa"
        for row in found:
            values = [(f["label"] == "consistent") if share else f["score"] for f in row["batchfact_findings"]]
            assert row["batchfact_score"] == pytest.approx(sum(values) / len(values))
        assert metadata(tmp_path / "out.parquet")["fold"]["aggregation"] == ("share" if share else "mean")


@pytest.mark.parametrize(
    ("words", "text", "statuses"),
    [
        (["--paradigm", "vanilla"], " Yes.| No, it differs.", {"ok"}),
        (["--paradigm", "vanilla"], " As an AI, I have no opinion.", {"refused"}),
        (["--paradigm", "cot"], " It says so. 2. No.", {"ok"}),
        (["--paradigm", "sbs"], " No. 2. Yes.| Yes. 2. No.", {"ok"}),
        (["--paradigm", "sbs"], " Yes.", {"incomplete"}),
        (["--paradigm", "sent-nli", "--reasoning"], "It fits.\nAnswer: No", {"ok"}),
        (["--paradigm", "qg-qa"], " Yes, they agree.", {"ok"}),
    ],
)
def test_labels_can_be_parsed_from_text(
    cli: CommandLine, make_input: Any, tmp_path: Path, words: list[str], text: str, statuses: set[str]
) -> None:
    cli.run(make_input(PAIRS), "out.parquet", *words, "--label-mode", "parse", "--engine-arg", f"text={text}")
    found = rows(tmp_path / "out.parquet")

    assert {row["batchfact_status"] for row in found} == statuses
    assert all(row["batchfact_score"] is None for row in found)
    assert all((row["batchfact_label"] is not None) == (row["batchfact_status"] == "ok") for row in found)
    assert all(row["batchfact_findings"][0]["reasoning"] for row in found)


def test_parsed_rows_can_be_folded_again(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    source = make_input(PAIRS)
    cli.run(source, "out.parquet", "--paradigm", "sbs", "--label-mode", "parse", "--engine-arg", "text= No. 2. Yes.")
    cli("reduce", "out.parquet", "--aggregation", "share", "--to", "share.parquet")

    assert {row["batchfact_label"] for row in rows(tmp_path / "out.parquet")} == {"inconsistent"}
    assert {row["batchfact_score"] for row in rows(tmp_path / "share.parquet")} == {0.5}


def test_sbs_asks_sentence_by_sentence_with_the_answers_before(
    cli: CommandLine, make_input: Any, tmp_path: Path
) -> None:
    cli.run(make_input(PAIRS), "out.parquet", "--paradigm", "sbs", "--engine-arg", f"log={tmp_path / 'log'}")

    assert len((tmp_path / "log").read_text().splitlines()) == 24
    plan = cli("plan", "in.parquet", "--paradigm", "sbs")
    assert "24" in plan.stdout


def test_demonstrations_are_identity_and_documents_of_the_input_are_not_shown(
    cli: CommandLine, make_input: Any, tmp_path: Path, shots: Path
) -> None:
    source = make_input(PAIRS)
    few_shot = ["--paradigm", "vanilla", "--shots", "4", "--demonstrations", shots]
    done = cli("explain", source, "--row", "3", *few_shot, "--engine", "fake", "--model", cli.model)
    assert [f"Shown {i}." in done.stdout for i in range(4)] == [True] * 4
    assert PAIRS[0][0] not in done.stdout

    cli.run(source, "out.parquet", *few_shot)
    assert len(metadata(tmp_path / "out.parquet")["identity"]["demonstrations"]) == 64
    moved = shots.rename(tmp_path / "moved.parquet")
    cli.run(source, "out.parquet", *few_shot[:-1], moved)
    refused = cli.run(source, "out.parquet", *few_shot[:-1], moved, "--seed", "1", code=2)
    assert "demonstrations" in refused.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--paradigm", "vanilla", "--shots", "6", "--demonstrations", "shots.parquet"],
            "there are 2 that can be used",
        ),
        (["--paradigm", "cot", "--instruction", "4"], "--instruction is 1, 2 or 3, got 4"),
        (["--paradigm", "vanilla", "--shots", "2", "--demonstrations", "one.parquet"], "both labels"),
        (["--paradigm", "cot", "--shots", "2", "--demonstrations", "one.parquet"], "no column 'reasoning'"),
        (["--paradigm", "vanilla", "--shots", "2", "--demonstrations", "none.parquet"], "none.parquet cannot be read"),
        (
            ["--paradigm", "vanilla", "--shots", "4", "--demonstrations", "shots.parquet", "--max-model-len", "600"],
            "take fewer shots or shorter demonstrations",
        ),
    ],
)
@pytest.mark.usefixtures("shots")
def test_a_method_that_does_not_fit_is_an_error_before_any_model(
    cli: CommandLine, make_input: Any, tmp_path: Path, words: list[str], message: str
) -> None:
    make_input([("Shown.", "A.")], name="one.parquet", label=[1])
    done = cli.run(make_input(PAIRS), "out.parquet", *words, "--engine-arg", "die_after=0", code=2)

    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "out.parquet.journal").exists()


def test_repeated_runs_differ_by_seed_and_share_nothing(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    source = make_input([PAIRS[0]] * 3)
    cot = ["--paradigm", "cot", "--temperature", "0.7", "--engine-arg", f"log={tmp_path / 'log'}"]

    def evidence(output: str, *words: str) -> list[str]:
        cli.run(source, output, *cot, *words)
        return [row["batchfact_findings"][0]["reasoning"] for row in rows(tmp_path / output)]

    first = evidence("a.parquet", "--seed", "1")
    sampled = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert len(sampled) == 6
    assert {words[3] for words in sampled if len(words) > 3} == {"0.7"}
    assert len(set(first)) == 3
    assert evidence("b.parquet", "--seed", "1") == first
    assert not set(evidence("c.parquet", "--seed", "2")) & set(first)
    refused = cli.run(source, "a.parquet", *cot, "--seed", "2", code=2)
    assert "seed: 1 -> 2" in refused.stderr


def test_a_temperature_that_changes_nothing_is_said(cli: CommandLine, make_input: Any) -> None:
    done = cli.run(make_input(PAIRS[:2]), "out.parquet", "--paradigm", "vanilla", "--temperature", "1")

    assert "--temperature changes nothing here" in done.stderr


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--paradigm", "vanilla", "--instruction", "2"], "factually consistent with the above document? Yes or No?"),
        (["--paradigm", "cot"], "(the model's reasoning stands here.) 2."),
        (["--paradigm", "sbs"], "A: 1. Yes. 2."),
        (["--paradigm", "sbs", "--label-mode", "parse"], "from which the label is parsed"),
        (["--rating"], "probabilities of the ratings 1, 2, 3, 4, 5"),
        (["--paradigm", "cot", "--temperature", "0.5"], "sampled at temperature 0.5"),
    ],
)
def test_explain_shows_what_a_method_asks(cli: CommandLine, make_input: Any, words: list[str], shown: str) -> None:
    done = cli("explain", make_input(PAIRS), "--row", "5", *words, "--engine", "fake", "--model", cli.model)

    assert shown in done.stdout
    assert "Item 5." in done.stdout


def test_methods_come_from_a_file_too(cli: CommandLine, make_input: Any, tmp_path: Path, shots: Path) -> None:
    (tmp_path / "run.toml").write_text(
        'paradigm = "sbs"\nlabel-mode = "parse"\nshots = 2\ndemonstrations = "shots.parquet"\ninstruction = 3\n'
    )
    cli.run(make_input(PAIRS), "out.parquet", "--config", "run.toml", "--engine-arg", NUMBERED)

    identity = metadata(tmp_path / "out.parquet")["identity"]
    assert (identity["paradigm"], identity["label_mode"], identity["instruction"]) == ("sbs", "parse", 3)
