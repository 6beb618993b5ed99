"""The shipped example is what its script makes, and its rows are what its README says."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SHIPPED = EXAMPLES / "pairs.parquet"
ERROR_TYPES = {"entity", "circumstance", "predicate", "coreference", "logic", "out_of_document"}


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """examples/make_pairs.py as a module: examples/ is no package, and msgspec finds types by module name."""
    spec = importlib.util.spec_from_file_location("example_make_pairs", EXAMPLES / "make_pairs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(SHIPPED).to_pylist()
    return found


def document_with(script: ModuleType, **changes: Any) -> Any:
    """A document whose one summary is a sound inconsistent one, but for the changes."""
    summary = {
        "summarizer": "system-a",
        "label": 0,
        "error_type": "entity",
        "text": "Bo sang.",
        "reason": '"Bo" is wrong: Kim sang.',
    }
    return script.Document(
        id="song", domain="story", text="Kim sang.", summaries=(script.Summary(**(summary | changes)),)
    )


def test_the_shipped_file_is_what_the_script_makes(script: ModuleType) -> None:
    assert pq.read_table(SHIPPED).equals(script.make_table(script.read_texts()))


def test_the_texts_give_the_same_bytes_every_time(script: ModuleType, tmp_path: Path) -> None:
    once, again = tmp_path / "once.parquet", tmp_path / "again.parquet"
    for path in (once, again):
        assert script.main(["--output", str(path)]) == 0
    assert once.read_bytes() == again.read_bytes()


def test_an_up_to_date_file_is_left_alone(script: ModuleType, tmp_path: Path) -> None:
    """Even if its bytes are not those that the script would write."""
    path = tmp_path / "pairs.parquet"
    pq.write_table(pq.read_table(SHIPPED), path, compression="none")
    before = path.read_bytes()
    assert script.main(["--output", str(path)]) == 0
    assert path.read_bytes() == before


@pytest.mark.parametrize("state", ["missing", "cut short", "other rows"])
def test_a_file_that_says_something_else_is_reported_by_check_and_then_made_anew(
    script: ModuleType, tmp_path: Path, state: str
) -> None:
    path = tmp_path / "pairs.parquet"
    if state == "cut short":
        path.write_bytes(SHIPPED.read_bytes()[:1000])
    elif state == "other rows":
        pq.write_table(pq.read_table(SHIPPED).slice(1), path)
    assert script.main(["--output", str(path), "--check"]) == 1
    assert script.main(["--output", str(path)]) == 0
    assert script.main(["--output", str(path), "--check"]) == 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["pairs.parquet"]


def test_check_writes_nothing(script: ModuleType, tmp_path: Path) -> None:
    script.main(["--output", str(tmp_path / "pairs.parquet"), "--check"])
    assert list(tmp_path.iterdir()) == []


def test_there_are_enough_pairs_and_documents(rows: list[dict[str, Any]]) -> None:
    assert len(rows) >= 80
    assert len({row["document"] for row in rows}) >= 24


def test_each_document_has_three_or_four_different_summaries(rows: list[dict[str, Any]]) -> None:
    assert set(Counter(row["document"] for row in rows).values()) <= {3, 4}
    assert len({(row["document"], row["summary"]) for row in rows}) == len(rows)


def test_ids_are_unique(rows: list[dict[str, Any]]) -> None:
    assert len({row["id"] for row in rows}) == len(rows)


def test_documents_have_80_to_450_words(rows: list[dict[str, Any]]) -> None:
    lengths = {row["id"]: len(row["document"].split()) for row in rows}
    assert {id_: length for id_, length in lengths.items() if not 80 <= length <= 450} == {}


def test_about_half_of_the_pairs_are_consistent(rows: list[dict[str, Any]]) -> None:
    assert {row["label"] for row in rows} == {0, 1}
    assert 0.45 <= sum(row["label"] for row in rows) / len(rows) <= 0.55


def test_every_error_type_is_known_and_occurs_at_least_five_times(rows: list[dict[str, Any]]) -> None:
    times = Counter(row["error_type"] for row in rows if row["label"] == 0)
    assert set(times) == ERROR_TYPES
    assert min(times.values()) >= 5


def test_consistent_pairs_have_no_error_type(rows: list[dict[str, Any]]) -> None:
    assert {row["error_type"] for row in rows if row["label"] == 1} == {None}


def test_every_summarizer_and_domain_has_pairs_of_both_labels(rows: list[dict[str, Any]]) -> None:
    """No column gives the label away."""
    for column in ("summarizer", "domain"):
        for value in {row[column] for row in rows}:
            assert {row["label"] for row in rows if row[column] == value} == {0, 1}, value


def test_some_documents_are_scattered_and_most_are_not(rows: list[dict[str, Any]]) -> None:
    places: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row["document"], []).append(place)
    scattered = sum(place[-1] - place[0] >= len(place) for place in places.values())
    assert 3 <= scattered < len(places) / 2


def test_the_file_has_several_row_groups() -> None:
    assert pq.ParquetFile(SHIPPED).num_row_groups >= 4


def test_the_readme_counts_the_pairs_and_documents_rightly(rows: list[dict[str, Any]]) -> None:
    consistent = sum(row["label"] for row in rows)
    documents = len({row["document"] for row in rows})
    expected = f"{len(rows)} pairs of {documents} documents; {consistent} are consistent, {len(rows) - consistent} are"
    assert expected in " ".join((EXAMPLES / "README.md").read_text(encoding="utf-8").split())


def test_sound_texts_pass_the_check(script: ModuleType) -> None:
    script.check([document_with(script)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": 1}, "label 1 does not go with error_type entity"),
        ({"error_type": None}, "label 0 does not go with error_type None"),
        ({"reason": '"Lee" is wrong: Kim sang.'}, "quoted from the summary"),
        ({"reason": 'Kim sang, not "Bo".'}, "quoted from the summary"),
        ({"reason": '"" is wrong.'}, "quoted from the summary"),
        ({"text": " \n"}, "must not be empty"),
    ],
)
def test_a_wrong_row_is_refused_by_its_id(script: ModuleType, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"song/system-a: .*{message}"):
        script.check([document_with(script, **changes)])


def test_a_repeated_id_is_refused(script: ModuleType) -> None:
    with pytest.raises(ValueError, match="ids must be unique, repeated: song/system-a"):
        script.check([document_with(script), document_with(script)])


def test_a_repeated_document_is_refused(script: ModuleType) -> None:
    song = document_with(script)
    with pytest.raises(ValueError, match="documents must differ"):
        script.check([song, msgspec.structs.replace(song, id="other")])


@pytest.mark.parametrize(
    ("old", "new"),
    [('error_type = "predicate"', 'error_type = "grammar"'), ("label = 1", "label = 2"), ("reason =", "reasons =")],
)
def test_an_unknown_error_type_label_or_field_is_refused(
    script: ModuleType, tmp_path: Path, old: str, new: str
) -> None:
    path = tmp_path / "pairs.toml"
    shutil.copy(EXAMPLES / "pairs.toml", path)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(msgspec.ValidationError):
        script.read_texts(path)


def test_the_columns_have_the_documented_types() -> None:
    string, label = pa.string(), pa.int8()
    assert {field.name: field.type for field in pq.read_schema(SHIPPED)} == {
        "id": string,
        "document": string,
        "summary": string,
        "label": label,
        "reason": string,
        "error_type": string,
        "domain": string,
        "summarizer": string,
    }
