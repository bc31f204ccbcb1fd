"""What is wrong with a plan file that could not be decoded, in one line for people: place, what was found, what was expected."""

from __future__ import annotations

import json
import re

import msgspec
from msgspec import inspect

from schedc.spelling import nearest
from schedc.text.plan.plan_structs import PRINTABLE, PlanFile

__all__ = ["explain", "shown", "without_regex"]

_MESSAGE = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>\$.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


def explain(error: Exception, content: bytes) -> str:
    """What `error`, raised while `content` was decoded as a plan file, means: `$.ranks[3].rank: found "x", expected int`."""
    if isinstance(error, RecursionError):
        return "$: found objects within objects without end, expected a plan"
    if not isinstance(error, msgspec.ValidationError):
        return f"$: {error}; expected a whole JSON text"
    said = without_regex(error)
    match = _MESSAGE.fullmatch(said)
    what, path = (match["what"], match["path"] or "$") if match else (said, "$")
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", what):
        return f"{path}: found the unknown key {shown(unknown[1])}{_nearest(unknown[1], path)}"
    if missing := re.fullmatch(r"Object missing required field `(.*)`", what):
        return f"{path}: found no key {shown(missing[1])}, which is required"
    if path == "$" and what.startswith("Expected `object`"):
        return f"$: {_found(content, path)}expected a plan, which is a JSON object"
    if expected := re.fullmatch(r"Expected (.*?)(, got .*)?", what):
        return f"{path}: {_found(content, path)}expected {expected[1].replace('`', '')}"
    return f"{path}: {_found(content, path)}{what[0].lower()}{what[1:]}"


def without_regex(error: Exception) -> str:
    """What the decoder says, with words for the regular expression of printable text."""
    return str(error).replace(f"`str` matching regex {PRINTABLE!r}", "printable text on one line")


def shown(value: object) -> str:
    """A value as JSON, cut to what a line of text can take."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _found(content: bytes, path: str) -> str:
    """`found "x", `, what stands at the path; nothing if something else in the file cannot be read as JSON at all."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return ""
    for key, index in _STEP.findall(path):
        value = value[key] if key else value[int(index)]
    return f"found {shown(value)}, "


def _nearest(unknown: str, path: str) -> str:
    """`; did you mean …?`, or all the keys that the object at the path may have."""
    known = _keys_at(path)
    return nearest(unknown, known) or f", expected {', '.join(known)}"


def _keys_at(path: str) -> list[str]:
    kind: inspect.Type = inspect.type_info(PlanFile)
    for key, _ in _STEP.findall(path):
        if key and isinstance(kind, inspect.StructType):
            kind = next(field.type for field in kind.fields if field.encode_name == key)
        elif isinstance(kind, inspect.VarTupleType):
            kind = kind.item_type
        if isinstance(kind, inspect.UnionType):
            kind = next(choice for choice in kind.types if not isinstance(choice, inspect.NoneType))
    return [field.encode_name for field in kind.fields] if isinstance(kind, inspect.StructType) else []
