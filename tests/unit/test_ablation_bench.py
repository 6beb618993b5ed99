"""The pure parts of `python -m bench ablation`."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.ablation import ABLATIONS, NOT_MEASURED, Setting, compare_with_first, with_setting
from bench.throughput.prompts import config_of
from bench.throughput.running import RunKey
from bench.throughput.task import Task

TASK = Task(arm="batchfact", input=Path("/in.parquet"), folder=Path("/work"), model="smollm2-135m")
SETTINGS = [(name, setting) for name, ablation in ABLATIONS.items() for setting in ablation.settings]


def keyed() -> RunKey:
    return RunKey(task=TASK, environment={"A": "1"}, turn=0, code="c", input_digest="i")


@pytest.mark.parametrize(("name", "setting"), SETTINGS, ids=[f"{name}: {each.title}" for name, each in SETTINGS])
def test_every_setting_is_a_run_that_batchfact_accepts(name, setting):
    config = config_of(with_setting(keyed(), setting).task)

    assert config.identity.model == "smollm2-135m"


def test_the_settings_of_an_ablation_have_titles_and_keys_of_their_own():
    for ablation in ABLATIONS.values():
        titles = {setting.title for setting in ablation.settings}
        keys = {(with_setting(keyed(), setting).name(), setting.input) for setting in ablation.settings}
        assert len(titles) == len(keys) == len(ablation.settings)


def test_a_settings_environment_goes_over_the_shared_one():
    changed = with_setting(keyed(), Setting(title="t", environment={"A": "2", "B": "3"}))

    assert changed.environment == {"A": "2", "B": "3"}


def test_a_lever_has_arms_or_a_reason_why_not():
    assert not ABLATIONS.keys() & NOT_MEASURED.keys()


def test_settings_are_compared_with_the_first_one():
    shared = {"input": "adjacent", "status": "ok", "reason": None, "scoring_s": 5.0, "logical_tokens_per_s": 1.0}
    runs = [{**shared, "arm": "off", "pairs_per_s": 2.0}, {**shared, "arm": "on", "pairs_per_s": 3.0}]

    assert [(line["title"], line["against_first"]) for line in compare_with_first(runs)] == [("off", 1.0), ("on", 1.5)]
