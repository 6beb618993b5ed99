"""A small labelled data set of invented notes, and recipes for tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

TOWNS = ("Arden", "Bexley", "Corby", "Dover", "Epsom", "Filey", "Goole", "Hitchin", "Ilkley", "Jarrow")
GOODS = ("lamps", "chairs", "kettles", "books", "clocks", "bowls", "coats", "drums", "eggs", "flags")


def document(number: int) -> str:
    """Six sentences that differ from document to document."""
    town, other, goods = TOWNS[number % 10], TOWNS[(number + 3) % 10], GOODS[(number * 7 + number // 10) % 10]
    return (
        f"The shop in {town} sold {number + 3} {goods} on Monday. "
        f"Mrs {town}son, who owns it, said that the {goods} were the best of the year {1950 + number}. "
        f"In the afternoon, {number + 40} visitors came from {other} to see her shelf number {number + 7}. "
        f"The mayor of {town} was not there, because the road to {other} was closed for {number + 2} hours. "
        f"More {goods} will arrive in March, after the harbour of {other} is open again for ship {number + 100}. "
        f"The owner has asked {number + 5} people to help with counting the {goods} before Friday."
    )


def pairs(number: int) -> list[dict[str, Any]]:
    """A consistent and an inconsistent summary of a document, each of two sentences."""
    town, goods = TOWNS[number % 10], GOODS[(number * 7 + number // 10) % 10]
    right = f"A shop in {town} sold {number + 3} {goods}. Visitors came in the afternoon."
    wrong = f"A shop in {town} sold {number + 3} {goods}. The mayor of {town} came too."
    return [
        {"id": f"{number}-a", "document": document(number), "summary": right, "label": 1, "domain": "notes"},
        {"id": f"{number}-b", "document": document(number), "summary": wrong, "label": 0, "domain": "notes"},
    ]


def write_labelled(path: Path, numbers: range, **columns: Any) -> Path:
    """The pairs of some documents as a file; `columns` are further ones, the same for all rows."""
    rows = [row | columns for number in numbers for row in pairs(number)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def write_recipe(path: Path, base: Path, extra: str = "", *, data: str = "") -> Path:
    """A recipe for a few quick steps; `extra` and `data` are more of its TOML."""
    data = data or '[[data]]\nname = "notes"\npath = "notes.parquet"\nunits = ["summary", "window"]\nlicence = "CC0"\n'
    path.write_text(
        f'name = "tiny-scorer"\nbase = "{base}"\nprompts = "short"\nprompt_style = "plain"\n\n{data}\n{extra}', "utf-8"
    )
    return path


QUICK = """
[build]
test_share = 0.3

[trees]
max_tokens = 900
document_words = [30, 60]
summary_share = 0.25
max_synthetic = 2

[train]
max_steps = 4
learning_rate = 0.01
trees_a_step = 2
bf16 = false
eval_steps = 2
log_steps = 1

[train.lora]
rank = 4
alpha = 8

[card]
limits = ["It knows shops."]
"""
