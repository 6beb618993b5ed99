"""docs/reliability.md names the tests that show what it says: they must be there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "reliability.md").read_text(encoding="utf-8")
REFERENCE = re.compile(r"`((?:\w+/)?test_\w+\.py)`((?:,? -k `\w+`)*)")
REFERENCES = sorted({(match[1], match[2]) for match in REFERENCE.finditer(PAGE)})


def test_the_page_names_tests() -> None:
    assert len(REFERENCES) > 40


@pytest.mark.parametrize(("name", "words"), REFERENCES)
def test_every_test_that_the_page_names_is_there(name: str, words: str) -> None:
    source = (TESTS / name).read_text(encoding="utf-8")
    # As pytest's -k: a part of the test's name, its parameters' ids or its file's name.
    found = " ".join([name, *re.findall(r"def (test_\w+)", source), *re.findall(r'"(\w+)"', source)])
    for word in re.findall(r"-k `(\w+)`", words):
        assert word in found, f"{name} has no test named {word}"


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(\.\./([^)]+)\)", PAGE))))
def test_every_file_that_the_page_links_to_is_there(target: str) -> None:
    assert (TESTS.parent / target).exists()
