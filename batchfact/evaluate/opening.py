"""Parquet files that were named together, opened as one table with what they say of the run that wrote them.

Paths, folders, globs and URIs flow in; an `Opened` flows out. No row is read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.dataset as pads

from batchfact.errors import UsageError, nearest
from batchfact.evaluate.runs import Origin
from batchfact.input_files import find_files
from batchfact.metadata import read_description
from batchfact.run_file import differences

_METHOD = ("identity", "fold", "columns", "early_exit")
"""What files must have in common to be read as one."""


class Opened(NamedTuple):
    """`facts` are the first file's, empty where batchfact did not write it; `dataset` has no doubled column."""

    given: str
    dataset: pads.Dataset
    doubled: frozenset[str]
    facts: dict[str, Any]
    has_one_input: bool

    @property
    def origin(self) -> Origin | None:
        """None where the files do not say it."""
        if "first_row" not in self.facts:
            return None
        common = {name: value for name, value in self.facts.items() if name != "first_row"}
        return Origin(msgspec.json.encode(common, order="sorted").decode(), int(self.facts["first_row"]))

    @property
    def names(self) -> list[str]:
        return self.dataset.schema.names

    def refuse_doubled(self, names: Iterable[str]) -> None:
        """Raises: UsageError where one of the columns is there more than once."""
        for name in names:
            if name in self.doubled:
                raise UsageError(f"{self.given} has several columns named {name!r}; rename all but one")

    def require(self, name: str, option: str) -> None:
        """Raises: UsageError where there is no such column, or several."""
        self.refuse_doubled([name])
        if name not in self.names:
            raise UsageError(f"{self.given} has no column {name!r}{nearest(name, self.names)} ({option})")


def open_files(given: str) -> Opened:
    """Open a file, folder, glob or URI.

    Raises: UsageError where there is nothing to read, where columns of one name differ in type, and for outputs of
        different methods.
    """
    found = find_files([given])
    schemas = [schema for _, schema in found]
    names = schemas[0].names
    doubled = frozenset(name for name in names if names.count(name) > 1)
    facts = [read_description(schema.metadata) for schema in schemas]
    check_one_method([(shard.path, each) for (shard, _), each in zip(found, facts, strict=True)])
    try:
        schema = pa.unify_schemas([_without(each, doubled) for each in schemas], promote_options="permissive")
        dataset = pads.dataset(
            [shard.path for shard, _ in found], schema=schema, format="parquet", filesystem=found[0][0].filesystem
        )
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"{given} cannot be read as one table: {error}") from error
    has_one_input = all(each.get("inputs") == facts[0].get("inputs") for each in facts)
    return Opened(given, dataset, doubled, facts[0], has_one_input)


def check_one_method(described: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Raises: UsageError where two files were not scored alike, with the first difference.

    Args:
        described: paths, each with what the file says of its making.
    """
    first, facts = described[0]
    for path, others in described[1:]:
        if bool(facts) != bool(others):
            known, foreign = (first, path) if facts else (path, first)
            raise UsageError(f"{known} is an output of batchfact and {foreign} is none: they are no parts of one run")
        ours, theirs = ({name: each.get(name) for name in _METHOD} for each in (facts, others))
        if found := differences(ours, theirs):
            raise UsageError(
                f"{first} and {path} were not scored alike ({found}), so they are no parts of one run; `batchfact "
                "eval` compares them when each is named by itself"
            )


def _without(schema: pa.Schema, doubled: frozenset[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name not in doubled])
