"""`--shard i/n`: which documents are on which shard."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchfact.config import Runtime
from batchfact.errors import UsageError
from batchfact.settings import make_config
from batchfact.sharding import MAX_COUNT, JobShard, parse_shard
from batchfact.source import rows_of


@given(st.integers(0, 2**64 - 1), st.integers(1, MAX_COUNT))
def test_every_document_is_on_exactly_one_shard(document_hash: int, count: int) -> None:
    assert sum(JobShard(index, count).holds(document_hash) for index in range(1, count + 1)) == 1


def test_documents_spread_evenly() -> None:
    hashes = [row.document_hash for row in rows_of((f"Document {n}.", "Summary.") for n in range(4000))]
    shares = Counter(next(i for i in range(1, 9) if JobShard(i, 8).holds(each)) for each in hashes)

    assert len(shares) == 8
    assert all(400 < share < 600 for share in shares.values())


def test_the_shard_of_a_document_is_the_same_in_every_version() -> None:
    """A finished journal must stay what it was: these are the hashes of three fixed texts."""
    texts = ["The shop sold 3 lamps.", "", "Ein Satz."]
    rows = list(rows_of((text, "Summary.") for text in texts))

    assert [next(i for i in range(1, 5) if JobShard(i, 4).holds(row.document_hash)) for row in rows] == [2, 3, 4]


def test_a_row_that_cannot_be_scored_is_on_its_documents_shard() -> None:
    good, bad = rows_of([("A document.", "A summary."), ("A document.", " ")])

    assert good.document_hash == bad.document_hash
    assert good.text_hash != bad.text_hash


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("5/4", "--shard 5/4: there are the shards 1/4 to 4/4"),
        ("0/4", "where the array counts from 0, add 1"),
        ("1/0", "1 to 256 shards"),
        ("1/257", "1 to 256 shards"),
        ("3", "takes i/n"),
        ("-1/4", "takes i/n"),
        ("a/b", "takes i/n"),
        (0.25, "takes i/n"),
    ],
)
def test_a_shard_that_is_none_is_refused_with_the_way_out(text: object, told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        parse_shard(text)


def test_the_option_is_read_from_text() -> None:
    assert make_config((), "", {"shard": "2/8"}).runtime == Runtime(shard=JobShard(2, 8))
    assert str(JobShard(2, 8)) == "2/8"
