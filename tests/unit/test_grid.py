"""Axes of options into points, and their names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from batchfact.compare.experiment import read_experiment
from batchfact.compare.grid import expand
from batchfact.compare.narrowing import narrow_points, parse_only
from batchfact.compare.trials import name_points
from batchfact.errors import UsageError

REPEATS = ("seed", "instruction", "demonstrations")


def systems(*grids: dict[str, Any], common: dict[str, Any] | None = None) -> list[str]:
    return [name.system for name in name_points(expand(common or {}, grids), REPEATS)]


def test_every_combination_of_the_axes_is_a_point() -> None:
    points = expand({"model": "m"}, [{"paradigm": ["vanilla", "sbs"], "instruction": [1, 2, 3]}])

    assert [(each.options["paradigm"], each.options["instruction"]) for each in points] == [
        (paradigm, instruction) for paradigm in ("vanilla", "sbs") for instruction in (1, 2, 3)
    ]
    assert all(each.config.identity.model == "m" for each in points)


def test_a_point_that_two_grids_share_is_there_once() -> None:
    assert len(expand({}, [{"paradigm": ["sent-nli", "qg-qa"]}, {"paradigm": ["qg-qa", "summ-nli"]}])) == 3
    assert len(expand({}, [{"paradigm": "vanilla"}, {"paradigm": "vanilla", "shots": 0, "threshold": 0.5}])) == 1


def test_a_grid_s_own_option_goes_before_the_common_one() -> None:
    (point,) = expand({"paradigm": "qg-qa", "threshold": 0.4}, [{"paradigm": "summ-nli"}])

    assert point.options == {"paradigm": "summ-nli", "threshold": 0.4}


def test_without_shots_neither_seeds_nor_examples_make_points_of_their_own() -> None:
    grid = {"paradigm": "vanilla", "shots": [0, 2], "seed": [0, 1, 2], "demonstrations": "examples.parquet"}
    points = expand({}, [grid])

    assert [(each.options["shots"], each.options.get("seed")) for each in points] == [(0, None), (2, 0), (2, 1), (2, 2)]
    assert len(expand({"temperature": 0.7}, [grid])) == 6


def test_names_may_have_underscores() -> None:
    (point,) = expand({"window_sentences": 2}, [{}])

    assert point.config.identity.window_sentences == 2


@pytest.mark.parametrize(
    ("common", "grid", "message"),
    [
        ({}, {"paradim": "sbs"}, r"grid\[0\].paradim: there is no such option of run; did you mean 'paradigm'"),
        ({"modell": "m"}, {}, r"options.modell: .* did you mean 'model'"),
        ({}, {"paradigm": ["sent-nli", "sentnli"]}, r"grid\[0\].paradigm: --paradigm: Invalid enum value 'sentnli'"),
        ({"threshold": 2.0}, {}, r"options.threshold: --threshold must lie between 0 and 1"),
        ({}, {"paradigm": ["vanilla", "sent-nli"], "instruction": [1, 2]}, r"\(at paradigm sent-nli\)"),
        ({"seed": [1, 2]}, {}, r"options.seed: a list is an axis"),
        ({}, {"seed": []}, r"grid\[0\].seed: an axis needs at least one value"),
        ({}, {"limit": 3}, r"grid\[0\].limit cannot be set here: .* top of the file"),
        ({}, {"paradigm-by": {"source": {}}}, r"paradigm-by.source names no value"),
        ({}, {"paradigm-by": "source"}, r"grid\[0\].paradigm-by takes one column"),
        ({}, {"paradigm-by": {"source": {"xsum": "vanila"}}}, r"Invalid enum value 'vanila'"),
        ({}, {"paradigm-by": {"source": {"x": "sbs"}}, "paradigm": "sbs"}, r"paradigm and paradigm-by exclude"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(common: dict[str, Any], grid: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        expand(common, [grid])


@pytest.mark.parametrize("written", ["0", "0.0"])
def test_only_takes_a_number_however_it_is_written_and_where_it_is_the_default(written: str) -> None:
    points = expand({"paradigm": "cot"}, [{"model": "one"}, {"model": "two", "temperature": [0, 0.7]}])
    left = narrow_points(points, parse_only([f"temperature={written}"]))

    assert [point.value_of("model") for point in left] == ["one", "two"]


def test_points_are_named_by_what_tells_them_apart() -> None:
    assert systems({"model": "m", "paradigm": ["sent-nli", "summ-nli"], "dtype": ["float16", "bfloat16"]}) == [
        "m sent-nli dtype float16",
        "m sent-nli dtype bfloat16",
        "m summ-nli dtype float16",
        "m summ-nli dtype bfloat16",
    ]
    assert systems({"model": "m", "group": ["window", "none"]}) == ["m sent-nli group window", "m sent-nli group none"]
    assert systems({"model": "m", "group": "none"}) == ["m sent-nli"]


def test_points_that_differ_in_repeats_alone_are_one_system() -> None:
    grid = {"model": "m", "paradigm": "vanilla", "instruction": [1, 2], "shots": [0, 2], "demonstrations": "d.parquet"}
    names = name_points(expand({}, [grid]), REPEATS)

    assert [(name.system, name.repeat) for name in names] == [
        ("m vanilla", "instruction 1"),
        ("m vanilla 2-shot", "instruction 1"),
        ("m vanilla", "instruction 2"),
        ("m vanilla 2-shot", "instruction 2"),
    ]
    assert {name.base for name in names} == {"m vanilla"}
    assert [name.system for name in name_points(expand({}, [grid]), ("seed",))][::2] == [
        "m vanilla instruction 1",
        "m vanilla instruction 2",
    ]


def test_a_paradigm_by_column_is_said_in_the_name() -> None:
    by = {"source": {"cnndm": "sbs", "xsum": "vanilla", "*": "vanilla"}}

    assert systems({"model": "m", "paradigm-by": by}) == ["m sbs (cnndm) / vanilla (xsum, others)"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dta = 'x'", r"e.toml: there is no setting 'dta'; did you mean 'data'"),
        ("paradigm = 'sbs'", r"paradigm is an option of run: it has its place under \[options\] or \[\[grid\]\]"),
        ("limit = 'x'", r"limit: Expected `int \| null`, got `str`"),
        ("data = 'x'\nlimit = 0", "limit must be at least 1, got 0"),
        ("[options]", "data names no data set"),
        ("data = 'x'\nrepeats = ['sed']", "repeats: there is no option 'sed' of run; did you mean 'seed'"),
        ("data = 'x'\n[grid]\nseeed = 1", r"e.toml: grid\[0\].seeed: .* did you mean 'seed'"),
        ("= 3", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_setting_s_path(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "e.toml"
    file.write_text(text)

    with pytest.raises(UsageError, match=message):
        read_experiment(file)


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text("data = 'x'\nlimit = 5\nlabel-column = 'gold'")
    read = read_experiment(file)
    given = read_experiment(file, data=("y", "z"), limit=7, results=tmp_path)

    assert (read.data, read.limit, read.results, read.columns.label) == (("x",), 5, Path("e-results"), "gold")
    assert (given.data, given.limit, given.results) == (("y", "z"), 7, tmp_path)


def test_the_shipped_experiment_can_be_read_with_its_commented_grids_too(tmp_path: Path) -> None:
    shipped = Path(__file__).parents[2] / "examples" / "compare.toml"
    full = tmp_path / "full.toml"
    full.write_text(re.sub(r"(?m)^# (\[\[grid\]\]|[\w-]+ = )", r"\1", shipped.read_text()))

    points = read_experiment(shipped).points
    paradigms = ["summ-nli", "sent-nli", "qg-qa", "vanilla", "cot", "sbs"]
    names = [name.system for name in name_points(points, REPEATS)]
    assert names[2:] == [f"smollm2-135m {paradigm}" for paradigm in paradigms]
    assert [name.split()[:2] for name in names[:2]] == [["smollm2-135m-factual", each] for each in paradigms[:2]]
    assert len(read_experiment(full).points) == 8 + 3 + 3  # zero-shot vanilla is there already
