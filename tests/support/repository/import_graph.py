"""Who imports whom in the package: every import of every file, also those inside functions and those for type checkers only.

Takes the tree that this file is in; gives modules by their import names, such as `schedc.ir.plan`, with their files and imports.
"""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PACKAGE = Path(__file__).resolve().parents[3] / "schedc"


@dataclass(frozen=True, slots=True)
class Import:
    """One import: its line, and the imported module, a module of the package where it is one."""

    line: int
    name: str


@cache
def files() -> dict[str, Path]:
    """The file of each module of the package, by import name; nothing is read."""
    return dict(sorted((_name(path), path) for path in _files(PACKAGE)))


@cache
def modules() -> dict[str, tuple[Path, tuple[Import, ...]]]:
    """The file and the imports of each module of the package, by import name."""
    return {name: (path, tuple(_imports(path, files()))) for name, path in files().items()}


def _files(folder: Path) -> Iterator[Path]:
    for directory, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(each for each in folders if each != "__pycache__")
        yield from (Path(directory, name) for name in names if name.endswith(".py"))


def _name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def _imports(path: Path, known: Mapping[str, Path]) -> Iterator[Import]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield Import(node.lineno, whole if whole in known else node.module or "")


def between_children(folder: str) -> dict[str, set[str]]:
    """Which of the folders and modules directly in the folder import which others of them, by their names in it.

    Args:
        folder: an import name, `schedc` or `schedc.runtime`. What its `__init__` imports does not count.
    """
    edges: dict[str, set[str]] = {}
    depth = folder.count(".") + 1
    for name, (_, imports) in modules().items():
        if name.startswith(f"{folder}."):
            child = name.split(".")[depth]
            inside = {each.name.split(".")[depth] for each in imports if each.name.startswith(f"{folder}.")}
            edges.setdefault(child, set()).update(inside - {child})
    return edges


def cycles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """The sets of nodes that reach each other, each sorted: strongly connected components of more than one node, or with a loop."""
    reached = {node: _reached(edges, node) for node in edges}
    found = {frozenset(other for other in reached[node] if node in reached.get(other, ())) for node in edges}
    return sorted(sorted(each) for each in found if each)


def _reached(edges: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for node in edges.get(waiting.pop(), ()):
            if node not in seen:
                seen.add(node)
                waiting.append(node)
    return seen


def drawn(edges: Mapping[str, set[str]]) -> str:
    """The graph as Mermaid's text, without the edges that follow from longer ways.

    Args:
        edges: without cycles.
    """
    lines = ["flowchart TD"]
    for node in sorted(edges):
        further = set().union(*(_reached(edges, other) for other in edges[node]))
        lines += [f"    {node} --> {other}" for other in sorted(edges[node] - further)]
    return "\n".join(lines)
