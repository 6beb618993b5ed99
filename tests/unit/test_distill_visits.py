"""What a visit shows of a document, and that its ids are those of a run."""

from __future__ import annotations

import random

import msgspec
import pytest

from batchfact.assembly import Assembler
from batchfact.distill.example_files import Placed
from batchfact.distill.examples import make_examples
from batchfact.distill.excerpts import excerpt
from batchfact.distill.labelled import Labelled
from batchfact.distill.recipe import Set, Trees
from batchfact.distill.tree import num_tokens
from batchfact.distill.visits import Document, Visits, gather
from batchfact.errors import UsageError
from batchfact.prompts.loader import PromptBook, PromptVariant, shipped_texts
from batchfact.records import Label
from tests.distill_samples import document, pairs
from tests.small_tokenizers import byte_level, line_breaking, sentencepiece

NOTES = Set(name="notes", path="notes.parquet", units=("summary", "window"))
MADE = Set(name="made", path="made.parquet", synthetic=True)


def book(variant: PromptVariant = "short") -> PromptBook:
    return PromptBook(lambda _: None, texts=shipped_texts(variant))


def placed(number: int, entry: Set = NOTES, variant: PromptVariant = "short") -> list[Placed]:
    found = []
    for row in pairs(number):
        label: Label = "consistent" if row["label"] else "inconsistent"
        pair = Labelled(
            data_set=entry.name, id=row["id"], document=row["document"], summary=row["summary"], label=label
        )
        found += [
            Placed(example=example, split="train", weight=2.0, document_key="x")
            for example in make_examples(pair, entry, (), book(variant), reasoning=False)
        ]
    return found


def visits(**settings: object) -> Visits:
    return Visits(Assembler(byte_level()), Trees(**{"max_tokens": 4000, **settings}))  # type: ignore[arg-type]  # a test's settings


def only_document(examples: list[Placed]) -> Document:
    (found,) = gather(examples)
    return found


@pytest.mark.parametrize("tokenizer", [byte_level, line_breaking, sentencepiece])
@pytest.mark.parametrize("variant", ["short", "full"])
def test_the_ids_of_every_branch_are_those_that_a_run_asks_with(tokenizer, variant):
    assembler = Assembler(tokenizer())
    templates = book(variant)
    for each in gather(placed(3, variant=variant)):
        visit = Visits(assembler, Trees(max_tokens=9000)).test(each)
        shown = [statement for summary in each.summaries for statement in summary.windows or summary.whole]
        name = "sent_nli" if each.summaries[0].windows else "summ_nli"
        template = templates[name]
        for branch, statement in zip(visit.branches, shown, strict=True):
            prompt = template.fill(document=each.text, window=statement.words)
            assert list(branch.prompt) == assembler.assemble(prompt)
            label_ids = assembler.label_ids((template.parts[-1],), template.labels)  # type: ignore[arg-type]  # a cue
            wanted = label_ids[template.labels.index(statement.completion)]
            assert branch.completion[0] in wanted and len(branch.completion) == 1


def test_short_prompts_put_both_units_of_a_document_into_one_tree():
    one = only_document(placed(3))
    assert [(len(each.whole), len(each.windows), each.windows_rule) for each in one.summaries] == [
        (1, 2, "all"),
        (1, 2, "any"),
    ]
    assert len(gather(placed(3, variant="full"))) == 2  # other words stand before the document there


def test_a_summary_is_shown_whole_as_often_as_asked_and_else_by_windows():
    one = only_document(placed(3))
    always, never = visits(summary_share=1.0), visits(summary_share=0.0)
    rules = [[group.rule for group in each.train(one, random.Random(1)).groups] for each in (always, never)]
    assert rules[0] == ["each", "each"] and sorted(rules[1]) == ["all", "any"]
    drawn = [visits(summary_share=0.5).train(one, random.Random(seed)) for seed in range(40)]
    shares = [group.rule == "each" for visit in drawn for group in visit.groups]
    assert 0.3 < sum(shares) / len(shares) < 0.7
    assert drawn[0] == visits(summary_share=0.5).train(one, random.Random(0))


def test_a_summary_with_one_wrong_window_of_too_many_is_shown_whole():
    one = only_document(placed(3))
    shown = visits(summary_share=0.0, max_windows=1).train(one, random.Random(1))
    rules = {
        summary.label: (group.rule, len(group.branches))
        for summary, group in zip(shown.summaries, shown.groups, strict=True)
    }
    assert rules == {"consistent": ("all", 1), "inconsistent": ("each", 1)}


def test_a_visit_bounds_what_it_shows_by_kind():
    synthetic = only_document([each for entry in (MADE,) for each in placed(3, entry)])
    both = only_document(placed(3) + placed(3, MADE))
    bounded = visits(max_summaries=1, max_synthetic=1, max_synthetic_alone=2, max_windows=1, summary_share=0)
    shown = bounded.train(both, random.Random(1))
    assert sorted(each.is_synthetic for each in shown.summaries) == [False, True]
    assert [len(group.branches) for group in shown.groups] == [1, 1]
    assert len(bounded.train(synthetic, random.Random(1)).groups) == 2
    assert synthetic.is_synthetic and not both.is_synthetic
    assert {group.weight for group in shown.groups} == {2.0}


def test_a_document_comes_as_often_as_all_its_labelled_summaries_need():
    both = only_document(placed(3) + placed(3, MADE))
    halves = both.parts(1, random.Random(1))
    assert [[each.is_synthetic for each in half.summaries] for half in halves] == [[False, True, True]] * 2
    assert {half.summaries[0] for half in halves} == {each for each in both.summaries if not each.is_synthetic}
    assert both.parts(2) == both.parts(None) == [both]
    assert {half.text for half in halves} == {both.text}


def test_summaries_that_do_not_fit_the_tree_wait_for_another_visit():
    one = only_document(placed(3))
    room = len(visits().test(one).branches[0].prompt) + 40
    shown = visits(max_tokens=room, summary_share=1.0).train(one, random.Random(1))
    assert len(shown.groups) == 1


def test_a_document_that_leaves_no_room_is_cut_where_the_recipe_cuts_and_named_where_not():
    one = only_document(placed(3))
    assert visits(max_tokens=120).unfit(one) == ["notes:3-a", "notes:3-b"]
    assert visits().unfit(one) == []
    cut = visits(max_tokens=250, document_words=(90, 90), summary_share=1.0).train(one, random.Random(1))
    assert cut.groups and len(cut.branches[0].prompt) <= 250
    with pytest.raises(UsageError, match=r"do not fit trees\.max_tokens \(40\)"):
        visits(max_tokens=40, document_words=(90, 90)).train(one, random.Random(1))


def test_a_summary_must_fit_in_each_way_in_which_it_may_be_shown():
    one = only_document(placed(3))
    first = msgspec.structs.replace(one, summaries=one.summaries[:1])
    of_whole, of_windows = (
        num_tokens(visits(summary_share=share).train(first, random.Random(1)).branches) for share in (1.0, 0.0)
    )
    assert of_whole < of_windows  # two windows have two cues
    assert visits(max_tokens=of_windows).unfit(first) == []
    assert visits(max_tokens=of_whole).unfit(first) == [first.summaries[0].group]


def test_an_excerpt_keeps_the_nearest_sentences_in_their_order():
    text = document(3)
    cut = excerpt(text, ["The owner asked people to help with counting.", "The shop sold clocks on Monday."], 35)
    assert len(cut.split()) <= 35
    assert cut.startswith("The shop in Dover sold") and "asked 8 people to help" in cut
    assert excerpt(text, ["x"], 10_000) == text
    assert excerpt(text, ["The mayor was not there."], 3).startswith("The mayor of Dover")
