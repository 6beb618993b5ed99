"""A process that vLLM spawns stays away from the caller's script, terminal, Ctrl-C, and does not outlive its parent."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

from batchfact.engines.vllm_process import log_to

# No `__main__` guard, on purpose: a second run of it in the child would print its line again.
SCRIPT = """
import multiprocessing, os, signal, sys, time
from batchfact.engines.vllm_process import LOG_FILE_VARIABLE, stand_in_for_main

print("script ran", flush=True)
what, log_file = sys.argv[1:]
if log_file:
    os.environ[LOG_FILE_VARIABLE] = log_file
target, *arguments = {
    "print": (print, "from the child"),
    "interrupt": (signal.raise_signal, signal.SIGINT),
    "outlive": (time.sleep, 600),
}[what]
with stand_in_for_main():
    child = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
    child.start()
assert sys.modules["__main__"].__dict__ is globals()
if what == "outlive":
    os.kill(os.getpid(), signal.SIGKILL)
child.join()
print("child ended with", child.exitcode)
"""


def run(tmp_path: Path, what: str, log_file: Path | str = "") -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, str(script), what, str(log_file)]
    # Waiting for the output's end is waiting for every process that holds it.
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_a_script_without_a_guard_runs_once_and_its_child_writes_to_the_log(tmp_path):
    log_file = tmp_path / "engine.log"
    done = run(tmp_path, "print", log_file)
    assert done.stdout == "script ran\nchild ended with 0\n"
    assert done.stderr == ""
    assert log_file.read_text() == "from the child\n"


def test_without_a_log_file_a_child_writes_to_standard_error(tmp_path):
    done = run(tmp_path, "print")
    assert done.stdout == "script ran\nchild ended with 0\n"
    assert done.stderr == "from the child\n"


def test_an_interrupt_does_not_reach_a_child(tmp_path):
    assert run(tmp_path, "interrupt").stdout == "script ran\nchild ended with 0\n"


def test_a_child_ends_with_a_parent_that_was_killed(tmp_path):
    done = run(tmp_path, "outlive")
    assert done.returncode == -9
    assert done.stdout == "script ran\n"


def test_the_log_goes_to_the_stream_and_the_loggers_are_put_back(tmp_path):
    logger = logging.getLogger("vllm")
    before = (list(logger.handlers), logger.propagate, logger.level)
    with (tmp_path / "log").open("w") as stream, log_to(stream):
        logging.getLogger("vllm.engine").info("it started")
    assert "it started" in (tmp_path / "log").read_text()
    assert (list(logger.handlers), logger.propagate, logger.level) == before
