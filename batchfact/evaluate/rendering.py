"""Tables as Markdown, as CSV with one value a line, and an evaluation as JSON.

Tables flow in, text flows out.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import msgspec

from batchfact.evaluate.evaluation import Evaluation
from batchfact.evaluate.layout import Failed, Table, Value
from batchfact.evaluate.metrics import Absent, Measured, Spread

NO_VALUE = "-"
FAILED = "failed"


def shown(value: Value) -> str:
    """A value as people read it; a metric that does not exist is a dash, whose reason stands below the table."""
    match value:
        case None:
            return ""
        case Absent():
            return NO_VALUE
        case Failed():
            return FAILED
        case Measured(value=number, low=low, high=high):
            bounds = f" [{100 * low:.1f}, {100 * high:.1f}]" if low is not None and high is not None else ""
            return f"{100 * number:.2f}{bounds}"
        case Spread(mean=mean, deviation=deviation):
            return f"{100 * mean:.2f}" + (f" ± {100 * deviation:.2f}" if deviation is not None else "")
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.3g}"
    return str(value)


def keys_of(table: Table) -> tuple[str, ...]:
    """The headings of the lines' keys that any line has."""
    names = {"system": "system", "dataset": "data set", "group": table.group}
    return tuple(name for field, name in names.items() if any(getattr(line, field) for line in table.lines))


def cells_of(table: Table) -> list[list[str]]:
    """The lines as texts: keys, then values. Columns where no line has a value stay."""
    fields = [field for field in ("system", "dataset", "group") if any(getattr(line, field) for line in table.lines)]
    return [
        [*(str(getattr(line, field)) for field in fields), *(shown(value) for value in line.values)]
        for line in table.lines
    ]


def reasons_of(table: Table) -> tuple[str, ...]:
    """For each column with a dash, why."""
    found = {
        f"No {column}: {value.reason}.": None
        for line in table.lines
        for column, value in zip(table.columns, line.values, strict=True)
        if isinstance(value, Absent)
    }
    return tuple(found)


def markdown(tables: Sequence[Table], notes: Sequence[str] = ()) -> str:
    parts = []
    for table in tables:
        keys = keys_of(table)
        head = [*keys, *table.columns]
        rule = ["---"] * len(keys) + ["---:"] * len(table.columns)
        lines = [_markdown_line(each) for each in (head, rule, *cells_of(table))]
        below = [*reasons_of(table), *table.notes]
        parts.append("\n".join([f"## {table.title}", "", *lines, *(f"\n{note}" for note in below)]))
    return "\n\n".join([*parts, *notes]) + "\n"


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def tidy_csv(tables: Sequence[Table]) -> str:
    """One value a line, for other programs: metrics in [0, 1], with the reason where there is none."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["table", "system", "dataset", "group", "column", "value", "low", "high", "deviation", "absent"])
    for table in tables:
        for line in table.lines:
            for column, value in zip(table.columns, line.values, strict=True):
                about = [table.title, line.system, line.dataset, line.group, column]
                writer.writerow([*about, *_plain(value)])
    return out.getvalue()


def _plain(value: Value) -> tuple[object, ...]:
    match value:
        case Absent(reason=reason):
            return "", "", "", "", reason
        case Failed(reason=reason):
            return "", "", "", "", f"{FAILED}: {reason}"
        case Measured(value=number, low=low, high=high):
            return number, _or_empty(low), _or_empty(high), "", ""
        case Spread(mean=mean, deviation=deviation):
            return mean, "", "", _or_empty(deviation), ""
    return _or_empty(value), "", "", "", ""


def _or_empty(value: object) -> object:
    return "" if value is None else value


def as_json(evaluation: Evaluation) -> str:
    return msgspec.json.format(msgspec.json.encode(evaluation)).decode()
