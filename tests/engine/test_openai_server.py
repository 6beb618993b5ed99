"""The openai engine against a real vLLM server on the small default model, beside the same model in this process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import batchfact

START_LIMIT_S = 600
ROUNDING = 0.05
"""Batches of another size round otherwise where the model's dtype is bfloat16."""
DOCUMENT = (
    "The council of {town} met on Tuesday and voted to repair the old lighthouse. The mayor, Anna Lindqvist, said the "
    "work would cost two million euros, half of it paid by the state."
)
SUMMARIES = (
    "The council of {town} voted to repair a lighthouse. The state pays half.",
    "The lighthouse was sold to a hotel.",
    "Anna Lindqvist is the mayor.",
)
PAIRS = [
    (DOCUMENT.format(town=town), summary.format(town=town))
    for town in ("Skagen", "Varberg", "Lysekil")
    for summary in SUMMARIES
]


@pytest.fixture(scope="module")
def server(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a started server; its whole process tree is ended with the module's last test."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "server.log"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model_folder)]
    command += ["--served-model-name", "small", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--enforce-eager", "--max-model-len", "2048", "--block-size", "32", "--max-logprobs", "20"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
        )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until_healthy(f"{address}/health", process, log)
        yield f"{address}/v1"
    finally:
        family = [*psutil.Process(process.pid).children(recursive=True), process] if process.poll() is None else []
        for member in family:
            member.terminate()
        psutil.wait_procs([member for member in family if isinstance(member, psutil.Process)], timeout=30)
        process.wait(30)


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if process.poll() is not None:
                break
            process_ended(process)
    pytest.fail(f"the server did not start:\n{log.read_text()[-3000:]}")


def process_ended(process: subprocess.Popen[bytes]) -> bool:
    """Wait a second for the process's end, which is no fault to ask about again."""
    try:
        process.wait(1)
    except subprocess.TimeoutExpired:
        return False
    return True


def test_scores_of_a_server_are_those_of_the_same_model_here(server: str, model_folder: Path) -> None:
    remote = batchfact.score(PAIRS, model="small", engine="openai", base_url=server, paradigm="sent-nli")
    local = batchfact.score(PAIRS, model=str(model_folder), engine="transformers", paradigm="sent-nli")

    assert [verdict.score for verdict in remote] == pytest.approx([verdict.score for verdict in local], abs=ROUNDING)
    clear = [(there, here) for there, here in zip(remote, local, strict=True) if abs(here.score - 0.5) > ROUNDING]
    assert clear
    assert all(there.label == here.label for there, here in clear)


def test_reasoning_and_parsed_labels_come_from_a_server_too(server: str) -> None:
    reasoned = batchfact.score(
        PAIRS[:3], model="small", engine="openai", base_url=server, reasoning=True, reasoning_tokens=48
    )
    assert all(finding.reasoning for verdict in reasoned for finding in verdict.findings)

    asked = batchfact.score(PAIRS[:3], model="small", engine="openai", base_url=server, paradigm="qg-qa")
    questions = [finding.question for verdict in asked for finding in verdict.findings if finding.status == "ok"]
    assert questions
    assert all(question and question.endswith("?") for question in questions)
