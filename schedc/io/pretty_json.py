"""JSON laid out for people who review it: short objects and lists on one line, long lists of numbers filled, the rest indented.

Takes what `msgspec.to_builtins` gives (dicts, lists, tuples, strings, numbers, booleans, None); the same value gives the same text.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

JsonValue = dict[str, "JsonValue"] | list["JsonValue"] | tuple["JsonValue", ...] | str | int | float | bool | None

WIDTH = 132
_MOST_ENTRIES = WIDTH // 3  # more entries never fit on one line, so trying is a waste


def pretty_json(value: JsonValue) -> str:
    """The value as text; its outermost object or list is always spread over lines. Ends with a newline."""
    return "".join(_spread(value, "")) + "\n"


def _spread(value: JsonValue, indent: str) -> list[str]:
    """The value over several lines, the first not indented and the others by `indent`."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        entries = [f"{inner}{_atom(key)}: {_fit(entry, inner, len(key) + 5)}" for key, entry in value.items()]
        return ["{\n", ",\n".join(entries), f"\n{indent}}}"]
    if isinstance(value, (list, tuple)) and value:
        rows = _filled(value, inner) or [_fit(entry, inner, 1) for entry in value]
        return ["[\n", ",\n".join(inner + row for row in rows), f"\n{indent}]"]
    return [_atom(value)]


def _fit(value: JsonValue, indent: str, beside: int) -> str:
    """The value on one line if it fits behind `beside` characters, else spread."""
    if not _too_many(value) and len(indent) + beside + len(line := _atom(value)) <= WIDTH:
        return line
    return "".join(_spread(value, indent))


def _too_many(value: JsonValue) -> bool:
    if isinstance(value, dict):
        return len(value) > _MOST_ENTRIES or any(map(_too_many, value.values()))
    return isinstance(value, (list, tuple)) and (len(value) > _MOST_ENTRIES or any(map(_too_many, value)))


def _filled(values: Sequence[JsonValue], indent: str) -> list[str] | None:
    """A list of numbers as lines that are as full as they can be; None for other lists."""
    if not all(value is None or isinstance(value, (int, float)) for value in values):
        return None
    rows, row = [], ""
    for value in values:
        atom = _atom(value)
        if row and len(indent) + len(row) + 2 + len(atom) >= WIDTH:
            rows.append(row)
            row = ""
        row = f"{row}, {atom}" if row else atom
    return [*rows, row]


def _atom(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
