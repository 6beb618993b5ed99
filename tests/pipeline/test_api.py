from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pandas as pd
import pyarrow as pa
import pytest

import batchfact
from batchfact.calibration import Calibration, write_calibration

PAIRS = [("The shop sold 3 lamps.", "Three lamps were sold."), ("", "Nothing."), ("A cat sat.", "A dog sat. It ran.")]


@pytest.fixture
def options(fake_model: Path) -> dict[str, Any]:
    return {"engine": "fake", "model": str(fake_model)}


def test_a_list_gives_verdicts_in_its_order(options: dict[str, Any]) -> None:
    first, empty, last = batchfact.score(PAIRS, **options)

    assert isinstance(first, batchfact.Verdict)
    assert isinstance(empty, batchfact.Unscored)
    assert empty.status == "empty_document"
    assert len(last.findings) == 2


def test_mappings_are_read_by_the_columns_names(options: dict[str, Any]) -> None:
    pairs = [{"source": document, "summary": summary, "id": 1} for document, summary in PAIRS]

    assert batchfact.score(pairs, document_column="source", **options) == batchfact.score(PAIRS, **options)


def test_a_table_gets_the_columns_of_the_output(options: dict[str, Any]) -> None:
    documents, summaries = zip(*PAIRS, strict=True)
    table = pa.table({"id": [1, 2, 3], "document": documents, "summary": summaries})
    scored = batchfact.score(table, **options)

    assert scored.select(["id", "document", "summary"]) == table
    assert scored["batchfact_status"].to_pylist() == ["ok", "empty_document", "ok"]


def test_a_data_frame_keeps_its_index(options: dict[str, Any]) -> None:
    frame = pd.DataFrame(PAIRS, columns=["document", "summary"], index=["a", "b", "c"])
    scored = batchfact.score(frame, **options)

    assert list(scored.index) == ["a", "b", "c"]
    assert list(scored["batchfact_status"]) == ["ok", "empty_document", "ok"]


def test_a_calibration_may_be_a_file_or_an_object(options: dict[str, Any], tmp_path: Path) -> None:
    calibration = Calibration(temperature=2.0, count_weight=-0.5, bias=0.3, threshold=0.6)
    write_calibration(tmp_path / "c.toml", calibration)
    (raw,) = batchfact.score(PAIRS[2:], **options)
    scored = [batchfact.score(PAIRS[2:], calibration=given, **options) for given in (calibration, tmp_path / "c.toml")]

    for (verdict,) in scored:
        assert verdict.score_raw == raw.score
        assert verdict.score == calibration.calibrate(raw.score, 2)


def test_a_missing_column_names_the_nearest(options: dict[str, Any]) -> None:
    with pytest.raises(batchfact.BatchfactError, match="did you mean 'documnt'"):
        batchfact.score(pa.table({"documnt": ["a"], "summary": ["b"]}), **options)


def test_an_unknown_option_names_the_nearest(options: dict[str, Any]) -> None:
    with pytest.raises(batchfact.BatchfactError, match="did you mean 'threshold'"):
        batchfact.score(PAIRS, treshold=0.4, **options)


@pytest.mark.anyio
async def test_score_works_beside_a_running_loop(options: dict[str, Any]) -> None:
    assert len(batchfact.score(PAIRS, **options)) == 3


@pytest.mark.anyio
async def test_a_scorer_scores_several_streams_with_one_engine(options: dict[str, Any]) -> None:
    async def stream() -> AsyncIterator[tuple[str, str]]:
        for number in range(10):
            yield f"Document {number // 2}.", f"Summary {number}."

    async with batchfact.Scorer(**options) as scorer:
        from_list = [scored async for scored in scorer.score(PAIRS)]
        from_stream = [scored async for scored in scorer.score(stream(), look_ahead=3)]

    assert sorted(scored.row for scored in from_list) == [0, 1, 2]
    assert sorted(scored.row for scored in from_stream) == list(range(10))


@pytest.mark.anyio
async def test_a_reader_may_leave_early(options: dict[str, Any]) -> None:
    async with batchfact.Scorer(**options) as scorer:
        scores = scorer.score([(f"Document {i}.", "A. B.") for i in range(200)])
        async for _ in scores:
            break
        await scores.aclose()

        assert len([scored async for scored in scorer.score(PAIRS)]) == 3


@pytest.mark.anyio
async def test_a_dead_engine_is_raised_as_itself(options: dict[str, Any]) -> None:
    async def score() -> None:
        async with batchfact.Scorer(engine_args={"die_after": "1"}, **options) as scorer:
            async for _ in scorer.score([(f"Document {i}.", "A. B.") for i in range(20)]):
                pass

    with pytest.raises(batchfact.BatchfactError, match="engine died"):
        await score()


def test_a_script_without_a_main_guard_works(options: dict[str, Any], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import batchfact\nprint(len(batchfact.score({PAIRS!r}, engine='fake', model={options['model']!r})))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "3\n"


@pytest.mark.anyio
async def test_a_broken_stream_fails_for_its_own_reader_alone(options: dict[str, Any]) -> None:
    async def read(scorer: batchfact.Scorer, pairs: list[Any], rows: list[int]) -> None:
        rows.extend([scored.row async for scored in scorer.score(pairs)])

    good: list[int] = []
    async with batchfact.Scorer(**options) as scorer, anyio.create_task_group() as tasks:
        tasks.start_soon(read, scorer, [(f"Document {i}.", "A. B.") for i in range(100)], good)
        with pytest.raises(batchfact.BatchfactError, match="pair 1 has no 'document' and 'summary'"):
            await read(scorer, [PAIRS[0], {"doc": "x"}], [])

    assert len(good) == 100


@pytest.mark.anyio
async def test_a_live_stream_gets_a_verdict_before_it_gives_the_next_pair(options: dict[str, Any]) -> None:
    answered = anyio.Event()

    async def stream() -> AsyncIterator[tuple[str, str]]:
        yield PAIRS[0]
        await answered.wait()
        yield PAIRS[2]

    rows = []
    with anyio.fail_after(30):
        async with batchfact.Scorer(**options) as scorer:
            async for scored in scorer.score(stream()):
                rows.append(scored.row)
                answered.set()

    assert rows == [0, 1]


@pytest.mark.anyio
async def test_streams_of_one_scorer_share_its_bound_on_requests(options: dict[str, Any]) -> None:
    limits = {"engine_args": {"max_num_seqs": "2", "latency_s": "0.001"}}
    async with batchfact.Scorer(**options, **limits) as scorer:
        progress, peak = scorer._scheduler.progress, 0

        async def read(number: int) -> None:
            nonlocal peak
            async for _ in scorer.score([(f"Document {number}.{i}.", "A. B. C.") for i in range(10)]):
                peak = max(peak, progress.num_in_flight)

        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(read, number)

    assert 0 < peak <= 4


@pytest.mark.parametrize("pair", [("a", 5), ("a",), ("a", "b", "c"), {"document": "a"}, 7])
def test_what_is_no_pair_names_its_row(options: dict[str, Any], pair: Any) -> None:
    with pytest.raises(batchfact.BatchfactError, match="pair 1 "):
        batchfact.score([PAIRS[0], pair], **options)


def test_options_of_runs_over_files_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(batchfact.BatchfactError, match="limit is for runs over files"):
        batchfact.score(PAIRS, limit=1, **options)


def test_a_scored_table_is_not_scored_into_the_same_columns(options: dict[str, Any]) -> None:
    table = pa.table({"document": ["A."], "summary": ["B."]})
    scored = batchfact.score(table, **options)
    with pytest.raises(batchfact.BatchfactError, match="column_prefix"):
        batchfact.score(scored, **options)

    assert "again_label" in batchfact.score(scored, column_prefix="again_", **options).column_names
