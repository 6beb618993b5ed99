"""Paths of every kind, places that cannot be written, and no network where the model is local."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.command_line import PAIRS, CommandLine, rows, verdicts

ODD = "Übersicht – 数据 'neu' & \"alt\" $HOME 100%"

# Every way to another machine goes through one of these; local pipes of the event loop do not, nor does urllib3, which
# binds a socket of this machine when it is imported, to see whether there is IPv6.
NO_NETWORK = """
import os, sys

def refuse(event, args):
    if event == "socket.bind" and args[1][0] == "::1":
        return
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.bind"):
        os.write(2, f"NETWORK {event} {args!r}\\n".encode())
        os._exit(99)

sys.addaudithook(refuse)
from batchfact.cli import main
main()
"""


def run_offline(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    (folder / "offline.py").write_text(NO_NETWORK)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "offline.py", *map(str, words)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )


def test_a_blocked_socket_is_noticed(tmp_path: Path) -> None:
    done = run_offline(tmp_path, "models", "pull", "Qwen/Qwen2.5-7B-Instruct")

    assert done.returncode == 99
    assert "NETWORK" in done.stderr


def test_a_run_with_a_local_model_asks_no_network(cli: CommandLine, make_input: Any, tmp_path: Path) -> None:
    done = run_offline(tmp_path, *cli.run_args(make_input(PAIRS[:6]), "out.parquet")[3:])

    assert (done.returncode, done.stderr.count("NETWORK")) == (0, 0), done.stderr
    assert len(rows(tmp_path / "out.parquet")) == 6


def test_neither_does_a_run_that_computes_a_model(make_input: Any, tmp_path: Path) -> None:
    from tests.tiny_models import save_llama

    model = save_llama(tmp_path / "llama")
    source = make_input(PAIRS[:4])
    done = run_offline(tmp_path, "run", source, "out.parquet", "--engine", "transformers", "--model", model)

    assert (done.returncode, done.stderr.count("NETWORK")) == (0, 0), done.stderr
    assert {row["batchfact_status"] for row in rows(tmp_path / "out.parquet")} <= {"ok", "refused"}


def test_paths_with_spaces_and_letters_of_any_script_work_everywhere(
    cli: CommandLine, make_input: Any, tmp_path: Path
) -> None:
    source = make_input(PAIRS)
    folder = tmp_path / ODD
    folder.mkdir()
    model = folder / "model"
    cli.model.rename(model)
    odd = CommandLine(model, folder)
    (folder / "options 2.toml").write_text('threshold = 0.4\njournal = "Tagebuch 1"\n')
    source = source.rename(folder / "ein gabe.parquet")
    odd.run(source.name, "aus gabe.parquet", "--config", "options 2.toml", "--engine-arg", "die_after=30", code=1)
    odd.run(source.name, "aus gabe.parquet", "--config", "options 2.toml")
    odd("reduce", "aus gabe.parquet", "--journal", "Tagebuch 1", "--threshold", "0.5", "--to", "再.parquet")
    told = odd("status", "aus gabe.parquet", "--journal", "Tagebuch 1").stdout

    assert len(rows(folder / "aus gabe.parquet")) == len(verdicts(folder / "再.parquet")) == 40
    assert "finished" in told
    assert (folder / "Tagebuch 1" / "run.json").exists()


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="needs a folder that nobody can write in, such as Linux's /proc"
)
@pytest.mark.parametrize("words", [["/proc/out.parquet"], ["/proc/out.parquet", "--journal", "kept"]])
def test_a_place_that_nobody_can_write_in_is_refused_before_anything_is_scored(
    cli: CommandLine, make_input: Any, tmp_path: Path, words: list[str]
) -> None:
    log = tmp_path / "log"
    done = cli.run(make_input(PAIRS), *words, "--engine-arg", f"log={log}", code=2)

    assert "output /proc/out.parquet cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert not log.exists()


def test_a_journal_that_nobody_can_write_is_refused_before_anything_is_scored(
    cli: CommandLine, make_input: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    log = tmp_path / "log"
    done = cli.run(make_input(PAIRS), "out.parquet", "--journal", "file/journal", "--engine-arg", f"log={log}", code=2)

    assert "journal" in done.stderr
    assert "Traceback" not in done.stderr
    assert not log.exists()
