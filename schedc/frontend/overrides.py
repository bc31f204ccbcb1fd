"""Values that take the place of those in a job file, before it is checked: what `--set KEY=VALUE` gives.

A key is the path of a value, as errors print it: `topology.between.latency`, `topology.link[0].latency`. The document is the plain
table that TOML or JSON gave. So a value that is set passes the same checks as one in the file; what is wrong with it is said of the
option instead of the file.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

from schedc.io.location import Location, show

if TYPE_CHECKING:
    from schedc.errors import InvalidInput

_PART = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN = 120
"""Characters of an option in a message."""
_INDEX = re.compile(r"\[(\d{1,9})\]", re.ASCII)


@dataclass(frozen=True, slots=True)
class Override:
    """One value that is set."""

    keys: tuple[str, ...]
    """The path; the number of a list's item is text here."""
    value: object
    """As TOML would give it."""
    source: str
    """Who sets it, for errors: `--set pipeline.ranks=4`."""

    @property
    def canonical(self) -> str:
        """`pipeline.ranks=4`, the value as JSON: the same text for the same path and value."""
        return f"{'.'.join(self.keys)}={json.dumps(self.value, sort_keys=True, default=str)}"

    def inside(self) -> Override:
        """The same within the table of its first key."""
        return replace(self, keys=self.keys[1:])

    def refuse(self, found: str, expected: str) -> InvalidInput:
        """The error about it, for the caller to raise."""
        return Location(self.source).refuse(found, expected)


def option_override(text: str) -> Override:
    """What `--set TEXT` sets; the value is TOML where it is, else text, as shells remove quotes.

    Raises:
        InvalidInput: it is not `KEY=VALUE`.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise Location("--set").refuse(show(text), "KEY=VALUE, as in --set pipeline.microbatches=32")
    source = f"--set {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}"
    return Override(_keys(key, source), _value(value.strip()), source)


def python_override(key: str, value: object) -> Override:
    """What a caller in Python sets: a value as `tomllib` would give it; tuples are lists.

    Raises:
        InvalidInput: the key is no path.
    """
    source = f"set {key} to {show(value)}"
    return Override(_keys(key, source), plain(value), source)


def plain(value: object) -> object:
    """The value as a file would give it: lists for tuples, dicts for other mappings, text for keys, int for numpy's."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


def with_overrides(document: Mapping[str, Any], overrides: Iterable[Override], place: Location) -> tuple[dict[str, Any], Location]:
    """The document with the values set, in their order, and its place, whose errors know who set what.

    Tables that do not exist are made. The document that is passed in stays as it is.

    Raises:
        InvalidInput: a key leads through something that is neither a table nor a list, or to an item that the list lacks.
    """
    made, known = dict(document), [*place.overridden]
    for override in overrides:
        path, made = _placed(made, override)
        known.append((path, override.source))
    return made, replace(place, overridden=tuple(known))


def _placed(document: dict[str, Any], override: Override) -> tuple[tuple[str | int, ...], dict[str, Any]]:
    """The path of the first thing that was made or replaced, and the document with it."""
    changed: Any = dict(document)
    inner: Any = changed
    path = Location("")
    for depth, key in enumerate(override.keys):
        index: str | int = key
        if isinstance(inner, list):
            if not (key.isascii() and key.isdigit() and int(key) < len(inner)):
                items = f"one of its items 0 to {len(inner) - 1}" if inner else "the list as a whole, as it is empty"
                raise override.refuse(f"no item {key} of the list {path.path}", items)
            index = int(key)
        elif not isinstance(inner, dict):
            raise override.refuse(f"{show(inner)} at {path.path}", "a table or a list there, or set that key as a whole")
        path /= index
        rest = override.keys[depth + 1 :]
        if not rest or (isinstance(inner, dict) and index not in inner):
            inner[index] = _table(rest, override.value)
            break
        inner[index] = inner = copy(inner[index])
    return path.keys, changed


def _table(keys: Sequence[str], value: object) -> object:
    """Tables around the value, one for each key."""
    return {keys[0]: _table(keys[1:], value)} if keys else value


def _keys(key: str, source: str) -> tuple[str, ...]:
    keys = tuple(_INDEX.sub(r".\1", key.strip()).split("."))
    if not all(_PART.fullmatch(part) for part in keys):
        raise Location(source).refuse(f"the key {show(key)}", "the path of a key, as in topology.between.latency")
    return keys


def _value(text: str) -> object:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # no TOML, or a number of too many digits, or nested too deeply
        return text
    return parsed["value"] if len(parsed) == 1 else text  # a line break in the text can begin another key
