"""Grouping, for any input: nothing is lost or doubled, and neighbours of one document meet."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchfact.grouping import group_pairs
from batchfact.records import DocumentGroup, Pair, Rejected
from batchfact.source import rows_of

documents = st.lists(st.none() | st.sampled_from([f"dö{number}" * number for number in range(1, 9)]), max_size=60)
look_aheads = st.integers(1, 30)
memories = st.sampled_from([0, 1, 700, 3000, 1 << 20])
caps = st.sampled_from([1, 3, 256])


def run(texts, mode, look_ahead_rows, look_ahead_bytes, max_group_pairs):
    rows = list(rows_of((text, f"s{row}") for row, text in enumerate(texts)))
    with tempfile.TemporaryDirectory() as folder:
        found = list(
            group_pairs(
                rows,
                mode=mode,
                look_ahead_rows=look_ahead_rows,
                look_ahead_bytes=look_ahead_bytes,
                spill_dir=Path(folder) / "spill",
                max_group_pairs=max_group_pairs,
            )
        )
        assert not [path for path in Path(folder).rglob("*") if path.is_file()]
    return rows, found


@pytest.mark.parametrize("mode", ["none", "window", "global"])
@given(texts=documents, rows_ahead=look_aheads, memory=memories, cap=caps)
def test_every_row_leaves_exactly_once_and_unchanged(mode, texts, rows_ahead, memory, cap):
    rows, found = run(texts, mode, rows_ahead, memory, cap)
    out = [each for item in found for each in ([item] if isinstance(item, Rejected) else item.pairs)]
    assert sorted(out, key=lambda row: row.row) == rows


@pytest.mark.parametrize("mode", ["none", "window", "global"])
@given(texts=documents, rows_ahead=look_aheads, memory=memories, cap=caps)
def test_a_group_has_one_document_and_no_more_pairs_than_allowed(mode, texts, rows_ahead, memory, cap):
    _, found = run(texts, mode, rows_ahead, memory, cap)
    groups = [item for item in found if isinstance(item, DocumentGroup)]
    assert all(len({pair.document for pair in group.pairs}) == 1 and len(group.pairs) <= cap for group in groups)
    assert [group.number for group in groups] == list(range(len(groups)))


@given(texts=documents, rows_ahead=look_aheads, memory=memories)
def test_window_joins_all_pairs_of_a_document_within_the_look_ahead(texts, rows_ahead, memory):
    """Two pairs with fewer than the look-ahead's number of pairs between them share a group or a chain of groups."""
    rows, found = run(texts, "window", rows_ahead, memory, 256)
    group_of = {pair.row: item.number for item in found if isinstance(item, DocumentGroup) for pair in item.pairs}
    pairs = [row for row in rows if isinstance(row, Pair)]
    firsts: dict[str, int] = {}
    for index, pair in enumerate(pairs):
        first = firsts.get(pair.document)
        if first is None or group_of[pairs[first].row] != group_of[pair.row]:
            assert first is None or index - first >= rows_ahead
            firsts[pair.document] = index


@given(texts=documents, memory=memories)
def test_global_makes_one_group_of_each_document(texts, memory):
    _, found = run(texts, "global", 1, memory, 256)
    groups = [item for item in found if isinstance(item, DocumentGroup)]
    assert len(groups) == len(set(texts) - {None})


@given(texts=documents, rows_ahead=look_aheads, memory=memories)
def test_window_groups_leave_in_the_order_of_their_first_pair(texts, rows_ahead, memory):
    _, found = run(texts, "window", rows_ahead, memory, 256)
    firsts = [item.pairs[0].row for item in found if isinstance(item, DocumentGroup)]
    assert firsts == sorted(firsts)
