"""Where a job comes from: a file, standard input, or a table that a program made; with the values that are set in it.

Takes any of these; gives the plain table, not yet checked, and what else reading a job needs: its place for errors, the directory
of relative paths, a name, and the digest that the plan keeps.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from schedc.errors import InvalidInput
from schedc.frontend.job_file import ProfileSection
from schedc.frontend.overrides import Override, plain, with_overrides
from schedc.io.conform import conform
from schedc.io.input_file import MOST_TEXT_BYTES, read_bytes
from schedc.io.location import Location, one_line, show
from schedc.io.tables import parse_toml
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


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
