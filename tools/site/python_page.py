"""The page of the Python API: what `schedc` and `schedc.runtime` export, with signatures and docstrings."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import schedc
import schedc.runtime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

__all__ = ["public_names", "python_page"]

_HEAD = """\
# Python

What `import schedc` and `import schedc.runtime` offer.
[The Python API](../api.md) and [the runtime](../runtime.md) explain it with examples.
"""
_WIDTH = 100
_SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Attributes|Example|Examples):$")


def public_names() -> dict[str, object]:
    """What is public, by its full name, in the order of the alphabet within each module."""
    return {f"{module.__name__}.{name}": getattr(module, name) for module in _modules() for name in sorted(module.__all__)}


def python_page() -> str:
    """The Markdown of the page."""
    parts = [_HEAD]
    for module in _modules():
        parts.append(f"## `{module.__name__}`\n\n{_as_markdown(inspect.getdoc(module) or '')}\n")
        parts.extend(_entry(name, thing) for name, thing in public_names().items() if name.rpartition(".")[0] == module.__name__)
    return "\n".join(parts)


def _modules() -> tuple[ModuleType, ...]:
    return (schedc, schedc.runtime)


def _entry(name: str, thing: Any) -> str:
    short = name.rpartition(".")[2]
    lines = [f"### `{short}`", ""]
    if inspect.isclass(thing):
        bases = [base.__name__ for base in thing.__bases__ if base is not object]
        lines += ["```python", f"class {short}{'(' + ', '.join(bases) + ')' if bases else ''}", "```", ""]
    else:
        lines += ["```python", _signature(short, thing), "```", ""]
    lines += [_as_markdown(_own_docstring(thing)), ""]
    if inspect.isclass(thing):
        lines += list(_members(thing))
    return "\n".join(lines)


def _own_docstring(thing: Any) -> str:
    """The docstring that is written, not one that `dataclass` makes of the fields."""
    text = inspect.getdoc(thing) or ""
    return "" if inspect.isclass(thing) and text.startswith(f"{thing.__name__}(") else text


def _members(thing: type) -> Iterator[str]:
    """Fields, properties and methods of a type, without those of its bases elsewhere."""
    if is_dataclass(thing):
        meanings = _meanings_of_fields(thing)
        for field in fields(thing):
            if not field.name.startswith("_"):
                meaning = " ".join(meanings.get(field.name, "").split())
                yield f"- `{field.name}: {field.type}`{': ' * bool(meaning)}{meaning}"
        yield ""
    for name, member in vars(thing).items():
        if name.startswith("_"):
            continue
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if inspect.isfunction(function):
            shown = name if isinstance(member, property) else _signature(name, function)
            yield f"#### `{thing.__name__}.{name}`\n\n```python\n{shown}\n```\n\n{_as_markdown(inspect.getdoc(member) or '')}\n"


def _meanings_of_fields(thing: type) -> dict[str, str]:
    """What the text after each field in the source says of it."""
    (definition,) = ast.parse(inspect.cleandoc(inspect.getsource(thing))).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: text.value.value
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def _signature(name: str, function: Any) -> str:
    """The call, in lines of its own for each parameter where it is long."""
    signature = inspect.signature(function)
    pieces: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in pieces and not any(piece.startswith("*") for piece in pieces):
            pieces.append("*")
        pieces.append(_unquoted(str(parameter), parameter.annotation))
    end = "" if signature.return_annotation is signature.empty else f" -> {signature.return_annotation}"
    line = f"{name}({', '.join(pieces)}){end}"
    return line if len(line) <= _WIDTH else "\n".join([f"{name}(", *(f"    {piece}," for piece in pieces), f"){end}"])


def _unquoted(parameter: str, annotation: object) -> str:
    """A parameter with its annotation as in the source, which is text here."""
    return parameter.replace(repr(annotation), annotation, 1) if isinstance(annotation, str) else parameter


def _as_markdown(docstring: str) -> str:
    """A docstring in Google's style as Markdown: what follows `Args:` and the like becomes a list."""
    lines: list[str] = []
    in_list = False
    for line in docstring.splitlines():
        section = _SECTION.match(line)
        if section:
            in_list = True
            lines += ["", f"**{section[1]}**", ""]
        elif in_list and line.startswith("    ") and not line.startswith("     "):
            named = re.match(r"    (\*{0,2}\w+): (.*)", line)
            lines.append(
                f"- `{named[1]}`: {named[2]}" if named else f"- {line.strip()}" if lines[-1] == "" else f"  {line.strip()}"
            )
        elif in_list and line.startswith("     "):
            lines.append(f"  {line.strip()}")
        else:
            in_list = in_list and not line
            lines.append(line)
    return "\n".join(lines)
