from __future__ import annotations

import re
import socket
import urllib.request

import pytest

from batchfact.errors import UsageError
from batchfact.metrics import served
from batchfact.progress import Progress
from batchfact.records import Usage


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"^(batchfact_\S+) (\S+)$", text, re.MULTILINE)}


def test_a_scrape_sees_the_counters_as_they_are_now() -> None:
    progress = Progress(100)
    port = free_port()
    with served(progress, "127.0.0.1", port):
        assert scrape(port)["batchfact_rows"] == 100
        progress.statuses["ok"] += 7
        progress.labels["consistent"] += 7
        progress.add_tokens(Usage(prompt=50, cached=20, output=5))
        progress.num_restarts += 1
        progress.enter_engine()
        progress.begin("scoring")
        found = scrape(port)

    assert found['batchfact_rows_committed_total{status="ok"}'] == 7
    assert found['batchfact_rows_labelled_total{label="consistent"}'] == 7
    assert found['batchfact_tokens_total{kind="cached"}'] == 20
    assert found["batchfact_engine_restarts_total"] == 1
    assert found["batchfact_requests_in_flight"] == 1
    assert found['batchfact_phase{phase="scoring"}'] == 1


def test_the_port_is_free_again_afterwards() -> None:
    port = free_port()
    for _ in range(2):
        with served(Progress(1), "127.0.0.1", port):
            pass
    with pytest.raises(OSError, match="refused"):
        scrape(port)


def test_a_port_that_is_taken_is_a_usage_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(UsageError, match=f"--metrics-port {port} cannot be opened"),
            served(Progress(1), "127.0.0.1", port),
        ):
            pass


def test_without_a_port_nothing_is_opened() -> None:
    with served(Progress(1), "no such host", None):
        pass
