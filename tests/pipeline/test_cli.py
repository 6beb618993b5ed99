"""The real command line with the fake engine behind its entry point."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.command_line import PAIRS, CommandLine, rows, verdicts


def test_run_writes_every_row_in_order_with_its_columns(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    source = make_input(PAIRS, ids=list(range(40)))
    done = cli.run(source, "out.parquet")
    out = pq.read_table(tmp_path / "out.parquet")

    assert out.select(["document", "summary", "ids"]) == pq.read_table(source)
    assert out["batchfact_status"].to_pylist() == ["ok"] * 40
    assert "pairs/s" in done.stdout


def test_rows_that_cannot_be_scored_have_a_status_and_the_rest_is_scored(
    cli: CommandLine, make_input: Any, tmp_path: Path
) -> None:
    long = "word " * 300_000
    source = make_input([("", "A."), (None, "A."), ("A.", " "), ("A.", None), (long, "A."), ("A.", "A.")])
    cli.run(source, "out.parquet", "--long-documents", "fail")
    found = rows(tmp_path / "out.parquet")

    assert [row["batchfact_status"] for row in found] == [
        "empty_document",
        "empty_document",
        "empty_summary",
        "empty_summary",
        "too_long",
        "ok",
    ]
    assert all((row["batchfact_label"] is None) == (row["batchfact_status"] != "ok") for row in found)
    assert all(row["batchfact_message"] for row in found)


def test_a_folder_of_shards_gives_a_folder_of_shards(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    for number in range(3):
        make_input(PAIRS[number * 10 : number * 10 + 10], name=f"shards/{number}.parquet")
    cli.run("shards", "scored")

    assert sorted(path.name for path in (tmp_path / "scored").iterdir()) == ["0.parquet", "1.parquet", "2.parquet"]
    assert [row["summary"] for row in rows(tmp_path / "scored" / "2.parquet")] == [s for _, s in PAIRS[20:30]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.parquet", "out.parquet"], "nowhere.parquet"),
        (["in.parquet", "in.parquet"], "in.parquet"),
        (["in.parquet", "out.parquet", "--summary-column", "sumary"], "did you mean 'summary'"),
        (["in.parquet", "out.parquet", "--threshold", "7"], "--threshold must lie between 0 and 1, got 7"),
        (["in.parquet", "out.parquet", "--keep-columns", "documnt"], "document"),
        (["text.parquet", "out.parquet"], "text.parquet"),
        (["in.parquet", "out.parquet", "--column-prefix", "", "--summary-column", "label"], "label"),
        (["in.parquet"], "an input and an output"),
        (["in.parquet", "out.parquet", "--config", "bad.toml"], "did you mean 'threshold'"),
        (["in.parquet", "out.parquet", "--kv-cache-memory", "much"], "takes a size such as 4GiB"),
        (["in.parquet", "out.parquet", "--retry-status", "engine-error"], "--retry-status"),
    ],
)
def test_a_wrong_configuration_is_one_clear_line_and_exit_2(
    cli: CommandLine, make_input: Any, tmp_path: Path, words: list[str], message: str
) -> None:
    make_input(PAIRS[:2], label=["a", "b"])
    (tmp_path / "text.parquet").write_text("this is no Parquet")
    (tmp_path / "bad.toml").write_text("treshold = 0.4")
    done = cli.run(*words, code=2)

    assert message in done.stderr
    assert done.stderr.count("\n") <= 2
    assert not (tmp_path / "out.parquet").exists()


def test_an_unknown_option_names_the_nearest(cli: CommandLine, make_input: Any) -> None:
    done = cli.run(make_input(PAIRS[:2]), "out.parquet", "--treshold", "0.4", code=2)

    assert "--threshold" in done.stderr


def test_an_output_that_exists_is_refused(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    (tmp_path / "out.parquet").write_text("precious")
    cli.run(make_input(PAIRS[:2]), "out.parquet", code=2)

    assert (tmp_path / "out.parquet").read_text() == "precious"


def test_options_come_from_a_file_and_the_command_line_goes_first(
    cli: CommandLine, make_input: Any, tmp_path: Path
) -> None:
    (tmp_path / "options.toml").write_text('column_prefix = "x_"\nthreshold = 0.9\n')
    cli.run(make_input(PAIRS[:2]), "out.parquet", "--config", "options.toml", "--column-prefix", "y_")
    table = pq.read_table(tmp_path / "out.parquet")

    assert "y_label" in table.column_names
    assert b'"threshold":0.9' in table.schema.metadata[b"batchfact"].replace(b" ", b"")


def test_a_run_that_died_goes_on_and_asks_only_the_rest(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    source = make_input(PAIRS)
    cli.run(source, "whole.parquet")
    done = cli.run(source, "out.parquet", "--engine-arg", "die_after=21", "--engine-arg", "max_num_seqs=1", code=1)
    assert "run the same command again" in done.stderr
    assert not (tmp_path / "out.parquet").exists()

    cli.run(source, "out.parquet", "--engine-arg", f"log={tmp_path / 'log'}")

    assert verdicts(tmp_path / "out.parquet") == verdicts(tmp_path / "whole.parquet")
    assert len((tmp_path / "log").read_text().splitlines()) < 80


def test_a_finished_run_starts_no_engine_again(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    source = make_input(PAIRS)
    cli.run(source, "out.parquet")
    (tmp_path / "out.parquet").unlink()
    cli.run(source, "out.parquet", "--engine-arg", "die_after=0")

    assert len(rows(tmp_path / "out.parquet")) == 40


def test_another_method_on_the_same_journal_is_refused_with_the_difference(
    cli: CommandLine, make_input: Any, tmp_path: Path
) -> None:
    source = make_input(PAIRS[:4])
    cli.run(source, "out.parquet")
    done = cli.run(source, "out.parquet", "--paradigm", "summ-nli", code=2)

    assert "paradigm" in done.stderr
    assert "--restart" in done.stderr

    cli.run(source, "out.parquet", "--paradigm", "summ-nli", "--restart")

    assert all(len(row["batchfact_findings"]) == 1 for row in rows(tmp_path / "out.parquet"))


def test_another_input_is_refused_with_the_difference(cli: CommandLine, make_input: Any) -> None:
    source = make_input(PAIRS)
    cli.run(source, "out.parquet")
    make_input([*PAIRS[:3], (PAIRS[3][0], "Item X. Sold Y."), *PAIRS[4:]])
    done = cli.run(source, "out.parquet", code=2)

    assert "input" in done.stderr
    assert "--restart" in done.stderr


def test_a_journal_may_lie_elsewhere(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    source = make_input(PAIRS)
    cli.run(source, "out.parquet", "--journal", "kept", "--engine-arg", "die_after=60", code=1)
    cli.run(source, "out.parquet", "--journal", "kept")
    cli("reduce", "out.parquet", "--journal", "kept", "--threshold", "0.2")

    assert len(rows(tmp_path / "out.parquet")) == 40
    assert not (tmp_path / "out.parquet.journal").exists()


def test_reduce_does_not_overwrite_a_file_that_the_named_journal_is_not_of(
    cli: CommandLine, make_input: Any, tmp_path: Path
) -> None:
    cli.run(make_input(PAIRS), "out.parquet", "--journal", "kept")
    (tmp_path / "mine.parquet").write_text("precious")
    done = cli("reduce", "mine.parquet", "--journal", "kept", "--threshold", "0.2", code=2)

    assert "exists" in done.stderr and (tmp_path / "mine.parquet").read_text() == "precious"


def test_restart_does_not_overwrite_a_file_that_no_run_wrote(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    (tmp_path / "out.parquet").write_text("precious")
    cli.run(make_input(PAIRS), "out.parquet", "--restart", code=2)

    assert (tmp_path / "out.parquet").read_text() == "precious"


def test_rows_that_need_no_model_do_not_end_a_run_early(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    (tmp_path / "options.toml").write_text("part_seconds = 0.05\n")
    pairs = [(f"Document {i}.", "" if i % 4 == 0 else "A.") for i in range(6000)]
    cli.run(make_input(pairs), "out.parquet", "--max-unscored", "0.3", "--config", "options.toml")

    assert len(rows(tmp_path / "out.parquet")) == 6000


def test_a_run_ends_early_when_too_many_answers_are_unknown(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    (tmp_path / "options.toml").write_text("part_rows = 500\n")
    pairs = [(f"Document {i}.", "A.") for i in range(6000)]
    done = cli.run(
        make_input(pairs),
        *("out.parquet", "--max-unscored", "0.3", "--config", "options.toml"),
        *("--engine-arg", "fail_key_text=Document"),
        code=3,
    )

    assert "unscored" in done.stderr
    assert not (tmp_path / "out.parquet").exists()


def test_options_without_effect_are_refused(cli: CommandLine, make_input: Any) -> None:
    done = cli.run(make_input(PAIRS), "out.parquet", "--paradigm", "summ-nli", "--window-sentences", "3", code=2)

    assert "--window-sentences has no meaning" in done.stderr


def test_failed_rows_can_be_asked_again(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    source = make_input(PAIRS)
    lenient = ["--threshold", "0.01"]
    cli.run(source, "out.parquet", *lenient, "--engine-arg", "fail_key_text=Item 7.")
    failed = [row["summary"] for row in rows(tmp_path / "out.parquet") if row["batchfact_status"] != "ok"]
    assert failed == ["Item 7. Sold 7."]

    log = tmp_path / "log"
    cli.run(source, "out.parquet", *lenient, "--retry-status", "incomplete", "--engine-arg", f"log={log}")

    assert all(row["batchfact_status"] == "ok" for row in rows(tmp_path / "out.parquet"))
    assert len(log.read_text().splitlines()) == 2


def test_too_many_unscored_rows_exit_with_3_and_still_write(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    source = make_input([*PAIRS[:8], ("", "A."), ("", "B.")])
    done = cli.run(source, "out.parquet", "--max-unscored", "0.1", code=3)

    assert "2 of 10 rows" in done.stderr
    assert len(rows(tmp_path / "out.parquet")) == 10
    cli.run(source, "other.parquet", "--max-unscored", "0.2")


def test_ctrl_c_keeps_the_finished_rows_and_exits_with_130(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    source = make_input(PAIRS)
    log = tmp_path / "log"
    words = ["run", source, "out.parquet", "--engine", "fake", "--model", cli.model, "--engine-arg", f"log={log}"]
    slow = ["--engine-arg", "latency_s=0.2", "--engine-arg", "max_num_seqs=1"]
    process = subprocess.Popen(
        cli.args(*words, *slow),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    wait_for_lines(log, 12)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "goes on from there" in stderr
    assert list((tmp_path / "out.parquet.journal").glob("part-*.parquet"))

    cli.run(source, "out.parquet", "--engine-arg", f"log={tmp_path / 'second'}")

    assert len(rows(tmp_path / "out.parquet")) == 40
    assert len((tmp_path / "second").read_text().splitlines()) < 80


def wait_for_lines(path: Path, count: int) -> None:
    """Polls a file that another process writes: there is nothing to be told by."""
    import time

    for _ in range(600):
        if path.exists() and len(path.read_text().splitlines()) >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} never got {count} lines")


def test_reduce_applies_another_threshold_without_a_model(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    source = make_input(PAIRS)
    cli.run(source, "out.parquet", "--threshold", "0.5")
    cli("reduce", "out.parquet", "--threshold", "0.2", "--to", "low.parquet")
    cli.run(source, "expected.parquet", "--threshold", "0.2")

    assert verdicts(tmp_path / "low.parquet") == verdicts(tmp_path / "expected.parquet")
    assert verdicts(tmp_path / "low.parquet") != verdicts(tmp_path / "out.parquet")


def test_a_limit_writes_the_first_rows_and_a_later_run_the_rest(
    cli: CommandLine, make_input: Any, tmp_path: Path
) -> None:
    source = make_input(PAIRS)
    cli.run(source, "out.parquet", "--limit", "7")
    assert [row["summary"] for row in rows(tmp_path / "out.parquet")] == [summary for _, summary in PAIRS[:7]]
    cli("reduce", "out.parquet", "--threshold", "0.2", "--to", "low.parquet")
    assert len(rows(tmp_path / "low.parquet")) == 7

    cli.run(source, "out.parquet")

    assert len(rows(tmp_path / "out.parquet")) == 40


def test_reduce_without_a_journal_is_a_usage_error(cli: CommandLine) -> None:
    assert "no journal" in cli("reduce", "out.parquet", code=2).stderr


def test_reduce_refuses_scores_of_an_early_exit(cli: CommandLine, make_input: Any) -> None:
    cli.run(make_input(PAIRS[:4]), "out.parquet", "--early-exit")

    assert "upper bounds" in cli("reduce", "out.parquet", "--threshold", "0.2", code=2).stderr


def test_plan_counts_documents_windows_and_requests(cli: CommandLine, make_input: Any) -> None:
    done = cli("plan", make_input([*PAIRS, ("", "A.")]))
    figures = dict(re.findall(r"^ *(\S.*?)  +(\S.*?) *$", done.stdout, re.MULTILINE))

    assert figures["rows"] == "41"
    assert figures["documents"] == "20"
    assert figures["rows that are empty_document"] == "1"
    assert figures["windows"] == figures["requests"] == "80"
    assert figures["pairs a document"] == "2.00 (most 2)"
    assert "recommended: any --group" in done.stdout
    assert figures["generated tokens"] == "at most 80"


def test_plan_tells_what_a_server_charges(cli: CommandLine, make_input: Any) -> None:
    done = cli(
        "plan", make_input(PAIRS), "--paradigm", "summ-nli", "--reasoning", "--price-in", "0", "--price-out", "10"
    )
    figures = dict(re.findall(r"^ *(\S.*?)  +(\S.*?) *$", done.stdout, re.MULTILINE))

    assert figures["generated tokens"] == "at most 8,040"  # 40 texts of 200 tokens, and 40 labels
    assert figures["price, without a discount for cached tokens"] == "at most about 0.08"


@pytest.mark.parametrize("paradigm", ["summ-nli", "sent-nli", "qg-qa"])
@pytest.mark.parametrize("mode", ["--reasoning", "--label-only"])
def test_explain_shows_the_exact_prompts(cli: CommandLine, make_input: Any, paradigm: str, mode: str) -> None:
    done = cli(
        "explain",
        make_input(PAIRS),
        "--row",
        "5",
        "--paradigm",
        paradigm,
        mode,
        "--engine",
        "fake",
        "--model",
        cli.model,
    )

    assert "Item 5." in done.stdout
    assert "Document 2." in done.stdout
    assert "<|assistant|>" in done.stdout
    assert "probabilities of" in done.stdout


def test_explain_of_a_row_that_is_not_there_says_which_are(cli: CommandLine, make_input: Any) -> None:
    done = cli("explain", make_input(PAIRS), "--row", "40", code=2)

    assert "rows 0 to 39" in done.stderr


def test_quiet_prints_nothing(cli: CommandLine, make_input: Any) -> None:
    done = cli.run(make_input(PAIRS[:2]), "out.parquet", "--quiet")

    assert done.stdout == ""
    assert done.stderr == ""


def test_help_imports_neither_torch_nor_vllm() -> None:
    code = (
        "import sys, batchfact.cli\n"
        "try:\n    sys.argv = ['batchfact', '--help']; batchfact.cli.main()\nexcept SystemExit: pass\n"
        "print({'torch', 'vllm', 'transformers', 'pyarrow', 'nltk', 'matplotlib', 'jinja2'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.rstrip().endswith("set()")


def test_an_empty_input_gives_an_empty_output(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    cli.run(make_input([]), "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")

    assert table.num_rows == 0
    assert table.schema.field("batchfact_label").type == pa.string()
