"""Plain values as TOML, which the standard library only reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


def toml_lines(fields: Mapping[str, Any]) -> str:
    """One line a field; None has no form in TOML and must not be there."""
    return "".join(f"{name} = {toml_value(value)}\n" for name, value in fields.items())


def toml_value(value: Any) -> str:
    """JSON's numbers, booleans, strings and lists are TOML's (but for DEL); a table is written on one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_value(name)} = {toml_value(each)}" for name, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
