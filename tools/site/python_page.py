"""The page of the Python API: what is public, with signatures and docstrings."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_MODULES: dict[str, tuple[str, ...]] = {
    "schedc": (),
    "schedc.runtime": (),
    "schedc.runtime.profiling": ("Model",),
    "schedc.runtime.measure.recording": ("Recorder", "write_trace"),
    "schedc.runtime.training.clipping": ("clip_grad_norm_",),
    "schedc.runtime.training.scaling": ("GradScaler",),
    "schedc.runtime.training.ties": ("tie_weights",),
    "schedc.runtime.training.checkpoint": ("load_checkpoint", "save_checkpoint"),
    "schedc.runtime.emulation.injected": ("inject_links",),
}
"""Modules with public names, and these names where they are not all of `__all__`."""
_NOT_IMPORTED = {
    "schedc.runtime.frameworks.torchtitan": "pipelining_fn_from",
    "schedc.runtime.frameworks.megatron": "forward_backward_func_from",
}
"""Modules that import what is not installed here, and their public function."""

_HEAD = """\
# Python

What is public, in the modules from which it is imported.
[The Python API](../api.md) and [the runtime](../runtime.md) explain it with examples.
"""
_WIDTH = 100
_SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Attributes|Example|Examples):$")


def public_names() -> dict[str, object]:
    """What is public, by its full name, in the order of the alphabet within each module."""
    return {
        f"{module}.{name}": getattr(import_module(module), name)
        for module, names in _MODULES.items()
        for name in sorted(names or import_module(module).__all__)
    }


def python_page() -> str:
    """The Markdown of the page."""
    parts = [_HEAD]
    for module in _MODULES:
        parts.append(f"## `{module}`\n\n{_as_markdown(inspect.getdoc(import_module(module)) or '')}\n")
        parts.extend(_entry(name, thing) for name, thing in public_names().items() if name.rpartition(".")[0] == module)
    for module, function in _NOT_IMPORTED.items():
        parts.append(_entry_of_source(module, function))
    return "\n".join(parts)


def _entry_of_source(module: str, function: str) -> str:
    """A module's one function from its source, as what it imports may not be installed."""
    location = find_spec(module)
    assert location is not None and location.origin is not None
    tree = ast.parse(Path(location.origin).read_text(encoding="utf-8"))
    (definition,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    arguments = [f"    {piece}," for piece in _split_arguments(definition.args)]
    call = "\n".join([f"{function}(", *arguments, f") -> {ast.unparse(definition.returns)}" if definition.returns else ")"])
    documented = _as_markdown(ast.get_docstring(definition) or "")
    return f"## `{module}`\n\n{ast.get_docstring(tree)}\n\n### `{function}`\n\n```python\n{call}\n```\n\n{documented}\n"


def _split_arguments(arguments: ast.arguments) -> list[str]:
    """Each argument with its annotation and default, and the star before those that have names alone."""
    without: list[ast.expr | None] = [None] * (len(arguments.args) - len(arguments.defaults))
    pieces = [*zip(arguments.args, [*without, *arguments.defaults], strict=True)]
    named = [*zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    shown = [f"{ast.unparse(one)}{f' = {ast.unparse(default)}' if default else ''}" for one, default in (*pieces, *named)]
    star = [f"*{ast.unparse(arguments.vararg)}"] if arguments.vararg else ["*"][: len(named)]
    rest = [f"**{ast.unparse(arguments.kwarg)}"] if arguments.kwarg else []
    return [*shown[: len(pieces)], *star, *shown[len(pieces) :], *rest]


def _entry(name: str, thing: Any) -> str:
    short = name.rpartition(".")[2]
    lines = [f"### `{short}`", ""]
    if inspect.isclass(thing):
        bases = [
            base.__name__ if base.__module__.startswith(("schedc", "builtins")) else f"{base.__module__}.{base.__name__}"
            for base in thing.__bases__
            if base is not object
        ]
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
