"""Cells: ordinary runs in the results folder, each named by a hash of everything that decides its output.

Data sets and options flow in, `Cell` records flow out. A cell that is finished is found by its name; one with another
input, option, prompt or model has another name. No engine is started here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.dataset as pads
from msgspec import Struct

from batchfact.compare.data_sets import DataSet
from batchfact.compare.grid import ParadigmBy
from batchfact.config import RunConfig
from batchfact.engines.base import EngineSpec
from batchfact.errors import UsageError
from batchfact.input_files import content_digest
from batchfact.journal import default_folder, read_run
from batchfact.models import find_model, is_local
from batchfact.preparation import compiles, prepare_method
from batchfact.settings import make_config
from batchfact.source import Source, open_source

State = Literal["finished", "begun", "new", "cannot run"]


class Part(Struct, frozen=True, kw_only=True):
    """The rows of a data set that get one of the paradigms of `by`."""

    by: ParadigmBy
    paradigm: str


class Cell(Struct, frozen=True, kw_only=True):
    """One run: its input, output and options.

    `rows` are those that it scores, the first ones of its input. With a `part`, the input is made of the data set's
    rows. Cells with one name of an `engine` can use the same one. `problem` says why there can be no run; output and
    engine have no name then.
    """

    data_set: DataSet
    input: str
    output: str
    engine: str = ""
    options: dict[str, Any]
    rows: int
    part: Part | None = None
    problem: str | None = None


def state_of(cell: Cell) -> State:
    """What is there of it now."""
    if cell.problem is not None:
        return "cannot run"
    if Path(cell.output).exists() and _num_rows(cell.output) == cell.rows:
        return "finished"
    return "new" if read_run(default_folder(cell.output)) is None else "begun"


def _num_rows(output: str) -> int | None:
    """None for a file that was damaged since: its run writes it again from the journal."""
    try:
        rows: int = pads.dataset(output, format="parquet").count_rows()
    except (OSError, pa.ArrowException):
        return None
    return rows


class Known(NamedTuple):
    """What decides a configuration's answers, as a journal has it, and what its engine needs to start."""

    identity: dict[str, Any]
    spec: EngineSpec


class Methods:
    """How configurations score; found out once for all data sets."""

    def __init__(self, *, may_fetch: bool) -> None:
        """`may_fetch`: whether a model that is not on this machine may be fetched for it."""
        self._may_fetch = may_fetch
        self._known: dict[bytes, Known] = {}

    def find(self, config: RunConfig, source: Source) -> Known:
        """Raises: UsageError where the method cannot be had, which only stops this configuration's cells."""
        key = msgspec.json.encode((config.identity, config.runtime), enc_hook=str)
        if config.identity.demonstrations is not None or key not in self._known:  # examples depend on the documents
            is_remote = config.runtime.base_url is not None
            if not self._may_fetch and not is_remote and not is_local(find_model(config.identity.model)):
                raise UsageError("its model is not on this machine yet")
            method = prepare_method(config, log_file=None, compiles=False, source=source)
            self._known[key] = Known(method.identity, method.spec)
        return self._known[key]


def make_cell(
    data_set: DataSet,
    options: Mapping[str, Any],
    results: Path,
    methods: Methods,
    *,
    rows: int,
    part: Part | None = None,
) -> Cell:
    """Find out what a run would be made of, and so its name.

    Args:
        options: options of `run`, without the number of rows.
        rows: how many of its input's first rows are scored.
    Raises: UsageError for an input that no run could read; what is wrong with the method is the cell's `problem`.
    """
    config = make_config((data_set.input,), "", options)
    source = open_source(
        config.inputs, document_column=config.identity.document_column, summary_column=config.identity.summary_column
    )
    cell = Cell(
        data_set=data_set, input=data_set.input, output="", options={**options, "limit": rows}, rows=rows, part=part
    )
    try:
        method = methods.find(config, source)
    except UsageError as error:
        return msgspec.structs.replace(cell, problem=str(error))
    deciding: dict[str, Any] = {
        "input": [source.fingerprint(), data_set.digest],
        "part": part,
        "method": method.identity,
        "fold": config.fold,
        "columns": config.columns,
        "early_exit": config.runtime.early_exit,
    }
    if part is not None and config.identity.demonstrations is not None:
        # Which examples are drawn depends on the part's documents, which are not looked at here.
        deciding["demonstrations"] = content_digest(config.identity.demonstrations)
    model = _words(Path(config.identity.model).name)
    about = f"{model}-{config.identity.paradigm}-{_digest(deciding)}"
    spec = msgspec.structs.replace(method.spec, compile=compiles(config, source, rows))
    cell = msgspec.structs.replace(cell, engine=f"{model}-{_digest([config.runtime.engine, spec])}")
    ending = "" if source.is_folder and part is None else ".parquet"
    output = results / "cells" / _words(data_set.name) / (about + ending)
    if part is None:
        return msgspec.structs.replace(cell, output=str(output))
    parts = results / "parts" / f"{_words(data_set.name)}-{_digest([data_set.digest, part])}.parquet"
    return msgspec.structs.replace(cell, input=str(parts), output=str(output))


def _words(text: str) -> str:
    """A file name that is one on every system."""
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.") or "unnamed"


def _digest(deciding: Any) -> str:
    text = msgspec.json.encode(deciding, order="sorted", enc_hook=str)
    return blake2b(text, digest_size=5).hexdigest()
