"""Documents beyond the model's context, through the real command line with the fake engine: a token a character."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

LONG = " ".join(f"Item {number} was sold to guest {number} on day {number}." for number in range(200))
SHORT = "Item 7 was sold to guest 7 on day 7."
PAIRS = [
    (LONG, "Item 7 was sold to the house 9. Item 150 was lost to the house."),
    (SHORT, "Item 7 was sold to the house."),
    (LONG, "Item 150 was lost to the house."),
]
LIMIT = ["--max-model-len", "2400"]

Row = dict[str, Any]


class CommandLine:
    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.folder = model, folder

    def __call__(self, *words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "batchfact", *map(str, words)],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def run(self, source: Path, *words: object) -> list[Row]:
        self("run", source, "out.parquet", "--engine", "fake", "--model", self.model, "--restart", *LIMIT, *words)
        found: list[Row] = pq.read_table(self.folder / "out.parquet").to_pylist()
        return found


@pytest.fixture
def cli(fake_model: Path, tmp_path: Path) -> CommandLine:
    return CommandLine(fake_model, tmp_path)


def evidence(row: Row) -> list[list[str]]:
    return [
        [row["document"][span["start"] : span["end"]] for span in finding["evidence"]]
        for finding in row["batchfact_findings"]
    ]


@pytest.mark.parametrize("paradigm", ["sent-nli", "qg-qa"])
def test_auto_aligns_windows_of_long_documents_and_leaves_the_others_alone(
    cli: CommandLine, make_input: Any, paradigm: str
) -> None:
    long, short, again = cli.run(make_input(PAIRS), "--paradigm", paradigm, "--align-sentences", "2")

    assert {row["batchfact_status"] for row in (long, short, again)} == {"ok"}
    assert all(len(each) == 2 for each in evidence(long))
    assert "Item 7 was sold to guest 7 on day 7." in evidence(long)[0]
    assert "Item 150 was sold to guest 150 on day 150." in evidence(again)[0]
    assert all(not each for each in evidence(short))
    assert "document sentences are not shown to the model" in long["batchfact_message"]
    assert "not shown" not in short["batchfact_message"]


@pytest.mark.parametrize(("paradigm", "num_findings"), [("vanilla", 1), ("cot", 1), ("sbs", 2)])
@pytest.mark.parametrize("mode", ["auto", "chunk"])
@pytest.mark.parametrize("label_mode", ["probability", "parse"])
def test_prompts_of_chen_show_as_much_of_a_long_document_as_fits(
    cli: CommandLine, make_input: Any, paradigm: str, num_findings: int, mode: str, label_mode: str
) -> None:
    words = ["--long-documents", mode, "--label-mode", label_mode, "--context-tokens", "500"]
    long, short, _ = cli.run(
        make_input(PAIRS), "--paradigm", paradigm, *words, "--engine-arg", "text= Yes. 2. No. Answer: Yes."
    )

    found = [finding["status"] for finding in long["batchfact_findings"]]
    assert len(found) == num_findings
    assert set(found) <= {"ok", "unparsed"}
    assert long["batchfact_status"] != "too_long"
    shown = ["".join(each) for each in evidence(long)]
    assert all(0 < len(each) < (500 if mode == "auto" else 2400) for each in shown)
    assert all(not each for each in evidence(short))


def test_a_whole_summary_is_aligned_up_to_the_context_tokens(cli: CommandLine, make_input: Any) -> None:
    long, short, _ = cli.run(make_input(PAIRS), "--paradigm", "summ-nli", "--context-tokens", "200")
    (shown,) = evidence(long)

    assert 100 < len(" ".join(shown)) <= 200
    assert shown == sorted(shown, key=LONG.index)
    assert evidence(short) == [[]]


def test_chunks_are_read_in_turn_and_the_best_one_is_the_evidence(
    cli: CommandLine, make_input: Any, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    found = cli.run(make_input(PAIRS), "--long-documents", "chunk", "--engine-arg", f"log={log}")
    num_requests = len(log.read_text().splitlines())

    assert [row["batchfact_status"] for row in found] == ["ok"] * 3
    assert [len(row["batchfact_findings"]) for row in found] == [2, 1, 1]
    assert all(len(each) == 1 and 100 < len(each[0]) <= 1536 for each in (*evidence(found[0]), *evidence(found[2])))
    assert "The document was read in chunks." in found[0]["batchfact_message"]
    # The last row's only window is one of the first row's, so its chunks are not asked again.
    assert num_requests % 2 == 1
    assert num_requests > 2 * len(LONG) // 1536


def test_fail_leaves_long_documents_unscored_and_asks_nothing(
    cli: CommandLine, make_input: Any, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    found = cli.run(make_input(PAIRS), "--long-documents", "fail", "--engine-arg", f"log={log}")

    assert [row["batchfact_status"] for row in found] == ["too_long", "ok", "too_long"]
    assert len(log.read_text().splitlines()) == 1


def test_align_aligns_short_documents_too(cli: CommandLine, make_input: Any) -> None:
    _, short, _ = cli.run(make_input(PAIRS), "--long-documents", "align")

    assert evidence(short) == [[SHORT]]


@pytest.mark.parametrize("mode", ["auto", "align", "chunk"])
def test_a_window_that_fills_the_model_is_too_long_and_never_cut(cli: CommandLine, make_input: Any, mode: str) -> None:
    window = "word " * 600
    found = cli.run(make_input([(LONG, f"{window}. Item 7 was sold.")]), "--long-documents", mode)
    statuses = [finding["status"] for finding in found[0]["batchfact_findings"]]

    assert statuses.count("too_long") >= 1
    assert statuses[-1] == "ok"
    assert found[0]["batchfact_status"] in ("incomplete", "ok")
    assert found[0]["batchfact_label"] != "consistent"


def test_early_exit_waits_for_all_chunks_of_a_window(cli: CommandLine, make_input: Any) -> None:
    """One chunk that does not support a window says nothing; else every long document would be inconsistent."""
    source = make_input(PAIRS)
    whole = cli.run(source, "--long-documents", "chunk", "--threshold", "0.5")
    early = cli.run(source, "--long-documents", "chunk", "--threshold", "0.5", "--early-exit")

    assert [row["batchfact_label"] for row in early] == [row["batchfact_label"] for row in whole]


def test_explain_shows_the_context_and_where_it_is_from(cli: CommandLine, make_input: Any) -> None:
    words = ["--engine", "fake", "--model", cli.model, *LIMIT, "--align-sentences", "1"]
    done = cli("explain", make_input(PAIRS), "--row", "2", *words)

    assert "\nItem 150 was sold to guest 150 on day 150.\n" in done.stdout
    assert "Item 149 was" not in done.stdout
    start = LONG.index("Item 150")
    assert f"judged by characters {start} to {start + 42} of the document (199 sentences left out)" in done.stdout


def test_plan_says_that_aligned_windows_share_nothing(cli: CommandLine, make_input: Any) -> None:
    source = make_input(PAIRS)
    aligned = cli("plan", source, "--max-model-len", "600").stdout

    assert "note: 2 pairs are aligned: each window has its own context, so nothing of it is shared" in aligned
    assert "note:" not in cli("plan", source).stdout
    assert "too_long" in cli("plan", source, "--max-model-len", "600", "--long-documents", "fail").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--align-sentences", "0"], "--align-sentences must be at least 1, got 0"),
        (["--context-tokens", "0"], "--context-tokens must be at least 1, got 0"),
    ],
)
def test_options_out_of_range_are_refused(cli: CommandLine, make_input: Any, words: list[str], message: str) -> None:
    done = cli("run", make_input(PAIRS), "out.parquet", "--engine", "fake", "--model", cli.model, *words, code=2)

    assert message in done.stderr


def test_another_way_with_long_documents_needs_new_answers(cli: CommandLine, make_input: Any) -> None:
    source = make_input(PAIRS)
    cli.run(source)
    done = cli(
        *("run", source, "out.parquet", "--engine", "fake", "--model", cli.model, *LIMIT),
        *("--long-documents", "chunk"),
        code=2,
    )

    assert "long_documents" in done.stderr
