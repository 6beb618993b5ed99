"""Labelled rows, teachers' outputs and folds become examples on their sides, with weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchfact.distill.building import Built, build
from batchfact.distill.duplicates import near_duplicate_clusters
from batchfact.distill.example_files import Placed, read_examples, read_made
from batchfact.distill.recipe import read_recipe
from batchfact.distill.splits import Folds
from batchfact.distill.weights import balanced_weights
from batchfact.errors import UsageError
from batchfact.prompts.loader import PromptBook, shipped_texts
from tests.distill_samples import document, write_labelled, write_recipe
from tests.small_tokenizers import byte_level
from tests.unit.model_folders import write_folder


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's folder with a real tokenizer: building needs no weights."""
    monkeypatch.setenv("BATCHFACT_CACHE", str(tmp_path / "cache"))
    folder = write_folder(tmp_path / "base")
    byte_level().pretrained.save_pretrained(folder)
    return folder


def built(folder: Path, base: Path, extra: str = "", *, data: str = "", **options: Any) -> tuple[Built, list[Placed]]:
    recipe = read_recipe(write_recipe(folder / "recipe.toml", base, extra, data=data))
    output = folder / "examples.parquet"
    report = build(recipe, output, data=folder, **options)
    return report, list(read_examples(output))


def one_set(name: str = "notes", **settings: Any) -> str:
    lines = {"name": name, "path": f"{name}.parquet", "units": ["summary", "window"], **settings}
    return "[[data]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())


def teacher_output(path: Path, rows: list[dict[str, Any]], paradigm: str, *, reasoning: bool = True) -> Path:
    """What `batchfact run` writes, as far as a teacher's reader looks: (document, summary, label, findings)."""
    made = {
        "identity": {
            "model": "teacher-70b",
            "paradigm": paradigm,
            "reasoning": reasoning,
            "document_column": "document",
            "summary_column": "summary",
        },
        "fold": {"threshold": 0.5},
        "columns": {"column_prefix": "batchfact_"},
    }
    table = pa.Table.from_pylist(rows).replace_schema_metadata({"batchfact": json.dumps(made)})
    pq.write_table(table, path)
    return path


def finding(start: int, end: int, label: str, reasoning: str | None) -> dict[str, Any]:
    return {"start": start, "end": end, "label": label, "reasoning": reasoning}


def test_prompts_are_what_a_run_asks_and_completions_end_in_its_label(tmp_path: Path, base: Path):
    write_labelled(tmp_path / "notes.parquet", range(6))
    _, examples = built(tmp_path, base)
    template = PromptBook(lambda _: None, texts=shipped_texts("short"))["sent_nli"]
    for placed in examples:
        example = placed.example
        text = {field.name: example.prompt[field.start : field.end] for field in example.fields}
        asked = template.fill(document=text["document"], window=text["window"])
        assert example.prompt == "".join(segment.text for segment in asked)
        assert example.completion == (" Yes" if example.label == "consistent" else " No")
    assert {placed.example.unit for placed in examples} == {"summary", "window"}


def test_windows_of_a_summary_take_its_label_only_where_that_says_theirs(tmp_path: Path, base: Path):
    write_labelled(tmp_path / "notes.parquet", range(4))
    _, examples = built(tmp_path, base)
    kinds = {(each.example.label, each.example.kind) for each in examples if each.example.unit == "window"}
    assert kinds == {("consistent", "implied"), ("inconsistent", "any")}


def test_a_sentence_of_a_consistent_summary_too_is_not_what_is_wrong_with_another(tmp_path: Path, base: Path):
    rows = pq.read_table(write_labelled(tmp_path / "notes.parquet", range(4))).to_pylist()
    rows[3]["summary"] = rows[2]["summary"]  # of which all sentences are in a consistent one
    rows[5]["summary"] = rows[5]["summary"].upper()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "notes.parquet")
    _, examples = built(tmp_path, base, "[build]\ntest_share = 0")
    windows = [each.example for each in examples if each.example.unit == "window" and each.example.kind == "any"]
    assert [(each.group, each.window) for each in sorted(windows, key=lambda each: (each.group, each.window))] == [
        ("notes:0-b", 1),
        ("notes:1-b", 0),
        ("notes:1-b", 1),
        ("notes:2-b", 1),
        ("notes:3-b", 1),
    ]


def test_sentence_labels_are_the_windows_where_they_fit_the_summary(tmp_path: Path, base: Path):
    rows = pq.read_table(write_labelled(tmp_path / "notes.parquet", range(4))).to_pylist()
    for row in rows:
        row["sentence_labels"] = [1, row["label"]]
    rows[1]["sentence_labels"] = [1, 1]  # says that all is well where the label does not
    rows[3]["sentence_labels"] = [0]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "notes.parquet")
    _, examples = built(tmp_path, base, "[build]\ntest_share = 0")
    windows = [each.example for each in examples if each.example.unit == "window"]
    gold = {(each.group, each.window): each.label for each in windows if each.kind == "gold"}
    assert gold["notes:2-b", 0] == "consistent" and gold["notes:2-b", 1] == "inconsistent"
    assert {each.kind for each in windows if each.group in {"notes:0-b", "notes:1-b"}} == {"any"}


def test_reasoning_is_the_first_right_teachers_by_summ_nli_and_else_by_sent_nli(tmp_path: Path, base: Path):
    rows = pq.read_table(write_labelled(tmp_path / "notes.parquet", range(3))).to_pylist()
    first, wrong, third = (row for row in rows if row["label"] == 0)

    def said(row: dict[str, Any], label: str, *findings: dict[str, Any]) -> dict[str, Any]:
        return {**row, "batchfact_label": label, "batchfact_findings": list(findings)}

    cut = first["summary"].index("The mayor") - 1
    length = len(first["summary"])
    teacher_output(
        tmp_path / "summ.parquet",
        [
            said(first, "consistent", finding(0, length, "consistent", "All is well.")),
            said(wrong, "inconsistent", finding(0, length, "inconsistent", "He was absent.")),
        ],
        "summ-nli",
    )
    teacher_output(
        tmp_path / "sent.parquet",
        [
            said(
                row,
                "inconsistent",
                finding(0, cut, "consistent", "Sold as told."),
                finding(cut + 1, length, "inconsistent", "No mayor."),
            )
            for row in (first, third)
        ],
        "sent-nli",
    )
    teachers = '[[teachers]]\nname = "t"\nsumm_nli = ["summ.parquet"]\nsent_nli = ["sent.parquet"]\n'
    report, examples = built(tmp_path, base, teachers + "[build]\nreasoning = true\ntest_share = 0")
    reasons = {
        (each.example.group, each.example.window): each.example.completion for each in examples if each.example.source
    }
    # `first` by sent-nli, as summ-nli was wrong there; `wrong` by summ-nli; each window by what agrees with its label.
    assert reasons["notes:0-b", None] == " Sold as told. No mayor.\n\nAnswer: Yes"
    assert reasons["notes:1-b", None] == " He was absent.\n\nAnswer: Yes"
    assert reasons["notes:0-b", 0] == " Sold as told.\n\nAnswer: No"
    assert reasons["notes:0-b", 1] == " No mayor.\n\nAnswer: Yes"
    assert {each.example.kind for each in examples if each.example.group == "notes:0-b"} == {"gold", "teacher"}
    without = [each for each in examples if not each.example.source]
    # Every pair and every window, as T-wo-R has them, but for two sentences that consistent summaries have too.
    assert len(without) == 6 + 12 - 2
    assert report.counted[-1].with_reasoning == pytest.approx(len(reasons) / len(examples))


def test_a_persons_reason_comes_before_a_teachers(tmp_path: Path, base: Path):
    write_labelled(tmp_path / "notes.parquet", range(3), meta=json.dumps({"human_reason": "I was there."}))
    data = one_set(units=["summary"], reason="meta.human_reason")
    _, examples = built(tmp_path, base, "[build]\nreasoning = true", data=data)
    assert {each.example.source for each in examples} == {None, "human"}
    assert any(each.example.completion.startswith(" I was there.\n\nAnswer:") for each in examples)


def test_near_duplicates_lie_on_one_side_and_folds_are_obeyed(tmp_path: Path, base: Path):
    write_labelled(tmp_path / "notes.parquet", range(12))
    rows = pq.read_table(tmp_path / "notes.parquet").to_pylist()
    copies = [{**row, "document": f"Filed today. {row['document'][:-30]}"} for row in rows]
    pq.write_table(pa.Table.from_pylist(copies), tmp_path / "copies.parquet")
    folds = [{"file": "notes", "id": row["id"], "fold": int(row["id"].split("-")[0]) % 4} for row in rows]
    pq.write_table(pa.Table.from_pylist(folds), tmp_path / "folds.parquet")
    _, examples = built(
        tmp_path,
        base,
        data=one_set() + one_set("copies"),
        folds_file=tmp_path / "folds.parquet",
        folds=Folds(exclude=frozenset({0, 1}), test=frozenset({2})),
    )
    sides: dict[str, set[str]] = {}
    for each in examples:
        number = each.example.group.split(":")[1].split("-")[0]
        sides.setdefault(number, set()).add(each.split)
    assert sides == {"2": {"test"}, "6": {"test"}, "10": {"test"}, "3": {"train"}, "7": {"train"}, "11": {"train"}}
    assert {each.example.data_set for each in examples if each.split == "test"} == {"notes", "copies"}


def test_a_set_for_testing_keeps_its_documents_out_of_training(tmp_path: Path, base: Path):
    write_labelled(tmp_path / "notes.parquet", range(8))
    write_labelled(tmp_path / "other.parquet", range(5, 12))
    data = one_set(side="train") + one_set("other", side="test")
    report, examples = built(tmp_path, base, data=data)
    trained = {each.document_key for each in examples if each.split == "train"}
    tested = {each.document_key for each in examples if each.split == "test"}
    assert len(trained) == 5 and len(tested) == 7 and not trained & tested
    assert {(each.data_set, each.split) for each in report.counted} == {
        ("notes", "train"),
        ("other", "test"),
        ("all", "train"),
        ("all", "test"),
    }


def test_clusters_join_cut_and_edited_copies_and_nothing_else():
    edited = document(1).replace("Monday", "Sunday").replace("visitors", "guests")
    found = near_duplicate_clusters([document(1), document(2), document(1)[:300], edited, "Short.", "short", ""])
    one = found[0]
    assert [bool(each == one) for each in found] == [True, False, True, True, False, False, False]
    assert found[4] == found[5]


def test_weights_balance_labels_within_sets_and_sets_among_each_other():
    counts = {("a", "consistent"): 90, ("a", "inconsistent"): 10, ("b", "consistent"): 50, ("b", "inconsistent"): 50}
    weights = balanced_weights(counts, {"a": 1.0, "b": 3.0}, balance=0.5, most=100.0)  # type: ignore[arg-type]  # plain strings
    totals = {key: weights[key] * counts[key] for key in counts}  # type: ignore[index]  # plain strings
    assert totals["a", "consistent"] == pytest.approx(totals["a", "inconsistent"]) == pytest.approx(25)
    assert totals["b", "consistent"] == pytest.approx(totals["b", "inconsistent"]) == pytest.approx(75)
    assert max(balanced_weights(counts, {"a": 1.0, "b": 3.0}, balance=0.5, most=2.0).values()) == 2.0  # type: ignore[arg-type]  # plain strings


def test_examples_say_what_they_were_made_with(tmp_path: Path, base: Path):
    write_labelled(tmp_path / "notes.parquet", range(4))
    built(tmp_path, base)
    made = read_made(tmp_path / "examples.parquet")
    assert made.prompts == "short" and set(made.prompt_digests) == {"summ_nli", "sent_nli"}
    assert [(mode.paradigm, mode.reasoning) for mode in made.modes] == [("summ-nli", False), ("sent-nli", False)]
    with pytest.raises(UsageError, match="was not made by this version's `batchfact distill build`"):
        read_made(tmp_path / "notes.parquet")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"where": ["domain = poems"]}, "has no usable row that meets its rules"),
        ({"where": ["domian = notes"]}, "no column 'domian'.*did you mean 'domain'"),
        ({"where": ["notes"]}, "a rule is `column = value`"),
        ({"where": ["domain ~ ("]}, "is no regular expression"),
        ({"where": ["label = 1"]}, "all training rows are consistent: nothing can be learnt from one label"),
        ({"reason": "why"}, "has no column 'why'"),
        ({"path": "none.parquet"}, "none.parquet cannot be read"),
        ({"path": "twice.parquet"}, "row 2 has the id '0-a' of an earlier one: each summary needs an id of its own"),
    ],
)
def test_data_that_cannot_be_used_is_refused_with_the_way_out(
    tmp_path: Path, base: Path, settings: dict[str, Any], message: str
):
    rows = pq.read_table(write_labelled(tmp_path / "notes.parquet", range(4)))
    pq.write_table(pa.concat_tables([rows[:2], rows[:2]]), tmp_path / "twice.parquet")
    with pytest.raises(UsageError, match=message):
        built(tmp_path, base, data=one_set(**settings))


@pytest.mark.parametrize("output", ["notes.parquet", "folds.parquet", "teacher.parquet"])
def test_what_is_read_is_never_written_over(tmp_path: Path, base: Path, output: str):
    teacher = '[[teachers]]\nname = "t"\nsumm_nli = ["teacher.parquet"]\n'
    recipe = read_recipe(write_recipe(tmp_path / "recipe.toml", base, teacher, data=one_set()))

    with pytest.raises(UsageError, match="is an input; name another output"):
        build(recipe, tmp_path / output, data=tmp_path, folds_file=tmp_path / "folds.parquet")


@pytest.mark.parametrize(
    ("paradigm", "reasoning", "message"),
    [("summ-nli", False, "has no reasoning; score it with --reasoning"), ("qg-qa", True, "was scored by qg-qa")],
)
def test_a_teachers_file_that_cannot_teach_is_refused(
    tmp_path: Path, base: Path, paradigm: str, reasoning: bool, message: str
):
    write_labelled(tmp_path / "notes.parquet", range(4))
    row = {
        "document": "x",
        "summary": "y",
        "batchfact_label": "consistent",
        "batchfact_findings": [finding(0, 1, "consistent", "z")],
    }
    teacher_output(tmp_path / "said.parquet", [row], paradigm, reasoning=reasoning)
    with pytest.raises(UsageError, match=message):
        built(tmp_path, base, '[[teachers]]\nname = "t"\nsumm_nli = ["said.parquet"]\n')


def test_a_file_of_no_run_is_no_teacher(tmp_path: Path, base: Path):
    write_labelled(tmp_path / "notes.parquet", range(4))
    with pytest.raises(UsageError, match="is no output of `batchfact run`"):
        built(tmp_path, base, '[[teachers]]\nname = "t"\nsumm_nli = ["notes.parquet"]\n')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = 3", r"recipe.toml: Expected `str`, got `int` - at `\$.name`"),
        ('name = "x"\nbase = "y"\n', r"a recipe needs at least one \[\[data\]\]"),
        ('name = "x"\nbase = "y"\nsteps = 3\n', "unknown field `steps`"),
        ('name = "x"\nbase = "y"\n[[data]]\nname = "a"\npath = "a"\nteachers = ["t"]\n', "names teachers that"),
        ('name = "x"\nbase = "y"\n[[data]]\nname = "a"\npath = "a"\n[train]\nepochs = 0\n', "epochs must be above 0"),
        ("name = ", "is not TOML"),
    ],
)
def test_a_recipe_with_a_mistake_says_where_it_is(tmp_path: Path, text: str, message: str):
    (tmp_path / "recipe.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_recipe(tmp_path / "recipe.toml")


@pytest.mark.parametrize("name", ["smollm2-135m-factual", "llama2-7b-distilled"])
def test_shipped_recipes_can_be_read(name: str):
    recipe = read_recipe(Path(__file__).parents[2] / "recipes" / f"{name}.toml")
    assert recipe.name == name
