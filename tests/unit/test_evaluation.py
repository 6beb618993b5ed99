"""From scored files to an evaluation: what is read, what is compared, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from batchfact.errors import UsageError
from batchfact.evaluate.error_types import read_error_map
from batchfact.evaluate.evaluation import Evaluation, evaluate
from batchfact.evaluate.metrics import Absent, Measured
from batchfact.evaluate.published import Figures, published_figures
from batchfact.evaluate.reading import Columns, read_gold, read_run, read_runs
from batchfact.evaluate.runs import Run, join_shards
from tests.unit.scored_files import facts, write_scored

GOLD = [1, 1, 1, 1, 0, 0, 0, 0]
SCORES = [0.9, 0.8, 0.7, 0.2, 0.1, 0.3, 0.6, None]


def read(file: str, **options: Any) -> Run:
    columns = Columns(**{name: options.pop(name) for name in Columns.__struct_fields__ if name in options})
    return read_run(file, columns, **options)


def measured(*runs: Run, **options: Any) -> Evaluation:
    return evaluate(runs, error_map=read_error_map(), **options)


def value(metric: object) -> float:
    assert isinstance(metric, Measured), metric
    return metric.value


def test_the_headline_counts_unscored_rows_as_wrong_and_the_other_figure_leaves_them_out(tmp_path: Path) -> None:
    (cell,) = measured(read(write_scored(tmp_path / "a.parquet", GOLD, SCORES))).cells
    found = cell.measures

    assert (cell.system, cell.dataset) == ("small sent-nli", "input")
    assert value(found.balanced_accuracy) == (3 / 4 + 2 / 4) / 2
    assert value(found.balanced_accuracy_scored) == pytest.approx((3 / 4 + 2 / 3) / 2)
    assert (found.rows, found.scored, found.labelled, found.consistent) == (8, 7, 8, 4)
    assert found.statuses == {"ok": 7, "incomplete": 1}
    assert found.confusion.unscored_positives == 1
    # Of 4 times 3 pairs 0.2 loses against 0.3 and 0.6.
    assert value(found.roc_auc) == pytest.approx(10 / 12)


@pytest.mark.parametrize(
    "gold",
    [[True, False], ["consistent", "inconsistent"], [" Consistent", "INCONSISTENT"], [1.0, 0.0], ["1", "0"]],
)
def test_labels_may_be_numbers_booleans_and_words(tmp_path: Path, gold: list[Any]) -> None:
    run = read(write_scored(tmp_path / "a.parquet", gold, [0.9, 0.1]))

    assert run.rows.gold.tolist() == [1, 0]


@pytest.mark.parametrize("wrong", [["maybe", "consistent"], [2, 1]])
def test_another_label_is_refused(tmp_path: Path, wrong: list[Any]) -> None:
    with pytest.raises(UsageError, match="a label is 1, 0, consistent or inconsistent, got"):
        read(write_scored(tmp_path / "a.parquet", wrong, [0.9, 0.1]))


def test_rows_without_a_label_are_left_out_and_said(tmp_path: Path) -> None:
    run = read(write_scored(tmp_path / "a.parquet", [1, None, 0], [0.9, 0.5, 0.1]))

    assert len(run.rows) == 2
    assert run.notes == (f"{run.file}: 1 rows without a label are left out",)


def test_a_label_that_is_not_a_number_is_a_missing_one(tmp_path: Path) -> None:
    gold = pa.array([1.0, float("nan"), 0.0, float("nan")])
    run = read(write_scored(tmp_path / "a.parquet", gold, [0.9, 0.5, 0.1, 0.5]))

    assert run.rows.gold.tolist() == [1, 0]


def test_a_row_without_an_id_is_known_by_its_place_among_all(tmp_path: Path) -> None:
    statuses = ["ok", "incomplete", "ok", "ok"]
    file = write_scored(tmp_path / "a.parquet", [1, 1, 0, 0], [0.9, None, 0.1, 0.2], statuses=statuses)
    table = pq.read_table(file)
    pq.write_table(table.drop_columns("id"), file)

    run = read(file, where="batchfact_status == 'ok'")

    assert run.rows.ids.tolist() == ["row 0", "row 2", "row 3"]


def test_where_selects_rows(tmp_path: Path) -> None:
    file = write_scored(tmp_path / "a.parquet", GOLD, SCORES, split=["val", "test"] * 4)

    assert read(file, where="split == 'test'").rows.ids.tolist() == ["r1", "r3", "r5", "r7"]
    with pytest.raises(UsageError, match="no row is left by --where"):
        read(file, where="split == 'train'")


def test_findings_are_counted_and_texts_measured_in_words(tmp_path: Path) -> None:
    file = write_scored(
        tmp_path / "a.parquet",
        [1, 0, 1],
        [0.9, None, 0.4],
        num_findings=[3, 1, 2],
        summary=["one two", None, " one\ntwo  three "],
        document=["x " * 300, "y", ""],
    )
    rows = read(file).rows

    assert rows.num_judged.tolist() == [3, 0, 2]
    assert rows.summary_words.tolist() == [2, -1, 3]
    assert rows.document_words.tolist() == [300, 1, 0]


def test_another_prefix_is_read_from_the_file(tmp_path: Path) -> None:
    run = read(write_scored(tmp_path / "a.parquet", [1, 0], [0.9, 0.1], metadata=facts(prefix="bf.")))

    assert run.rows.predicted.tolist() == [1, 0]


def test_a_folder_of_shards_is_one_run(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    write_scored(tmp_path / "shards" / "a.parquet", [1, 0], [0.9, 0.1])
    write_scored(tmp_path / "shards" / "b.parquet", [1], [0.2])

    assert len(read(str(tmp_path / "shards")).rows) == 3


def test_another_systems_scores_are_evaluated_in_the_same_way(tmp_path: Path) -> None:
    file = tmp_path / "theirs.parquet"
    pq.write_table(pa.table({"label": [1, 1, 0, 0], "align": [0.9, 0.4, 0.1, None]}), file)
    (cell,) = measured(read(str(file), score="align")).cells

    assert (cell.system, cell.dataset) == ("align", "theirs")
    assert value(cell.measures.balanced_accuracy) == (1 / 2 + 1 / 2) / 2
    assert cell.measures.statuses == {"ok": 3, "no score": 1}


def test_other_systems_stand_beside_our_verdicts(tmp_path: Path) -> None:
    file = write_scored(tmp_path / "a.parquet", [1, 0], [0.9, 0.1], align=[0.1, 0.7], other=[0.6, 0.1])
    runs = read_runs(file, Columns(), score_columns=["align", "other"])

    assert [run.system for run in runs] == ["small sent-nli", "align", "other"]
    assert [value(cell.measures.balanced_accuracy) for cell in measured(*runs).cells] == [1, 0, 1]
    found = measured(*runs, threshold={None: 0.5, "align": 0.5, "other": 0.7}).cells
    assert [value(cell.measures.balanced_accuracy) for cell in found] == [1, 0, 0.5]


def test_a_file_without_verdicts_needs_a_score_column(tmp_path: Path) -> None:
    file = tmp_path / "theirs.parquet"
    pq.write_table(pa.table({"label": [1, 0], "align": [0.9, 0.1]}), file)

    with pytest.raises(UsageError, match="no verdicts of batchfact: score it first"):
        read(str(file))
    with pytest.raises(UsageError, match="no column 'aling'; did you mean 'align'"):
        read(str(file), score="aling")


def test_no_label_column_is_refused_with_the_way_out(tmp_path: Path) -> None:
    file = write_scored(tmp_path / "a.parquet", [1, 0], [0.9, 0.1])

    with pytest.raises(UsageError, match=r"no label column 'labels'; did you mean 'label'\?.*--label-column.*--labels"):
        read(file, label="labels")


@pytest.mark.parametrize("content", [None, b"no parquet"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "a.parquet"
    if content:
        file.write_bytes(content)

    with pytest.raises(UsageError, match=r"a\.parquet (is not a Parquet file|does not exist)"):
        read(str(file))


@pytest.mark.parametrize("column", ["label", "score", "score_raw", "status", "findings"])
def test_a_file_that_lost_a_column_of_its_verdicts_is_refused(tmp_path: Path, column: str) -> None:
    file = write_scored(tmp_path / "a.parquet", [1, 0], [0.9, 0.1])
    pq.write_table(pq.read_table(file).drop_columns([f"batchfact_{column}"]), file)

    with pytest.raises(UsageError, match=f"has lost the column 'batchfact_{column}'"):
        read(file)


def test_a_file_without_rows_is_not_blamed_on_where(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there are no rows"):
        read(write_scored(tmp_path / "a.parquet", [], []))


def test_a_folder_without_parquet_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no \*\.parquet file"):
        read(str(tmp_path))


def test_a_column_that_only_has_the_name_of_human_scores_is_left_alone_and_it_is_said(tmp_path: Path) -> None:
    file = write_scored(tmp_path / "a.parquet", [1, 0], [0.9, 0.1], score=["high", "low"])
    run = read(file)

    assert np.isnan(run.rows.ratings).all()
    assert run.notes == (f"{file}: column 'score' holds string, so it is not taken as human scores",)
    gold = read_gold(pads.dataset(file), "a", Columns(), num_rows=2)
    assert gold.labels.tolist() == [1, 0] and np.isnan(gold.ratings).all()
    with pytest.raises(UsageError, match="column 'id' holds string, not numbers"):
        read(file, rating="id")


def test_a_column_of_lists_holds_no_labels(tmp_path: Path) -> None:
    file = write_scored(tmp_path / "a.parquet", [[1], [0]], [0.9, 0.1])

    with pytest.raises(UsageError, match="a label is 1, 0, consistent or inconsistent, not list"):
        read(file)


@pytest.mark.parametrize("column", ["summarizer", "summariser", "system"])
def test_summarisers_are_found_by_their_usual_names(tmp_path: Path, column: str) -> None:
    names: dict[str, Any] = {column: ["s", "t"]}
    run = read(write_scored(tmp_path / "a.parquet", [1, 0], [0.9, 0.1], **names))

    assert run.rows.summarizers.tolist() == ["s", "t"]


def test_error_types_may_be_numbers_and_have_gaps(tmp_path: Path) -> None:
    listed = write_scored(tmp_path / "a.parquet", [1, 0], [0.9, 0.1], error_types=[None, ["EntE", None]])
    single = write_scored(tmp_path / "b.parquet", [1, 0], [0.9, 0.1], error_types=[None, 3])

    assert read(listed).rows.error_types.tolist() == [(), ("EntE",)]
    assert read(single).rows.error_types.tolist() == [(), ("3",)]
    assert measured(read(listed)).error_types


def test_texts_with_a_dictionary_are_measured_too(tmp_path: Path) -> None:
    texts = pa.array(["one two", "three"]).dictionary_encode()

    run = read(write_scored(tmp_path / "a.parquet", [1, 0], [0.9, 0.1], summary=texts))

    assert run.rows.summary_words.tolist() == [2, 1]


# Labels of another file


@pytest.fixture
def labels(tmp_path: Path) -> str:
    file = tmp_path / "labels.parquet"
    ids = [f"r{row}" for row in reversed(range(8))]
    pq.write_table(pa.table({"id": [*ids, "unused"], "label": [*reversed(GOLD), 1]}), file)
    return str(file)


def test_labels_of_another_file_are_joined_by_id(tmp_path: Path, labels: str) -> None:
    file = write_scored(tmp_path / "a.parquet", [None] * 8, SCORES)

    assert read(file, labels=labels).rows.gold.tolist() == GOLD


def test_ids_that_do_not_match_are_refused_with_their_number(tmp_path: Path, labels: str) -> None:
    file = write_scored(tmp_path / "a.parquet", [None] * 9, [*SCORES, 0.5])

    with pytest.raises(UsageError, match=r"1 of 9 rows of .* have an id that --labels .* lacks \('r8'\)"):
        read(file, labels=labels)


def test_an_id_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    twice = tmp_path / "labels.parquet"
    pq.write_table(pa.table({"id": ["r0", "r1", "r0"], "label": [1, 0, 0]}), twice)

    with pytest.raises(UsageError, match="has id 'r0' more than once"):
        read(write_scored(tmp_path / "a.parquet", [None] * 2, [0.1, 0.2]), labels=str(twice))


# Metrics that do not exist


def test_all_rows_unscored_has_no_metric_but_coverage(tmp_path: Path) -> None:
    (cell,) = measured(read(write_scored(tmp_path / "a.parquet", [1, 0], [None, None]))).cells

    assert cell.measures.balanced_accuracy == Absent("no row is scored")
    assert cell.measures.roc_auc == Absent("no row is scored")
    assert cell.measures.statuses == {"incomplete": 2}


def test_scores_of_early_exit_have_no_auc_and_get_no_threshold(tmp_path: Path) -> None:
    run = read(write_scored(tmp_path / "a.parquet", GOLD, SCORES, metadata=facts(early_exit=True)))
    (cell,) = measured(run).cells

    assert cell.measures.roc_auc == Absent("scores are upper bounds (--early-exit)")
    assert cell.measures.calibration_error == cell.measures.roc_auc
    assert value(cell.measures.balanced_accuracy) == 0.625
    with pytest.raises(UsageError, match="scored with --early-exit: its scores are only upper bounds"):
        measured(run, threshold="cv5")


def test_parsed_labels_without_scores_have_metrics_of_labels_alone(tmp_path: Path) -> None:
    file = write_scored(
        tmp_path / "a.parquet", [1, 0], [None, None], labels=["consistent", "inconsistent"], statuses=["ok", "ok"]
    )
    (cell,) = measured(read(file)).cells

    assert value(cell.measures.balanced_accuracy) == 1
    assert cell.measures.roc_auc == Absent("no row is scored")


# Thresholds


def test_another_threshold_changes_the_labels(tmp_path: Path) -> None:
    file = write_scored(tmp_path / "a.parquet", [1, 1, 0, 0], [0.3, 0.4, 0.1, 0.2])

    assert value(measured(read(file)).cells[0].measures.balanced_accuracy) == 0.5
    (cell,) = measured(read(file), threshold=0.25).cells
    assert value(cell.measures.balanced_accuracy) == 1
    assert cell.runs[0].thresholds == (0.25,)


def test_a_threshold_that_cannot_be_fitted_leaves_metrics_of_labels_absent(tmp_path: Path) -> None:
    (cell,) = measured(read(write_scored(tmp_path / "a.parquet", GOLD, SCORES)), threshold="cv5").cells

    assert "needs five scored rows of each label" in cell.measures.balanced_accuracy.reason
    assert value(cell.measures.roc_auc) == pytest.approx(10 / 12)


# Several files


def test_runs_that_differ_in_seed_or_instruction_are_repeats(tmp_path: Path) -> None:
    files = [
        write_scored(tmp_path / f"{seed}.parquet", [1, 1, 0, 0], scores, metadata=facts(seed=seed, instruction=seed))
        for seed, scores in enumerate([[0.9, 0.9, 0.1, 0.1], [0.9, 0.1, 0.1, 0.1], [0.9, 0.1, 0.9, 0.1]], start=1)
    ]
    (cell,) = measured(*map(read, files)).cells
    spread = cell.spread_of("balanced_accuracy")

    assert cell.runs[0].repeat == "1.parquet, instruction 1, seed 1"
    assert (spread.mean, spread.deviation) == (0.75, 0.25)


def test_other_settings_make_another_system(tmp_path: Path) -> None:
    plain = read(write_scored(tmp_path / "a.parquet", [1, 0], [0.9, 0.1]))
    other = read(
        write_scored(
            tmp_path / "b.parquet", [1, 0], [0.9, 0.1], metadata=facts(window_sentences=2, shots=2, paradigm="sbs")
        )
    )

    assert [cell.system for cell in measured(plain, other).cells] == [
        "small sent-nli",
        "small sbs window sentences 2 2-shot",
    ]
    assert other.base_system == "small sbs window sentences 2"


def test_two_runs_on_different_rows_are_refused(tmp_path: Path) -> None:
    first = read(write_scored(tmp_path / "a.parquet", [1, 0, 1], [0.9, 0.1, 0.2]))
    second = read(write_scored(tmp_path / "b.parquet", [1, 0], [0.9, 0.1], metadata=facts(seed=1)))

    with pytest.raises(UsageError, match=r"different rows of input,.*: 1 ids \('r2'\) only in the first, 0 ids only"):
        measured(first, second)


@pytest.mark.parametrize("doubled", ["a.parquet", "b.parquet"])
def test_a_doubled_id_is_refused_in_whichever_of_two_runs_it_is(tmp_path: Path, doubled: str) -> None:
    files = []
    for seed, name in enumerate(("a.parquet", "b.parquet")):
        ids = ["r0", "r1", "r1"] if name == doubled else ["r0", "r1"]
        values = [1, 0, 0][: len(ids)]
        files.append(write_scored(tmp_path / name, values, [0.5] * len(ids), metadata=facts(seed=seed), id=ids))

    with pytest.raises(UsageError, match=rf"{doubled} has an id of input more than once"):
        measured(*map(read, files))


def test_two_runs_are_compared_row_by_row_by_id(tmp_path: Path) -> None:
    first = write_scored(tmp_path / "a.parquet", [1, 1, 0, 0], [0.9, 0.8, 0.1, None])
    second = write_scored(tmp_path / "b.parquet", [1, 1, 0, 0], [0.9, 0.2, 0.1, 0.3], metadata=facts(seed=1))
    table = pq.read_table(second)
    pq.write_table(table.take([3, 2, 1, 0]), second)
    (agreement,) = measured(read(first), read(second)).agreements

    assert [(flip.id, flip.gold, flip.first, flip.second) for flip in agreement.flips] == [
        ("r1", "consistent", "consistent", "inconsistent"),
        ("r3", "inconsistent", None, "inconsistent"),
    ]
    # Both scored three rows and agree on two; by chance on 2/3 * 1/3 + 1/3 * 2/3.
    assert value(agreement.kappa) == pytest.approx((2 / 3 - 4 / 9) / (1 - 4 / 9))


def test_the_macro_average_takes_correlation_where_there_are_only_ratings(tmp_path: Path) -> None:
    file = write_scored(
        tmp_path / "a.parquet",
        [1, 1, 0, 0, None, None, None],
        [0.9, 0.2, 0.1, 0.2, 0.1, 0.2, 0.3],
        score=[None] * 4 + [0.3, 0.6, 0.9],
        dataset=["labels"] * 4 + ["ratings"] * 3,
    )
    (average,) = measured(read(file)).averages

    assert average.parts == {"labels": "balanced_accuracy", "ratings": "pearson"}
    assert value(average.value) == pytest.approx((0.75 + 1) / 2)


def test_a_macro_average_over_a_metric_that_does_not_exist_does_not_exist(tmp_path: Path) -> None:
    file = write_scored(tmp_path / "a.parquet", [1, 1, 1], [0.9, 0.2, 0.1], dataset=["a", "b", "b"])
    (average,) = measured(read(file)).averages

    assert average.value == Absent("a: all gold labels are consistent")


# Breakdowns


def test_summarisers_are_told_apart(tmp_path: Path) -> None:
    file = write_scored(
        tmp_path / "a.parquet", [1, 0, 1, 1], [0.9, 0.1, 0.2, None], summarizer=["bart", "bart", "t5", "t5"]
    )
    bart, t5 = measured(read(file)).summarizers

    assert (bart.summarizer, value(bart.balanced_accuracy), bart.rows) == ("bart", 1.0, 2)
    assert (t5.called, t5.consistent, t5.scored) == (0.0, 1.0, 1)
    assert t5.balanced_accuracy == Absent("all gold labels are consistent")
    assert value(t5.accuracy) == 0


def test_recall_by_error_type_has_common_names_and_a_column_without_errors(tmp_path: Path) -> None:
    file = write_scored(
        tmp_path / "a.parquet",
        [0, 0, 0, 0, 1, 1],
        [0.1, 0.9, 0.1, None, 0.9, 0.1],
        error_types=[["EntE"], ["SubObjE", "CorefE"], ["GramE"], ["CorefE"], [], ["GramE"]],
    )
    found = {each.error_type: each for each in measured(read(file)).error_types}

    assert {name: (each.rows, value(each.recall)) for name, each in found.items()} == {
        "none": (2, 0.5),
        "entity": (2, 0.5),
        "coreference": (2, 0.0),
        "not typed": (1, 1.0),
    }


def test_a_users_error_map_goes_before_the_shipped_one(tmp_path: Path) -> None:
    own = tmp_path / "map.toml"
    own.write_text('[all]\nEntE = "thing"\n[input]\nNew = "entity"\n')
    file = write_scored(tmp_path / "a.parquet", [0, 0], [0.1, 0.1], error_types=[["EntE"], ["New"]])
    found = evaluate([read(file)], error_map=read_error_map(own)).error_types

    assert {each.error_type for each in found} == {"none", "thing", "entity"}


@pytest.mark.parametrize("text", ["EntE = 'entity'", "[all]\nEntE = 3", "= 1"])
def test_a_wrong_error_map_is_refused(tmp_path: Path, text: str) -> None:
    own = tmp_path / "map.toml"
    own.write_text(text)

    with pytest.raises(UsageError, match="is no map of error types"):
        read_error_map(own)


def test_bins_of_length_say_how_many_rows_they_hold(tmp_path: Path) -> None:
    file = write_scored(
        tmp_path / "a.parquet",
        [1, 0, 1],
        [0.9, 0.1, 0.2],
        summary=["word " * 14, "word " * 15, "word " * 80],
        document=["x", "x", "x " * 5000],
    )
    found = [(each.text, each.low, each.high, each.rows, value(each.accuracy)) for each in measured(read(file)).lengths]

    assert found == [
        ("summary", 0, 15, 1, 1.0),
        ("summary", 15, 30, 1, 1.0),
        ("summary", 75, None, 1, 0.0),
        ("document", 0, 250, 2, 1.0),
        ("document", 2000, None, 1, 0.0),
    ]


# Published figures

FIGURES = Figures(
    source="Someone, Table 1",
    dataset="input",
    metric="balanced_accuracy",
    split="test",
    rows=4,
    consistent=0.5,
    values={"theirs": 61.0},
)


def compared(tmp_path: Path, *, split: str = "test", rows: int = 4, gold: list[int] | None = None) -> Any:
    labels = (gold or [1, 1, 0, 0])[:rows]
    file = write_scored(tmp_path / "a.parquet", labels, [0.9] * rows, split=[split] * rows)
    (comparison,) = measured(read(file), figures=[FIGURES]).comparisons
    return comparison


def test_a_published_figure_is_compared_where_all_is_the_same(tmp_path: Path) -> None:
    assert compared(tmp_path).is_comparable
    assert compared(tmp_path).remark is None


def test_a_published_figure_of_other_rows_is_not_comparable(tmp_path: Path) -> None:
    assert compared(tmp_path, rows=3).reason == "4 rows, here 3"
    assert compared(tmp_path, split="val").reason == "split test, here val"
    assert compared(tmp_path, gold=[1, 1, 1, 1]).reason == "balanced accuracy was not measured here"


def test_another_share_of_consistent_rows_is_remarked(tmp_path: Path) -> None:
    assert "50.0% of its rows are consistent, here 75.0%" in compared(tmp_path, gold=[1, 1, 1, 0]).remark


def test_the_shipped_figures_are_whole() -> None:
    figures = published_figures()

    assert {each.source.split(",")[0] for each in figures} == {"Xu 2024", "Chen 2023", "LLM-AggreFact board"}
    assert all(0 < value <= 100 for each in figures for value in each.values.values())
    assert len({(each.source, each.dataset, each.metric) for each in figures}) == len(figures)
    # Xu 2024, Table 2: the macro-average of the paper's own paradigms follows from its five data sets.
    table = [each.values for each in figures if each.source == "Xu 2024, Table 2"]
    averages = {
        name: np.mean([values[f"ChatGPT {name}"] for values in table]) for name in ("Summ-NLI", "Sent-NLI", "QG-QA")
    }
    assert averages == pytest.approx({"Summ-NLI": 46.24, "Sent-NLI": 57.12, "QG-QA": 57.13}, abs=0.01)


def test_a_doubled_column_is_only_refused_where_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pq.read_table(write_scored(path, GOLD, SCORES))
    for name in ("note", "note"):
        table = table.append_column(name, pa.array(["x"] * len(GOLD)))
    pq.write_table(table, path)
    assert len(read(str(path)).rows) == len(GOLD)

    pq.write_table(table.append_column("label", table["label"]), path)
    with pytest.raises(UsageError, match="several columns named 'label'; rename all but one"):
        read(str(path))


@pytest.mark.parametrize("foreign", ["hello", "[1]", "{}", '{"identity": {"model": 1}}'])
def test_another_programs_metadata_under_our_name_counts_as_none(tmp_path: Path, foreign: str) -> None:
    path = tmp_path / "a.parquet"
    table = pq.read_table(write_scored(path, GOLD, SCORES))
    pq.write_table(table.replace_schema_metadata({"batchfact": foreign}), path)

    with pytest.raises(UsageError, match="has columns of batchfact, but no metadata of its run"):
        read(str(path))
    assert len(read(str(path), score="batchfact_score").rows) == len(GOLD)


@pytest.mark.parametrize("role", ["id", "dataset", "summarizer", "rating", "error_types"])
def test_a_column_that_was_named_must_be_there(tmp_path: Path, role: str) -> None:
    file = write_scored(tmp_path / "a.parquet", GOLD, SCORES)

    with pytest.raises(UsageError, match=rf"no column 'labl'; did you mean 'label'\? \(--{role.replace('_', '-')}-col"):
        read(file, **{role: "labl"})


def write_shard(path: Path, first_row: int, rows: slice, **changes: Any) -> str:
    file = write_scored(path, GOLD[rows], SCORES[rows], metadata={**facts(**changes), "first_row": first_row})
    pq.write_table(pq.read_table(file).drop_columns("id"), file)
    return file


def test_shards_of_one_run_count_as_one_file_whether_named_by_folder_or_one_by_one(tmp_path: Path) -> None:
    whole = read(write_shard(tmp_path / "whole.parquet", 0, slice(None)))
    shards = tmp_path / "shards"
    shards.mkdir()
    files = [write_shard(shards / "0.parquet", 0, slice(0, 5)), write_shard(shards / "1.parquet", 5, slice(5, 8))]
    folder = read(str(shards))
    (joined,) = join_shards([read(file) for file in files])

    for found in (folder, joined):
        assert found.rows.ids.tolist() == whole.rows.ids.tolist() == [f"row {row}" for row in range(8)]
        assert measured(found).cells[0].measures == measured(whole).cells[0].measures
    assert "they are shards of one run" in joined.notes[-1]


def test_runs_with_other_settings_and_copies_are_not_joined(tmp_path: Path) -> None:
    first = read(write_shard(tmp_path / "a.parquet", 0, slice(0, 5)))
    seeded = read(write_shard(tmp_path / "b.parquet", 5, slice(5, 8), seed=1))
    copy = read(write_shard(tmp_path / "c.parquet", 0, slice(0, 5)))

    assert join_shards([first, seeded, copy]) == (first, seeded, copy)


def test_a_folder_of_outputs_by_several_methods_is_refused(tmp_path: Path) -> None:
    write_scored(tmp_path / "a.parquet", GOLD, SCORES)
    write_scored(tmp_path / "b.parquet", GOLD, SCORES, metadata=facts(paradigm="summ-nli"))

    with pytest.raises(UsageError, match=r'not scored alike \(identity.paradigm: "sent-nli" -> "summ-nli"\)'):
        read(str(tmp_path))
