"""Synthetic claims: true ones are taken from the document, false ones say something that it does not."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchfact.distill import changes
from batchfact.distill.synthesis import FALSE_SHARES, claims, restyle
from batchfact.distill.synthesizing import Plan, passage, synthesize
from batchfact.errors import UsageError
from batchfact.text.sentences import sentences
from tests.distill_samples import document, pairs

OTHERS = [document(number) for number in (4, 5, 6)]


def rng() -> random.Random:
    return random.Random(3)


def plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def many(num: int = 40) -> list[tuple[str, str, str]]:
    """Documents with claims on them, and how these were made."""
    texts = [document(number) for number in range(12)]
    return [(text, claim.text, claim.how) for text in texts for claim in claims(text, OTHERS, num, seed=text)]


def test_the_same_seed_gives_the_same_claims_and_another_one_others():
    first = claims(document(1), OTHERS, 12, seed="a")
    assert claims(document(1), OTHERS, 12, seed="a") == first
    assert claims(document(1), OTHERS, 12, seed="b") != first


def test_claims_of_every_kind_come_and_none_comes_twice():
    found = many()
    kinds = Counter(how for _, _, how in found)
    assert set(kinds) == {"extracted", "shortened", "joined", *FALSE_SHARES}
    texts = [(text, plain(claim)) for text, claim, _ in found]
    assert len(set(texts)) == len(texts)


def test_what_is_extracted_or_joined_stands_in_the_document():
    for text, claim, how in many():
        if how in ("extracted", "joined"):
            assert plain(claim) in plain(text)


def test_no_false_claim_is_said_by_the_document():
    false = [(text, claim) for text, claim, how in many() if how in FALSE_SHARES]
    assert len(false) > 100
    for text, claim in false:
        assert plain(claim) not in plain(text)


def test_about_half_of_the_claims_are_true():
    kinds = Counter(how in FALSE_SHARES for _, _, how in many(8))
    assert 0.35 < kinds[True] / sum(kinds.values()) < 0.65


def test_a_document_of_two_sentences_has_no_claims():
    assert claims("The shop in Dover sold two lamps. It was closed on the next day.", OTHERS, 9, seed="") == ()


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("The road was closed for a day.", {"The road was not closed for a day."}),
        ("The road was not closed.", {"The road was closed."}),
        ("No road leads there.", {None}),
        ("They never came.", {None}),
    ],
)
def test_a_negation_is_put_in_or_taken_out(sentence: str, expected: set[str | None]):
    assert {changes.negate(sentence, random.Random(seed)) for seed in range(9)} == expected


def test_a_name_gives_way_to_another_of_as_many_words():
    found = {
        changes.swap_name("He saw Anna Bell.", ["Rome", "John Carr", "Anna Bell"], (), random.Random(seed))
        for seed in range(9)
    }
    assert found == {"He saw John Carr."}
    assert changes.swap_name("nobody was there", ["Rome"], ["Oslo"], rng()) is None


def test_names_are_capitalised_words_that_are_no_dates_or_sentence_openings():
    text = "The mayor of New Haven met Bo and Mrs Ann Lee on Monday in May. But Dr Kay left."
    assert [name for _, name in changes.names_of(text)] == ["New Haven", "Ann Lee", "Kay"]
    assert all(text[start:].startswith(name) for start, name in changes.names_of(text))


def test_numbers_dates_pronouns_and_opposites_keep_the_case_of_what_they_stand_for():
    assert changes.swap_date("It opens on Monday.", rng()) in {
        f"It opens on {day.capitalize()}." for day in changes.swaps().days if day != "monday"
    }
    assert changes.swap_date("It may open.", rng()) is None
    assert changes.swap_pronoun("His hat was red.", rng()) == "Her hat was red."
    assert changes.swap_opposite("More came.", rng()) == "Less came."
    changed = changes.swap_number("It cost $1,250.", "It cost $1,250.", rng())
    assert changed and re.fullmatch(r"It cost \$\d,\d{3}\.", changed) and changed != "It cost $1,250."
    assert changes.swap_number("Two came.", "Two came.", rng()) not in (None, "Two came.")


def test_two_sentences_are_fused_where_they_share_a_joint():
    fused = changes.fuse("The mayor of Dover came to the fair in a coach.", "A boat from Corby sank in the cold river.")
    assert fused == "The mayor of Dover came to the fair in the cold river."
    assert changes.fuse("Nobody came.", "All went home.") is None


def test_shortening_takes_away_and_adds_nothing():
    long = "In the end, the mayor (who is old) of Dover, who was ill, went home because it rained on the fair."
    short = changes.shorten(long, rng())
    assert short and set(re.findall(r"\w+", short.lower())) < set(re.findall(r"\w+", long.lower()))
    assert changes.shorten("They went home.", rng()) is None


def test_dialogue_becomes_reported_speech():
    styles = {restyle("Ann:  we  go now", random.Random(seed)).lower() for seed in range(9)}
    assert styles <= {'ann says "we go now"', "ann said: we go now"} and len(styles) == 2


def test_a_passage_is_whole_sentences_of_about_the_words_that_were_asked_for():
    text = " ".join(document(number) for number in range(5))
    for seed in range(20):
        found = passage(text, (120, 150), random.Random(seed))
        assert found and found in text and 120 <= len(found.split()) <= 180
        assert {text[span.start : span.end] for span in sentences(text)} >= {
            found[span.start : span.end] for span in sentences(found)
        }
    assert passage("One. Two. Three.", (60, 80), rng()) is None


def test_files_of_documents_become_one_labelled_file(tmp_path: Path):
    texts = [document(number) for number in range(9)]
    table = pa.table({"text": [*texts, texts[0], None, " "], "kind": ["a"] * 9 + ["b"] * 3})
    pq.write_table(table, tmp_path / "raw.parquet")
    plan = Plan(claims_a_document=5, document_column="text", where=("kind = a",), max_documents=6, seed=1)
    made = synthesize([tmp_path / "raw.parquet"], tmp_path / "out.parquet", plan)
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert sum(made.values()) == len(rows) == 30
    assert {row["label"] for row in rows} == {0, 1} and len({row["id"] for row in rows}) == 30
    assert len({row["document"] for row in rows}) == 6 and {row["source"] for row in rows} == {"raw"}
    synthesize([tmp_path / "raw.parquet"], tmp_path / "again.parquet", plan)
    assert pq.read_table(tmp_path / "again.parquet").to_pylist() == rows


def test_true_summaries_give_claims_in_other_words_and_false_ones_made_of_them(tmp_path: Path):
    rows = [row for number in range(6) for row in pairs(number)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "notes.parquet")
    plan = Plan(claims_a_document=8, true_summaries="label = 1")
    synthesize([tmp_path / "notes.parquet"], tmp_path / "out.parquet", plan)
    made = pq.read_table(tmp_path / "out.parquet").to_pylist()
    written = {plain(row["summary"]) for row in made if row["how"] == "written"}
    true = {plain(row["summary"][: row["summary"].index(". ")]) for row in rows if row["label"]}
    assert len(written & true) >= 3 and not any("mayor" in text and "came too" in text for text in written)
    assert all(row["label"] for row in made if row["how"] == "written")
    assert any(row["summary"].lower().startswith("a shop") for row in made if not row["label"])


def test_rules_for_true_summaries_need_whole_documents_and_a_summary(tmp_path: Path):
    with pytest.raises(UsageError, match="do not go with --passage-words"):
        Plan(true_summaries="label = 1", passage_words=(50, 60))
    pq.write_table(pa.table({"document": [document(1)], "label": [1]}), tmp_path / "raw.parquet")
    with pytest.raises(UsageError, match="needs a column summary"):
        synthesize([tmp_path / "raw.parquet"], tmp_path / "out.parquet", Plan(true_summaries="label = 1"))


def test_an_input_is_never_written_over(tmp_path: Path):
    file = tmp_path / "notes.parquet"
    pq.write_table(pa.table({"document": [document(1)]}), file)
    before = file.read_bytes()

    with pytest.raises(UsageError, match="is an input; name another output"):
        synthesize([file], tmp_path / "." / "notes.parquet", Plan())
    assert file.read_bytes() == before


def test_input_that_gives_no_claims_is_refused_and_leaves_no_file(tmp_path: Path):
    pq.write_table(pa.table({"document": ["Too short."]}), tmp_path / "raw.parquet")
    with pytest.raises(UsageError, match="no document or passage that is used has the three sentences"):
        synthesize([tmp_path / "raw.parquet"], tmp_path / "out.parquet", Plan())
    assert not (tmp_path / "out.parquet").exists()
    with pytest.raises(UsageError, match="has no column 'text'"):
        synthesize([tmp_path / "raw.parquet"], tmp_path / "out.parquet", Plan(document_column="text"))


def test_rules_that_no_row_meets_are_refused_and_leave_no_file(tmp_path: Path):
    rows = [row | {"label": float(row["label"])} for number in range(6) for row in pairs(number)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "notes.parquet")
    for plan, message in (
        (Plan(where=("domain = news",)), "no document or passage that is used has the three sentences"),
        (Plan(true_summaries="label = yes"), "--true-summaries 'label = yes': no row that is used meets it"),
        (Plan(document_column="label"), "no document or passage"),
    ):
        with pytest.raises(UsageError, match=message):
            synthesize([tmp_path / "notes.parquet"], tmp_path / "out.parquet", plan)
        assert not (tmp_path / "out.parquet").exists()
    # Integers that are stored as floats are written without a point.
    made = synthesize([tmp_path / "notes.parquet"], tmp_path / "out.parquet", Plan(true_summaries="label = 1"))
    assert made["written"] > 0
