"""What `python -m bench workers` runs and says."""

from __future__ import annotations

from bench.workers import Run, arms_of, told


def test_arms_are_one_worker_one_on_each_core_and_one_process() -> None:
    one, many, process = arms_of([2, 3])
    assert (one.cores, one.workers) == (frozenset({2}), 1)
    assert (many.cores, many.workers) == (frozenset({2, 3}), 2)
    assert (process.cores, process.workers) == (frozenset({2, 3}), 0)


def test_paces_and_labels_are_compared_with_the_first_arm() -> None:
    one, many, _ = arms_of([0, 1])
    found = {
        one.name: [Run(1.0, 8.0, ["consistent", None]), Run(2.0, 4.0, ["consistent", None])],
        many.name: [Run(3.0, 2.0, ["consistent", None]), Run(3.0, 2.0, ["inconsistent", None])],
    }
    assert told(found, one)["times_the_first"] == 1
    assert (told(found, many)["times_the_first"], told(found, many)["other_labels"]) == (2, 1)
