from __future__ import annotations

import pyarrow as pa
import pyarrow.dataset as pads
import pytest

from batchfact.errors import UsageError
from batchfact.evaluate.where import parse_where

TABLE = pa.table({"n": [1, 2, 3, None], "name": ["a", "b", "a", "c"], "flag": [True, False, True, None]})


def rows(text: str) -> list[int]:
    numbered = TABLE.append_column("row", pa.array(range(4)))
    found = pads.dataset(numbered).to_table(columns=["row"], filter=parse_where(text, TABLE.column_names))
    return found.column("row").to_pylist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n == 2", [1]),
        ("n != 2", [0, 2]),
        ("1 < n <= 3", [1, 2]),
        ("name == 'a' and n > 1", [2]),
        ("name == 'c' or n == 1", [0, 3]),
        ("not (name == 'a')", [1, 3]),
        ("name in ('b', 'c')", [1, 3]),
        ("name not in ['b', 'c']", [0, 2]),
        ("n is None", [3]),
        ("n is not None", [0, 1, 2]),
        ("flag", [0, 2]),
        ("flag == False", [1]),
        ("n > -1", [0, 1, 2]),
    ],
)
def test_conditions(text: str, expected: list[int]) -> None:
    assert rows(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nam == 'a'", "no column 'nam'; did you mean 'name'"),
        ("__import__('os').system('x')", "does not understand"),
        ("name.upper() == 'A'", "does not understand"),
        ("n + 1 == 2", "does not understand"),
        ("[x for x in n]", "does not understand"),
        ("(lambda: 1)()", "does not understand"),
        ("name in n", "does not understand"),
        ("n ==", "is no condition"),
        ("n = 1", "is no condition"),
        ("", "is no condition"),
        ("(" * 5000 + "n" + ")" * 5000, "is no condition"),
    ],
)
def test_anything_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_where(text, TABLE.column_names)


def test_values_of_different_types_in_a_list_are_refused() -> None:
    with pytest.raises(UsageError, match="different types"):
        parse_where("name in ('a', 3)", TABLE.column_names)
