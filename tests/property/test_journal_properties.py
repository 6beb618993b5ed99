"""The journal, for any sequence of appends, compactions and openings, equals a dictionary."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchfact import journal_parts
from batchfact.journal import Journal, pending
from batchfact.records import Finding, Outcome, Usage
from batchfact.source import rows_of

findings = st.lists(
    st.builds(
        Finding,
        start=st.integers(0, 100),
        end=st.integers(100, 200),
        logprobs=st.none() | st.tuples(st.floats(-9, 0), st.floats(-9, 0)),
        reasoning=st.none() | st.text(max_size=20),
    ),
    max_size=3,
).map(tuple)
outcomes = st.builds(
    Outcome,
    row=st.integers(0, 40),
    text_hash=st.integers(0, 2**64 - 1),
    findings=findings,
    status=st.sampled_from(["ok", "engine_error"]),
    usage=st.builds(Usage, st.integers(0, 2**40), st.integers(0, 9), st.integers(0, 9)),
)
steps = st.lists(st.lists(outcomes, max_size=12) | st.sampled_from(["compact", "reopen"]), max_size=30)


def small_batches(monkey):
    monkey.setattr(journal_parts, "_KEY_BATCH_ROWS", 3)
    monkey.setattr(journal_parts, "_PAYLOAD_BATCH_ROWS", 2)
    monkey.setattr(journal_parts, "_GROUP_BYTES", 200)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_the_journal_equals_a_dictionary(steps):
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as monkey:
        small_batches(monkey)
        monkey.setattr(os, "fsync", lambda descriptor: None)
        folder = Path(name) / "journal"
        journal = Journal.open(folder, {}, {}, {})
        wanted = {}
        for step in steps:
            if step == "compact":
                journal.compact_if_needed()
            elif step == "reopen":
                journal.close()
                journal = Journal.open(folder, {}, {}, {})
            else:
                journal.append(step)
                wanted.update({outcome.row: outcome for outcome in step})
        ordered = [wanted[row] for row in sorted(wanted)]
        assert list(journal.outcomes()) == ordered
        assert list(journal.committed()) == [(each.row, each.text_hash) for each in ordered]
        assert [row for row, _ in journal.committed(lambda each: each.status != "ok")] == [
            each.row for each in ordered if each.status == "ok"
        ]
        assert not journal.warnings
        journal.close()


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30), st.integers(0, 5))
def test_pending_equals_a_look_up(choices, first):
    rows = list(rows_of([("d", f"{index}") for index in range(len(choices))], first))
    committed = {
        row.row: row.text_hash if same else 0 for row, (there, same) in zip(rows, choices, strict=True) if there
    }
    expected = [row for row in rows if committed.get(row.row) != row.text_hash]
    assert list(pending(rows, sorted(committed.items()))) == expected
