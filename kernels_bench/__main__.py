"""`python -m kernels_bench [NAMES] [--device cpu|cuda] [--json FILE]`: check, time, and compare with the roofline."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import msgspec
from rich.console import Console
from rich.table import Table

from bench.facts import command_line, facts
from bench.tables import milliseconds
from kernels_bench.kernel import MakeKernels, Place
from kernels_bench.measuring import Floors, Row, measure_floors, rows_of

ON_DEVICE = ("ceilings", "prefill", "prefix_attention", "label_head")
"""Kernels that run on the device; all others are work of the host, whatever the device."""
ON_HOST = (
    "rouge_alignment",
    "sentence_splitting",
    "token_assembly",
    "block_hashing",
    "parquet_read",
    "journal_write",
    "journal_compaction",
    "output_merge",
)
NAMES = (*ON_DEVICE, *ON_HOST)


def kernels_of(name: str) -> MakeKernels:
    """The kernels of a file of this package; imported when it is asked for."""
    return cast("MakeKernels", import_module(f"kernels_bench.{name}").kernels)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kernels_bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all where none is given")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    parser.add_argument("--note", default="", help="kept in the result: what else the machine was doing")
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - set(NAMES)):
        parser.error(f"there is no kernel {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if args.device == "cuda" and not has_cuda():
        parser.error("--device cuda: torch finds no NVIDIA GPU here")
    with tempfile.TemporaryDirectory(prefix="kernels-bench-") as folder:
        place = Place(device=args.device, size="full", folder=Path(folder))
        floors = measure_floors(place)
        rows = list(measure(args.names or NAMES, place, floors))
    Console(width=None if sys.stdout.isatty() else 140).print(as_table(rows, floors, place))
    if args.json is not None:
        args.json.write_text(json.dumps(as_json(rows, floors, place, args.note), indent=1) + "\n", encoding="utf-8")
        print(f"wrote {args.json}")


def measure(names: Sequence[str], place: Place, floors: Floors) -> Iterator[Row]:
    """The rows of all kernels; the host's are timed on the CPU, whose floors are measured for them."""
    host = place if place.device == "cpu" else Place(device="cpu", size=place.size, folder=place.folder)
    host_floors = floors if host is place or not set(names) & set(ON_HOST) else measure_floors(host)
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        is_host = name in ON_HOST
        yield from rows_of(name, kernels_of(name), host if is_host else place, host_floors if is_host else floors)


def has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def as_table(rows: Sequence[Row], floors: Floors, place: Place) -> Table:
    title = (
        f"{place.device}, {place.dtype}: matrix products {floors.device.flops_per_s / 1e12:.3g} TFLOP/s, copies "
        f"{floors.device.bytes_per_s / 1e9:.3g} GB/s, durable writes {floors.disk_bytes_per_s / 1e6:,.0f} MB/s"
    )
    table = Table(title=title, title_justify="left")
    for name in ("kernel", "shape", "arm"):
        table.add_column(name)
    for name in ("floor", "measured", "measured / floor"):
        table.add_column(name, justify="right")
    for row in rows:
        arm = f"{row.arm} (reference)" if row.is_reference else row.arm
        if row.seconds is None or row.floor_s is None:
            table.add_row(row.kernel, row.shape, arm, "", row.note, "")
        else:
            figures = (milliseconds(row.floor_s), milliseconds(row.seconds), f"{row.ratio:,.2f}")
            table.add_row(row.kernel, row.shape, arm, *figures)
    return table


def as_json(rows: Sequence[Row], floors: Floors, place: Place, note: str) -> dict[str, Any]:
    """The result with the facts that every result has; `batchfact plan --measured` reads device and ceilings."""
    return {
        "kind": "kernels",
        "command": command_line("kernels_bench", sys.argv[1:]),
        "note": note,
        "device": place.device,
        "dtype": place.dtype,
        "measured": "best of rounds; floor_s is what FLOPs and bytes take at the ceilings; ratio is seconds / floor_s",
        "ceilings": {**msgspec.to_builtins(floors.device), "disk_bytes_per_s": floors.disk_bytes_per_s},
        "kernels": [{**msgspec.to_builtins(row), "ratio": row.ratio} for row in rows],
        **facts(),
    }


if __name__ == "__main__":
    main()
