"""Killed anywhere, with a full disk, with files cut behind its back: a run goes on and ends as if nothing had been."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.crash_server import CrashServer

NUM_KILLS = 44
MANY = [(f"Document {i // 3}. It is about item {i // 3}.", f"Item {i}. Sold {i}.") for i in range(240)]
SMALL_PARTS = "part_rows = 8\npart_seconds = 0.2\nlook_ahead_bytes = 2000\n"
"""Many parts and compactions; texts do not fit the look-ahead, so there are spill files too."""
SLOW = ("latency_s=0.01", "max_num_seqs=8", "log=requests.log")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashServer]:
    model = tmp_path_factory.mktemp("model")
    (model / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (model / "tokenizer.json").write_text("{}")
    with CrashServer(model) as started:
        yield started


def engine_args(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--engine-arg", setting)]


def leftovers(folder: Path) -> list[str]:
    """Names of what a finished run must not leave."""
    names = [path.name for path in folder.rglob("*")]
    return [name for name in names if name.endswith((".tmp", ".old", ".corrupt")) or "spill" in name]


def draw_fault(draw: random.Random) -> dict[str, Any]:
    """A moment of the run, each stage as likely as the others, or any time after its start."""
    moments: list[tuple[str, int]] = [
        ("input is read", 2),
        ("spill file is opened", 3),
        ("run.json is written", 1),
        ("request", 150),
        ("part is begun", 15),
        ("part is half written", 15),
        ("part is written", 15),
        ("compaction is begun", 3),
        ("compacted part is written", 3),
        ("compacted parts are deleted", 12),
        ("output is half written", 1),
        ("output is written", 1),
    ]
    if draw.random() < 0.25:
        return {"after_s": draw.uniform(0.0, 1.5)}
    moment, latest = draw.choice(moments)
    return {"moment": moment, "count": draw.randint(1, latest)}


@pytest.mark.timeout(900)
def test_runs_killed_at_random_in_every_stage_end_like_one_that_never_was(
    server: CrashServer, make_input: Any, tmp_path: Path
) -> None:
    """At least 40 kills; a run that ends before its kill is compared, and the next one begins afresh."""
    draw = random.Random(20261130)
    source = make_input(MANY, id=range(len(MANY)))
    (tmp_path / "small.toml").write_text(SMALL_PARTS)
    assert server.run(tmp_path, source, "whole.parquet").code == 0
    whole = pq.read_table(tmp_path / "whole.parquet")
    kills: Counter[str] = Counter()
    jobs = 0
    while kills.total() < NUM_KILLS:
        jobs += 1
        folder = tmp_path / f"job {jobs}"
        folder.mkdir()
        group = draw.choice(["window", "window", "global", "none"])
        words = [source, "out.parquet", "--config", tmp_path / "small.toml", "--group", group]
        for _ in range(draw.randint(4, 12)):
            fault = draw_fault(draw)
            ended = server.run(folder, *words, *engine_args(*SLOW), **fault)
            if ended.code == 0:
                break
            assert ended.code == -signal.SIGKILL, (fault, ended)
            assert not (folder / "out.parquet").exists()
            kills[fault.get("moment", "any time")] += 1
        assert server.run(folder, *words).code == 0

        assert pq.read_table(folder / "out.parquet") == whole
        assert leftovers(folder) == []
    assert len(kills) >= 8, kills


@pytest.mark.parametrize(
    ("group", "part_rows", "limit", "said"),
    [
        ("window", 4096, 4000, "finished rows cannot be written to"),
        ("global", 8, 20_000, "texts cannot be spilled to"),
        ("none", 8, 20_000, "out.parquet cannot be written"),
    ],
    ids=["journal", "spill", "merge"],
)
def test_a_file_that_the_system_lets_grow_no_more_ends_the_run_and_it_goes_on_later(
    server: CrashServer, tmp_path: Path, group: str, part_rows: int, limit: int, said: str
) -> None:
    """A limit on file sizes is what a process can have of a full disk: writes fail, in whatever library."""
    draw = random.Random(7)
    documents = ["".join(draw.choices("abcdefghij ", k=30_000)) for _ in range(40)]
    columns = {"document": [documents[i // 3] for i in range(120)], "summary": [summary for _, summary in MANY[:120]]}
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    (tmp_path / "small.toml").write_text(f"part_rows = {part_rows}\n")
    words = ["in.parquet", "out.parquet", "--config", "small.toml", "--group", group]
    ended = server.run(tmp_path, *words, max_file_bytes=limit)

    assert ended.code == 1, ended.said
    assert said in ended.said
    assert "Traceback" not in ended.said
    assert not (tmp_path / "out.parquet").exists()
    assert server.run(tmp_path, *words).code == 0
    assert server.run(tmp_path, "in.parquet", "whole.parquet").code == 0
    assert pq.read_table(tmp_path / "out.parquet") == pq.read_table(tmp_path / "whole.parquet")
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("damage", ["cut", "emptied", "a byte changed", "another file"])
def test_damaged_parts_are_set_aside_and_only_their_rows_done_again(
    server: CrashServer, make_input: Any, tmp_path: Path, damage: str
) -> None:
    source = make_input(MANY[:60])
    (tmp_path / "small.toml").write_text("part_rows = 10\n")
    words = [source, "out.parquet", "--config", "small.toml", *engine_args("max_num_seqs=2")]
    assert server.run(tmp_path, *words).code == 0
    whole = pq.read_table(tmp_path / "out.parquet")
    parts = sorted((tmp_path / "out.parquet.journal").glob("part-*.parquet"))
    for part in parts[1:3]:
        content = part.read_bytes()
        middle = len(content) // 3
        part.write_bytes(
            {
                "cut": content[:-40],
                "emptied": b"",
                "a byte changed": content[:middle] + bytes([content[middle] ^ 0x40]) + content[middle + 1 :],
                "another file": source.read_bytes(),
            }[damage]
        )
    (tmp_path / "out.parquet").unlink()
    ended = server.run(tmp_path, *words, *engine_args("log=again.log"))

    assert ended.code == 0
    assert ended.said.count("is damaged") == 2
    assert 0 < len((tmp_path / "again.log").read_text().splitlines()) < 120
    assert pq.read_table(tmp_path / "out.parquet") == whole


@pytest.mark.parametrize("kept", [0, 1, 50, -1])
def test_a_cut_run_json_is_refused_with_the_way_out_and_nothing_is_lost(
    server: CrashServer, make_input: Any, tmp_path: Path, kept: int
) -> None:
    source = make_input(MANY[:12])
    assert server.run(tmp_path, source, "out.parquet").code == 0
    path = tmp_path / "out.parquet.journal" / "run.json"
    content = path.read_bytes()
    path.write_bytes(content[:kept])
    ended = server.run(tmp_path, source, "out.parquet")

    assert ended.code == 2
    assert "run.json is damaged" in ended.said
    assert "--restart" in ended.said
    path.write_bytes(content)
    assert server.run(tmp_path, source, "out.parquet", *engine_args("die_after=0")).code == 0


@pytest.mark.parametrize("jump_s", [-400 * 86_400, 400 * 86_400])
def test_a_clock_that_jumps_changes_nothing(server: CrashServer, make_input: Any, tmp_path: Path, jump_s: int) -> None:
    """Files dated years before or ahead, as after a change of the clock between runs, are taken for what they hold."""
    source = make_input(MANY[:60])
    (tmp_path / "small.toml").write_text("part_rows = 10\n")
    words = [source, "out.parquet", "--config", "small.toml"]
    slow = engine_args(*SLOW)
    assert server.run(tmp_path, *words, *slow, moment="part is written", count=3).code == -signal.SIGKILL
    then = time.time() + jump_s
    for path in (source, *(tmp_path / "out.parquet.journal").iterdir()):
        os.utime(path, (then, then))
    assert server.run(tmp_path, *words, *engine_args("log=again.log")).code == 0
    assert server.run(tmp_path, source, "whole.parquet").code == 0

    assert len((tmp_path / "again.log").read_text().splitlines()) <= 2 * (60 - 20)
    assert pq.read_table(tmp_path / "out.parquet") == pq.read_table(tmp_path / "whole.parquet")


def test_fewer_shards_are_refused_and_name_what_is_missing(
    server: CrashServer, make_input: Any, tmp_path: Path
) -> None:
    (tmp_path / "shards").mkdir()
    for number in range(3):
        make_input(MANY[number * 4 : number * 4 + 4], name=f"shards/{number}.parquet")
    assert server.run(tmp_path, "shards", "out").code == 0
    (tmp_path / "shards" / "1.parquet").unlink()
    ended = server.run(tmp_path, "shards", "out")

    assert ended.code == 2
    assert "input.1.parquet" in ended.said
