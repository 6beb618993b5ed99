from __future__ import annotations

from contextlib import ExitStack

import pytest

from batchfact.admission import Admission
from batchfact.engines.base import Capacity
from batchfact.shared_prefixes import SharedPrefixes, common_prefix

DOCUMENT = list(range(1000, 1320))


@pytest.fixture
def budget() -> Admission:
    return Admission(Capacity(kv_tokens=10_000, block_tokens=32, max_num_seqs=64, max_model_len=8192))


@pytest.fixture
def prefixes(budget: Admission) -> SharedPrefixes:
    shared = SharedPrefixes(budget)
    shared.take(iter([[1, 2, 3, 4, 5], [1, 2, 3, 9, 8]]))
    return shared


def test_first_prompts_bring_what_follows_their_prefix(prefixes: SharedPrefixes, budget: Admission) -> None:
    assert prefixes.first == [1, 2, 3]

    with prefixes.own_tokens([1, 2, 3, 9, 8]) as tokens:
        assert tokens == 2
        assert budget.tokens == 0


def test_a_group_without_prompts_shares_nothing(budget: Admission) -> None:
    shared = SharedPrefixes(budget)
    shared.take(iter([]))

    with shared.own_tokens([1, 2, 3]) as tokens:
        assert tokens == 3


def test_a_later_kind_is_held_once_while_any_of_it_is_in_flight(prefixes: SharedPrefixes, budget: Admission) -> None:
    with ExitStack() as second:
        with prefixes.own_tokens([1, *DOCUMENT, 7]) as first_tokens:
            assert first_tokens == 321
            assert budget.tokens == 0
            assert second.enter_context(prefixes.own_tokens([1, *DOCUMENT, 8, 9])) == 2
            assert budget.tokens == 320

        with prefixes.own_tokens([1, *DOCUMENT, 6]) as third_tokens:
            assert third_tokens == 1
            assert budget.tokens == 320

        assert budget.tokens == 320
    assert budget.tokens == 0

    with prefixes.own_tokens([1, *DOCUMENT, 5]) as tokens:
        assert tokens == 321


def test_prompts_that_share_nothing_are_charged_alone(prefixes: SharedPrefixes, budget: Admission) -> None:
    with ExitStack() as stack:
        for number in range(50):
            excerpt = [1, 2, *range(1000 * number, 1000 * number + 400)]
            assert stack.enter_context(prefixes.own_tokens(excerpt)) == 400
        assert budget.tokens == 0


def test_what_is_held_is_given_back_after_an_error(prefixes: SharedPrefixes, budget: Admission) -> None:
    with (
        pytest.raises(KeyError),
        prefixes.own_tokens([1, *DOCUMENT]),
        prefixes.own_tokens([1, *DOCUMENT, 2]),
    ):
        raise KeyError
    assert budget.tokens == 0


def test_common_prefix_counts_leading_equal_ids() -> None:
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2, 3], [1, 2, 4, 3]) == 2
    assert common_prefix([1, 2], [1, 2]) == 2
    assert common_prefix([9, 2], [1, 2]) == 0
