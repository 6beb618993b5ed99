"""What the measurements of flips and soaks make of what they saw."""

from __future__ import annotations

import msgspec
import pytest

from batchfact.run_log import Event
from bench.flips import compare
from bench.soak import Sample, describe, is_flat


def test_flips_are_counted_by_their_distance_from_the_threshold() -> None:
    base = {0: (0.495, 0.9), 1: (0.6, None), 2: (0.3,)}
    other = {0: (0.505, 0.9), 1: (0.4, None), 2: (None,)}
    found = compare(base, other, 0.5)

    assert found["findings"] == 3
    assert found["judged_by_one_alone"] == 1
    assert found["equal_bits"] == 1
    assert found["flipped_findings"] == 2
    assert found["farthest_flip"] == pytest.approx(0.1)
    assert found["largest_difference"] == pytest.approx(0.2)
    assert found["flips_within"]["0.01"] == {"findings": 1, "flips": 1}
    assert found["flips_within"]["0.001"] == {"findings": 0, "flips": 0}
    assert found["rows_with_another_label"] == 3


def run_of(rss: list[int], speeds: list[int], cores: float = 0.5) -> tuple[list[Sample], list[Event]]:
    """Ten tenths of ten seconds, with two looks at each; the engine is ready five seconds after the run began, the
    process two before it, and the run has so much of a core's time."""
    events, rows = [Event(event="engine_ready", elapsed_s=5.0)], 0
    for tenth, speed in enumerate(speeds):
        rows += speed * 10
        events.append(Event(event="committed", elapsed_s=5.0 + 10 * (tenth + 1), committed=rows))
    events.append(Event(event="run_ended", elapsed_s=107.0))
    looks = [(2.0 + 5.0 + 10 * tenth + second, each) for tenth, each in enumerate(rss) for second in (2, 7)]
    samples = [Sample(at_s, each, 0, 20, 8, at_s * cores) for at_s, each in looks]
    return [*samples, Sample(109.0, 0, 0, 0, 0, 109.0 * cores)], events


def test_a_steady_run_is_flat() -> None:
    found = describe(*run_of([300, 400, 410] + [415] * 7, [100] * 10), by_cpu=False)

    assert found["rss_mib_by_tenth"] == [300, 400, 410, *[415] * 7]
    assert found["rows_per_s_by_tenth"] == [pytest.approx(100, rel=0.6), *[100] * 9]
    assert found["is_flat"]


def test_memory_that_grows_and_speed_that_falls_are_not_flat() -> None:
    assert not describe(*run_of([300 + 20 * tenth for tenth in range(10)], [100] * 10), by_cpu=False)["is_flat"]
    assert not describe(*run_of([300] * 10, [100 - 5 * tenth for tenth in range(10)]), by_cpu=False)["is_flat"]


def test_a_machine_that_does_other_work_does_not_make_a_run_slow_by_cpu_time() -> None:
    samples, events = run_of([300] * 10, [100] * 5 + [50] * 5)
    spent, busy = 0.0, []
    for before, now in zip([samples[0], *samples], samples, strict=False):
        spent += (now.at_s - before.at_s) * (0.5 if now.at_s <= 57 else 0.25)
        busy.append(msgspec.structs.replace(now, cpu_s=spent))
    found = describe(busy, events, by_cpu=True)

    assert found["is_flat"]
    assert found["rows_per_cpu_s_by_tenth"][1:] == [pytest.approx(200)] * 9
    assert not describe(busy, events, by_cpu=False)["is_flat"]


def test_the_first_two_tenths_do_not_count() -> None:
    assert is_flat([1, 2, 10, 10, 10, 10, 10, 10, 10, 11])
    assert not is_flat([10, 10, 10, 10, 10, 10, 10, 10, 10, 12])
