"""TOML and JSON text made into plain tables, with one-line errors that say where the text breaks off; and JSON into structs.

Takes the bytes of a file; gives the table at its top, whose keys are the business of `schedc.io.conform`. The large files of
programs, plans and traces, msgspec decodes itself; `conform` says what is wrong with one.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any, TypeVar

import msgspec

from schedc.io.location import Location, one_line, show

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
