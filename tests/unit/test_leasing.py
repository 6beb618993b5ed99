from __future__ import annotations

import pytest

from batchfact.executors.leasing import HELD, LEASE_ROWS, NUM_LOTS, Lease, Leasing, lease_rows
from batchfact.records import DocumentGroup, Pair


def group(number: int, num_pairs: int = 1) -> DocumentGroup:
    """Rows 100 * number and on."""
    pairs = (
        Pair(row=100 * number + i, document=f"d{number}", summary=f"s{i}", document_hash=number, text_hash=i)
        for i in range(num_pairs)
    )
    return DocumentGroup(number=number, pairs=tuple(pairs))


def given(leasing: Leasing) -> list[tuple[int, Lease]]:
    found = []
    while (each := leasing.next()) is not None:
        found.append(each)
    return found


def finish(leasing: Leasing, worker: int, lease: Lease) -> None:
    leasing.receive(worker, lease.number, lease.rows)


def with_workers(num_workers: int, num_leases: int, **more: int) -> tuple[Leasing, list[tuple[int, Lease]]]:
    leasing = Leasing()
    for worker in range(num_workers):
        leasing.join(worker)
    for number in range(num_leases):
        leasing.add([group(number, **more)])
    return leasing, given(leasing)


def replaced(leasing: Leasing, worker: int) -> list[tuple[int, Lease]]:
    assert leasing.leave(worker) == ()
    leasing.join(worker)
    return given(leasing)


def test_every_worker_gets_one_lease_before_any_gets_a_second() -> None:
    _, found = with_workers(3, 6)

    assert [worker for worker, _ in found] == [0, 1, 2, 0, 1, 2]


def test_a_worker_holds_three_leases_and_gets_the_next_when_one_is_finished() -> None:
    leasing, found = with_workers(1, HELD + 2)
    assert len(found) == HELD
    finish(leasing, *found[1])

    assert len(given(leasing)) == 1


def test_more_is_wanted_only_while_a_worker_has_room_and_nothing_waits() -> None:
    leasing = Leasing()
    found = [leasing.wants_more]
    leasing.join(0)
    found.append(leasing.wants_more)
    leasing.add([group(0)])
    found.append(leasing.wants_more)
    given(leasing)
    found.append(leasing.wants_more)

    assert found == [False, True, False, True]


def test_a_lease_is_finished_with_its_last_row() -> None:
    leasing, ((worker, lease),) = with_workers(1, 1, num_pairs=3)
    leasing.receive(worker, lease.number, [0, 2])
    before = leasing.is_idle
    leasing.receive(worker, lease.number, [1])

    assert (before, leasing.is_idle) == (False, True)


def test_what_a_worker_held_when_it_ended_is_given_out_again_one_lease_at_a_time() -> None:
    leasing, found = with_workers(2, 6)
    finish(leasing, *found[0])
    again = replaced(leasing, 1)

    assert [lease.is_probe for _, lease in again] == [True], "the new worker shows first that it can score"
    finish(leasing, *again[0])
    (suspect,) = given(leasing)
    assert suspect[1].is_suspect
    finish(leasing, *suspect)
    assert len(given(leasing)) == 1


def test_rows_that_had_come_back_are_not_asked_again() -> None:
    leasing, ((_, lease),) = with_workers(1, 1, num_pairs=4)
    leasing.receive(0, lease.number, [0, 2])
    finish(leasing, *replaced(leasing, 0)[0])
    ((_, again),) = given(leasing)

    assert again.rows == {1, 3}


def test_the_last_row_of_the_only_lease_is_given_up_where_the_others_come_back_before_it_ends_the_worker() -> None:
    """No lease is ever finished; a row that came back is not asked again for all that."""
    leasing, _ = with_workers(1, 1, num_pairs=3)
    ((_, suspect),) = replaced(leasing, 0)
    leasing.receive(0, suspect.number, [0, 1])

    assert [pair.row for pair in leasing.leave(0)] == [2], "the worker had scored something"
    assert leasing.is_idle


def test_a_probe_is_one_pair() -> None:
    leasing, found = with_workers(2, 2, num_pairs=5)
    leasing.receive(0, found[0][1].number, [3])
    ((_, probe),) = replaced(leasing, 1)

    assert (probe.is_probe, probe.rows) == (True, {3})


def test_a_suspect_that_ends_a_second_worker_is_parted() -> None:
    leasing = Leasing()
    leasing.join(0)
    leasing.add([group(number) for number in range(40)])
    given(leasing)
    assert len(replaced(leasing, 0)[0][1].groups) == 40
    ((_, part),) = replaced(leasing, 0)

    assert len(part.groups) == -(-40 // NUM_LOTS)


def test_a_pair_that_ends_a_worker_alone_is_given_up_and_no_other_is() -> None:
    """Row 203 ends every worker that gets it; whatever else there is, is finished."""
    leasing, found = with_workers(1, 3, num_pairs=5)
    done: set[int] = set()
    given_up: list[int] = []
    for _ in range(200):
        bad = next(((worker, lease) for worker, lease in found if 203 in lease.rows), None)
        if bad is not None:
            given_up += [pair.row for pair in leasing.leave(bad[0])]
            leasing.join(bad[0])
            found = given(leasing)
            continue
        for worker, lease in found:
            finish(leasing, worker, lease)
            done |= lease.rows
        found = given(leasing)
        if leasing.is_idle:
            break

    assert leasing.is_idle
    assert given_up == [203]
    assert done | {203} == {100 * number + i for number in range(3) for i in range(5)}


def test_a_worker_that_never_scored_anything_puts_the_blame_on_no_pair() -> None:
    leasing, _ = with_workers(1, 1)

    for _ in range(20):
        ((_, lease),) = replaced(leasing, 0)
        assert lease.is_suspect


def test_a_worker_that_ends_on_a_probe_loses_nothing_and_blames_nobody() -> None:
    leasing, found = with_workers(2, 3)
    finish(leasing, *found[0])
    for _ in range(5):
        ((_, probe),) = replaced(leasing, 1)
        assert probe.is_probe
    finish(leasing, 1, probe)

    assert [lease.rows for _, lease in given(leasing)] == [{100}]


def test_a_worker_that_is_about_to_leave_gets_no_more_so_no_pair_is_blamed_that_it_never_received() -> None:
    leasing, found = with_workers(2, 6)
    leasing.leave(1)
    for worker, lease in found:
        if worker == 0:
            finish(leasing, worker, lease)
    ((worker, suspect),) = given(leasing)
    leasing.retire(worker)
    finish(leasing, worker, suspect)

    assert given(leasing) == [], "two suspects of one pair each wait for a worker that lives"
    assert not leasing.wants_more
    assert replaced(leasing, worker)[0][1].is_probe


def test_suspects_are_taken_by_another_worker_where_theirs_never_comes_back() -> None:
    leasing, found = with_workers(2, 6)
    leasing.leave(1)
    mine = [lease for worker, lease in found if worker == 0]
    for lease in mine[:-1]:
        finish(leasing, 0, lease)
        assert given(leasing) == [], "worker 0 is to hold nothing else"
    finish(leasing, 0, mine[-1])
    for _ in range(3):
        ((worker, suspect),) = given(leasing)
        assert (worker, suspect.is_suspect) == (0, True)
        finish(leasing, worker, suspect)

    assert leasing.is_idle
    leasing.add([group(7)])
    assert len(given(leasing)) == 1, "and then it takes fresh leases again"


@pytest.mark.parametrize(
    ("rows_left", "num_workers", "rows"), [(10**6, 8, LEASE_ROWS), (48, 2, 8), (1, 64, 1), (0, 1, 1), (-5, 1, 1)]
)
def test_leases_get_smaller_towards_the_end(rows_left: int, num_workers: int, rows: int) -> None:
    assert lease_rows(rows_left, num_workers) == rows
