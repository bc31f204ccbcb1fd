"""A first job file for people to go on with: what is known is filled in, what may be wanted next is there as a comment.

Takes values by section and key, gives the file's text. The keys, their order, an example of what is not filled in, and a few words
beside each are those of the fields that read the file (`schedc.io.conform.key`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import inspect

from schedc.frontend.job_file import JobFile

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMMENT_AT = 36
"""The column of comments."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A value with words of its own beside it; a section without a value is a comment."""

    value: object
    note: str
    """On one line."""


HEAD = "`schedc compile` makes a plan of this job, `schedc bounds` says what no plan can beat. docs/job-file.md has all keys."
HEAD_OF_TUNE = (
    "`schedc tune` says what to run there. What is not here is searched or has a default: docs/tune-file.md has all keys."
)


def first_job(title: str, given: Mapping[str, Any], kind: type = JobFile) -> str:
    """The text of the file; it ends with a newline.

    `given` has values by section and key, quantities as text with units, or as TOML has them; `kind` says whose keys the file has.
    """
    head = HEAD if kind is JobFile else HEAD_OF_TUNE
    return "\n".join([f"# {title}", f"# {head}", *_table("", inspect.type_info(kind), given)]) + "\n"


def _table(path: str, kind: Any, given: Any) -> Iterator[str]:
    """The lines of a table, then those of the tables in it. Of one that is not given, what it may have is a comment."""
    lines, tables = [], []
    table: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    why = given.note if isinstance(given, Noted) else ""
    for field in kind.fields:
        name, (inner, about) = field.encode_name, _described(field.type)
        value, note = table.get(name), about.get("note", "")
        if inner is not None:
            tables.append(_table(f"{path}.{name}".lstrip("."), inner, value))
            continue
        if isinstance(value, Noted):
            note, value = value.note, value.value
        if value is not None:
            lines.append(_with(f"{name} = {_toml(value)}", note))
        elif about.get("example"):
            lines.append(_with(f"# {name} = {about['example']}", note))
    if lines:
        heading = [f"[{path}]"] * bool(path)
        if path and not table:
            meaning = kind.cls.__doc__.partition("\n")[0].rstrip(".")
            heading = [_with(f"# [{path}]", why or meaning[0].lower() + meaning[1:])]
        yield from ("", *heading, *lines)
    for each in tables:
        yield from each


def _described(kind: Any) -> tuple[Any, Mapping[str, str]]:
    """The table that a field has, if it is one, and what else is said of the field."""
    about: Mapping[str, str] = {}
    if isinstance(kind, inspect.Metadata):
        kind, about = kind.type, kind.extra or {}
    members = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return next((member for member in members if isinstance(member, inspect.StructType)), None), about


def _toml(value: object) -> str:
    """The value as TOML has it."""
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _with(line: str, note: str) -> str:
    """The line with a comment."""
    return f"{line:<{_COMMENT_AT}}# {note}" if note else line
