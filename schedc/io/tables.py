"""TOML and JSON text made into plain tables, with one-line errors that say where it breaks off; JSON into structs, and values out.

`parse_toml` and `parse_json` take the bytes of a file and give the table at its top, whose keys are the business of
`schedc.io.conform`. The large files of programs, plans and traces, msgspec decodes itself; `conform` says what is wrong with one.
`pretty_json` takes what `msgspec.to_builtins` gives (dicts, lists, tuples, strings, numbers, booleans, None) and lays it out for
people who review it: short objects and lists on one line, long lists of numbers filled, the rest indented. The same value gives the
same text.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from schedc.io.location import Location, one_line, show

if TYPE_CHECKING:
    from collections.abc import Sequence

_AT = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


def parse_toml(content: bytes, file: str) -> dict[str, Any]:
    """The table at the top of a TOML file.

    Raises:
        InvalidInput: it is not UTF-8, or not TOML; the message has line and column.
    """
    text = _decode(content, file)
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise Location(file).refuse("values nested too deeply", "TOML") from error
    except ValueError as error:
        match = _AT.fullmatch(str(error))
        what, line, column = match.groups() if match else ("a number of too many digits", None, None)
        where = f"line {line}, column {column}: " if line else ("end of the file: " if match else "")
        expected = "TOML; this looks like JSON, and a job is TOML" if text.lstrip().startswith("{") else "TOML"
        raise Location(file).error(f"{where}found text that is not TOML ({one_line(what)}), expected {expected}") from error


def parse_json(content: bytes, file: str) -> dict[str, Any]:
    """The object at the top of a JSON file.

    Raises:
        InvalidInput: it is not UTF-8, not JSON (the message has line and column), not an object, or has a key twice.
    """
    text = _decode(content, file)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise Location(file).refuse(f"the key {json.dumps(twice)} twice in one object", "it once")
        return table

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except RecursionError as error:
        raise Location(file).refuse("values nested too deeply", "JSON") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise Location(file).error(f"{place}: found text that is not JSON ({error.msg}), expected JSON") from error
    except ValueError as error:
        raise Location(file).error("found text that is not JSON (a number of too many digits), expected JSON") from error
    if not isinstance(value, dict):
        raise Location(file).refuse("a list" if isinstance(value, list) else show(value), "a JSON object, { … }")
    return value


def _decode(content: bytes, file: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Location(file).error(
            f"line {line}: found a byte that is not UTF-8 (0x{content[error.start]:02x}), expected UTF-8"
        ) from error


S = TypeVar("S", bound=msgspec.Struct)


def decode(content: bytes, struct: type[S], location: Location) -> S:
    """The JSON text as an instance of the struct.

    Raises:
        InvalidInput: it is not UTF-8 or not JSON, or a key or value is not as the struct says.
    """
    try:
        content.decode()  # msgspec skips text that it does not need, and would accept anything there
        return msgspec.json.decode(content, type=struct)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        from schedc.io.conform import conform

        conform(parse_json(content, location.file), struct, location)
        raise location.refuse(f"text that is not JSON ({one_line(str(error))})", "JSON") from error


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
