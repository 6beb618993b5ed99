"""What `python -m bench agreement` says of two runs."""

from __future__ import annotations

from typing import Any

import pytest

from bench.agreement import compare, kappa


def found(score: float, status: str = "ok") -> dict[str, Any]:
    label = ("consistent" if score >= 0.5 else "inconsistent") if status == "ok" else None
    return {"label": label, "score": score, "status": status}


def test_findings_near_the_threshold_count_for_kappa_and_not_for_the_clear_share():
    first = [found(0.9), found(0.1), found(0.51), found(0.8, "too_long")]
    second = [found(0.8), found(0.2), found(0.49), found(0.8)]
    told = compare(first, second, 0.5)
    assert (told["findings"], told["judged_by_both"], told["clear_findings"], told["other_statuses"]) == (4, 3, 2, 1)
    assert told["clear_agreement"] == 1
    assert told["agreement"] == pytest.approx(2 / 3)
    assert told["mean_difference"] == pytest.approx((0.1 + 0.1 + 0.02) / 3)


def test_kappa_is_agreement_beyond_chance():
    assert kappa([("a", "a"), ("b", "b")]) == 1
    assert kappa([("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")]) == 0
    assert kappa([("a", "a")]) is None
