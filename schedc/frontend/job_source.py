"""Where a job comes from: a file, standard input, or a table that a program made; with the values that are set in it.

Takes any of these; gives the plain table, not yet checked, and what else reading a job needs: its place for errors, the directory
of relative paths, a name, and the digest that the plan keeps.

What `--set KEY=VALUE` gives takes the place of a value before the job is checked, so that it passes the same checks; what is wrong
with it is said of the option instead of the file. A key is the path of a value, as errors print it: `topology.between.latency`,
`topology.link[0].latency`. The document is the plain table that TOML or JSON gave.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from schedc.errors import InvalidInput
from schedc.frontend.cost_keys import ProfileSection
from schedc.io.conform import conform
from schedc.io.input_file import MOST_TEXT_BYTES, read_bytes
from schedc.io.location import Location, one_line, show
from schedc.io.tables import parse_toml
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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


S = TypeVar("S")

_OWN_KEYS = {"topology": ("path",), "profile": ProfileSection.__struct_encode_fields__}
"""The keys that a section has in the job itself where its `path` names a file; all others are keys of that file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSource:
    """A job that was read and not yet checked."""

    document: Mapping[str, Any]
    """The table, with the values that are set in it."""
    place: Location
    """Its place, for errors."""
    path: Path | None
    """Of its file; None: it has none."""
    directory: Path
    """What paths in it are relative to."""
    default_name: str
    """The job's name unless it has one."""
    content: bytes
    """Its text as it was read; a table's is JSON."""
    overrides: tuple[Override, ...]
    """All values that are set, in their order."""
    in_files: Mapping[str, tuple[Override, ...]]
    """Those of them that are set in the file that a section names, by the section, without its key."""

    @property
    def sha256(self) -> str:
        """Of the text; where values are set, followed by a line `--set KEY=VALUE` for each, the value as JSON."""
        lines = "".join(f"--set {override.canonical}\n" for override in self.overrides)
        return hashlib.sha256(self.content + lines.encode()).hexdigest()


def source_of_file(path: Path, overrides: Sequence[Override] = ()) -> JobSource:
    """The job in a file.

    Raises:
        InvalidInput: it cannot be read or is not TOML, or a value cannot be set.
    """
    content = read_bytes(path)
    # The directory's name if the file is a job.toml, as in every directory.
    parent = path.resolve().parent.name
    name = parent if path.name == "job.toml" and parent else path.stem
    return _source(parse_toml(content, str(path)), content, str(path), path, path.parent, one_line(name), overrides)


def source_of_standard_input(overrides: Sequence[Override] = ()) -> JobSource:
    """The job in what standard input has until its end; relative paths are relative to the current directory.

    Raises:
        InvalidInput: it cannot be read, is empty or is not TOML, or a value cannot be set.
    """
    label = "standard input"
    try:
        content = b"" if sys.stdin is None else sys.stdin.buffer.read(MOST_TEXT_BYTES + 1)
    except OSError as error:
        raise Location(label).refuse(f"nothing readable ({(error.strerror or str(error)).lower()})", "a job") from error
    if not content:
        raise Location(label).refuse("nothing", "a job (TOML)")
    if len(content) > MOST_TEXT_BYTES:
        raise InvalidInput(f"{label}: found more than {format_bytes(MOST_TEXT_BYTES)}, expected at most as much")
    return _source(parse_toml(content, label), content, label, None, Path(), "stdin", overrides)


def source_of_table(table: Mapping[str, Any], *, directory: Path, name: str, overrides: Sequence[Override] = ()) -> JobSource:
    """The job in a table of the same shape as the file, which a program made; tuples are lists.

    Raises:
        InvalidInput: a value cannot be set.
    """
    document: Any = plain(table)
    content = json.dumps(document, sort_keys=True, default=repr).encode()
    return _source(document, content, "the job", None, directory, one_line(name), overrides)


def with_set(source: JobSource, override: Override) -> JobSource:
    """The job with one more value set, in its own table."""
    document, place = with_overrides(source.document, [override], source.place)
    return replace(source, document=document, place=place, overrides=(*source.overrides, override))


def read_named(
    source: JobSource, section: str, name: str, struct: type[S], parse: Callable[[bytes, str], dict[str, Any]]
) -> tuple[S, Location]:
    """What a file says that the `path` of a section names, with the values that are set in it; and the file's place.

    Raises:
        InvalidInput: it cannot be read or used.
    """
    path, content = named_bytes(source, section, "path", name)
    document, place = with_overrides(parse(content, path), source.in_files.get(section, ()), Location(path))
    return conform(document, struct, place), place


def named_bytes(source: JobSource, section: str, key: str, name: str) -> tuple[str, bytes]:
    """Path and content of a file that a key of a section names so.

    Raises:
        InvalidInput: it cannot be read.
    """
    path = source.directory / name
    try:
        return str(path), read_bytes(path)
    except InvalidInput as error:
        raise (source.place / section / key).error(f"found {show(name)}; {error}") from error


def _source(
    document: Mapping[str, Any],
    content: bytes,
    label: str,
    path: Path | None,
    directory: Path,
    name: str,
    overrides: Sequence[Override],
) -> JobSource:
    place = Location(label)
    in_files: dict[str, tuple[Override, ...]] = {}
    for override in overrides:
        section, *others = override.keys
        table = document.get(section)
        names_file = isinstance(table, dict) and "path" in table
        if names_file and others and section in _OWN_KEYS and others[0] not in _OWN_KEYS[section]:
            in_files[section] = (*in_files.get(section, ()), override.inside())
        else:
            document, place = with_overrides(document, [override], place)
    return JobSource(
        document=document,
        place=place,
        path=path,
        directory=directory,
        default_name=name,
        content=content,
        overrides=tuple(overrides),
        in_files=in_files,
    )
