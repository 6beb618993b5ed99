"""`--executor ray` on a real Ray cluster, with the fake engine in each worker. One cluster serves all tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from batchfact.run_log import NAME
from tests.pipeline.command_line import PAIRS, CommandLine, verdicts

pytest.importorskip("ray")
pytestmark = pytest.mark.timeout(1200)

ROOT = Path(__file__).parents[2]
LIMIT_S = 400
"""A command on the cluster takes seconds; a busy machine makes minutes of them."""
SLOW = ["--engine-arg", "latency_s=0.2", "--engine-arg", "max_num_seqs=1"]


class RayCluster:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.address = self._line()

    def do(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        assert self._line() == "done"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


def environment() -> dict[str, str]:
    """For a process that runs a module of the tests."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.ray_cluster", "2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    ) as process:
        yield RayCluster(process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=60)


class Runs:
    """Commands on the cluster in one folder."""

    def __init__(self, cli: CommandLine, cluster: RayCluster, source: Path) -> None:
        self.cli, self.cluster, self.source = cli, cluster, source
        (cli.folder / "small.toml").write_text("part_rows = 5\nworker_wait_seconds = 5\n")

    @property
    def journal(self) -> Path:
        return self.cli.folder / "out.parquet.journal"

    @property
    def output(self) -> list[tuple[Any, ...]]:
        return verdicts(self.cli.folder / "out.parquet")

    def start(self, *words: object) -> subprocess.Popen[str]:
        args = self.cli.run_args(self.source, "out.parquet", "--config", "small.toml", "--executor", "ray")
        args += ["--ray-address", self.cluster.address, *map(str, words)]
        return subprocess.Popen(args, cwd=self.cli.folder, stderr=subprocess.PIPE, text=True)

    def __call__(self, *words: object, code: int = 0) -> str:
        return self.end(self.start(*words), code=code)

    def end(self, process: subprocess.Popen[str], *, code: int = 0) -> str:
        try:
            _, told = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
        assert process.returncode == code, (process.returncode, told)
        return told

    def alone(self) -> list[tuple[Any, ...]]:
        """The verdicts of one process."""
        self.cli.run(self.source, "alone.parquet")
        return verdicts(self.cli.folder / "alone.parquet")

    def events(self, name: str) -> list[dict[str, Any]]:
        log = self.journal / NAME
        lines = log.read_text().splitlines() if log.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def wait_for(self, holds: Callable[[], Any], process: subprocess.Popen[str]) -> None:
        """Polls what another process writes: there is nothing to be told by."""
        deadline = time.monotonic() + LIMIT_S
        while not holds():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "it never came"
            time.sleep(0.05)


@pytest.fixture
def runs(cli: CommandLine, cluster: RayCluster, make_input: Any) -> Runs:
    return Runs(cli, cluster, make_input([*PAIRS, ("", "A row without a document.")]))


def test_two_workers_give_what_one_process_gives_and_status_tells_of_them(runs: Runs) -> None:
    runs("--workers", 2)
    status = json.loads(runs.cli("status", "out.parquet", "--json").stdout)

    assert runs.output == runs.alone()
    assert len({event["pid"] for event in runs.events("engine_ready")}) == 2
    assert [worker["worker"] for worker in status["workers"]] == [0, 1]
    assert sum(worker["rows"] for worker in status["workers"]) == len(PAIRS)


def test_a_worker_killed_in_mid_run_is_replaced_and_no_row_is_lost_or_doubled(runs: Runs) -> None:
    process = runs.start("--workers", 2, *SLOW)
    runs.wait_for(lambda: len(runs.events("engine_ready")) == 2 and runs.events("committed"), process)
    os.kill(runs.events("engine_ready")[1]["pid"], signal.SIGKILL)
    told = runs.end(process)

    assert "is replaced" in told
    assert len(runs.events("engine_restarting")) == 1
    assert runs.events("committed")[-1]["committed"] == len(PAIRS) + 1
    assert runs.output == runs.alone()


def test_a_driver_that_was_stopped_or_killed_goes_on_where_it_was(runs: Runs) -> None:
    process = runs.start("--workers", 2, *SLOW)
    runs.wait_for(lambda: runs.events("committed"), process)
    process.terminate()
    assert "keeping the finished rows" in runs.end(process, code=130)
    stopped = len(runs.events("committed"))
    process = runs.start("--workers", 2, *SLOW)
    runs.wait_for(lambda: len(runs.events("committed")) > stopped, process)
    process.kill()
    process.communicate()
    done = sum(event["rows"] for event in runs.events("committed"))
    runs("--workers", 1)

    assert 0 < done < len(PAIRS)
    assert runs.events("run_ended")[-1]["resumed"] == done
    assert runs.events("run_ended")[-1]["committed"] == len(PAIRS) + 1 - done
    assert runs.output == runs.alone()


def test_a_machine_that_leaves_takes_no_row_with_it(runs: Runs, cluster: RayCluster) -> None:
    cluster.do("add")
    process = runs.start("--workers", 3, *SLOW)
    runs.wait_for(lambda: len(runs.events("engine_ready")) == 3 and runs.events("committed"), process)
    cluster.do("remove")
    told = runs.end(process)

    assert "is replaced" in told
    assert runs.output == runs.alone()


def test_without_a_free_gpu_the_wait_ends_and_says_what_there_is(runs: Runs) -> None:
    told = runs("--gpus-per-worker", 1, code=1)

    assert "needs 1 CPU and 1 GPU on one machine" in " ".join(told.split())
    assert "0 GPU (0 free)" in " ".join(told.split())


def test_another_ray_version_on_the_cluster_is_a_usage_error(runs: Runs) -> None:
    (runs.cli.folder / "other_version.py").write_text(
        "import ray, sys\nray.__version__ = '1.2.3'\nfrom batchfact.cli import main\nmain()\n"
    )
    process = runs.start()
    process.kill()
    process.communicate()
    words = [sys.executable, "other_version.py", *process.args[3:]]  # type: ignore[index]  # a list: we made it
    other = subprocess.Popen(words, cwd=runs.cli.folder, stderr=subprocess.PIPE, text=True)
    told = " ".join(runs.end(other, code=2).split())

    assert "need the same Ray and Python" in told
    assert "1.2.3" in told


def test_a_cluster_that_is_not_there_is_a_usage_error(cli: CommandLine, make_input: Any) -> None:
    words = [make_input(PAIRS[:2]), "out.parquet", "--executor", "ray", "--ray-address", "127.0.0.1:1"]

    assert "cannot be reached" in cli.run(*words, code=2).stderr


def test_a_cluster_is_started_on_this_machine_where_none_is_named(cli: CommandLine, make_input: Any) -> None:
    """It comes up, and has no GPU: the number of workers that fit is known at once."""
    words = [make_input(PAIRS[:2]), "out.parquet", "--executor", "ray", "--workers", "2", "--gpus-per-worker", "64"]
    args = cli.run_args(*words)
    done = subprocess.run(args, cwd=cli.folder, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False)

    assert done.returncode == 2
    assert "--workers 2 with 64 GPUs each need 128, this machine has" in " ".join(done.stderr.split())


def test_a_ray_dataset_of_pairs_becomes_one_of_verdicts(cli: CommandLine, cluster: RayCluster, make_input: Any) -> None:
    pairs = [*PAIRS, ("", "A row without a document.")]
    words = [sys.executable, "-m", "tests.pipeline.ray_dataset", cluster.address, str(cli.model), json.dumps(pairs)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True, env=environment())
    found = json.loads(done.stdout.splitlines()[-1])
    cli.run(make_input(pairs), "alone.parquet")

    assert "there is no column 'text'" in found["refusal"]
    names = ("summary", "batchfact_label", "batchfact_score", "batchfact_status")
    assert [tuple(row[name] for name in names) for row in found["rows"]] == verdicts(cli.folder / "alone.parquet")
