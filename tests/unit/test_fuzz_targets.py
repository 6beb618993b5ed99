"""The fuzzer's targets on their corpus, and on what Hypothesis draws: every test run does this much."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.targets import FOLDER, TARGETS
from tests.tables import texts

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus"


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BATCHFACT_CONFIG_DIR", "")  # put back afterwards
    yield
    shutil.rmtree(FOLDER, ignore_errors=True)


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_breaks_no_promise(name: str) -> None:
    inputs = sorted((CORPUS / name).iterdir())
    assert inputs
    for path in inputs:
        TARGETS[name](path.read_bytes())


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200) | texts.map(str.encode), target=st.sampled_from(list(TARGETS.values())))
def test_any_bytes_break_no_promise(content: bytes, target: Callable[[bytes], None]) -> None:
    target(content)
