"""`--where`: a condition in Python's notation becomes a pyarrow expression; nothing of it is ever run as code.

Text flows in, an expression over columns flows out.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Collection
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchfact.errors import UsageError, nearest

COMPARISONS = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def parse_where(text: str, columns: Collection[str]) -> pc.Expression:
    """The condition of `--where`, such as `split == "test" and dataset in ("frank", "cliff")`.

    It has columns, numbers, texts, True, False and None, compared by == != < <= > >= in, not in, is and is not, and
    joined by and, or, not and brackets.

    Args:
        columns: the names that there are.
    Raises: UsageError for anything else, naming what was not understood.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
        return _Condition(text, columns).of(tree.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"--where {text!r} is no condition: {error}") from error


class _Condition:
    def __init__(self, text: str, columns: Collection[str]) -> None:
        self.text = text
        self.columns = columns

    def of(self, node: ast.expr) -> pc.Expression:
        match node:
            case ast.BoolOp(op=ast.And(), values=values):
                return reduce(operator.and_, map(self.of, values))
            case ast.BoolOp(op=ast.Or(), values=values):
                return reduce(operator.or_, map(self.of, values))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return ~self.of(operand)
            case ast.Compare(left=left, ops=ops, comparators=rights):
                lefts = [left, *rights[:-1]]
                return reduce(operator.and_, map(self._comparison, lefts, ops, rights))
            case ast.Name():
                return self._value(node)
        raise self._not_understood(node)

    def _comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> pc.Expression:
        match op:
            case ast.In():
                return self._value(left).isin(self._constants(right))
            case ast.NotIn():
                return ~self._value(left).isin(self._constants(right))
            case ast.Is() | ast.IsNot() if isinstance(right, ast.Constant) and right.value is None:
                is_null = self._value(left).is_null()
                return is_null if isinstance(op, ast.Is) else ~is_null
        if type(op) not in COMPARISONS:
            raise self._not_understood(right)
        return COMPARISONS[type(op)](self._value(left), self._value(right))

    def _value(self, node: ast.expr) -> pc.Expression:
        if isinstance(node, ast.Name):
            if node.id not in self.columns:
                raise UsageError(f"--where: there is no column {node.id!r}{nearest(node.id, self.columns)}")
            return pc.field(node.id)
        return pc.scalar(self._constant(node))

    def _constants(self, node: ast.expr) -> pa.Array:
        if not isinstance(node, ast.Tuple | ast.List | ast.Set) or not node.elts:
            raise self._not_understood(node)
        try:
            return pa.array([self._constant(each) for each in node.elts])
        except (TypeError, pa.ArrowException) as error:
            shown = ast.get_source_segment(self.text.strip(), node) or self.text
            raise UsageError(f"--where: {shown} holds values of different types") from error

    def _constant(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return -value
        raise self._not_understood(node)

    def _not_understood(self, node: ast.expr) -> UsageError:
        shown = ast.get_source_segment(self.text.strip(), node) or self.text
        return UsageError(
            f"--where does not understand {shown!r}; write conditions such as split == 'test' and score >= 0.5"
        )
