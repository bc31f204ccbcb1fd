"""Imports go one way (the layers of the architecture), and each heavy library stays in the folders that may use it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).parents[1] / "schedc"
FOR_ALL = {"errors", "units", "spelling"}
IR, QUESTIONS = {"ir"}, {"analysis", "verify"}
FRONT = {"files", "frontend", "lower", "text", "interop"}
COMPILER = IR | QUESTIONS | FRONT | {"models", "solvers"}
MAY_SEE = {
    "__init__": set(),
    "__main__": {"cli"},
    "errors": set(),
    "spelling": set(),
    "units": {"errors"},
    "ir": set(),
    "files": set(),
    "compiled": {"files"},
    "analysis": IR | {"compiled"},
    "verify": IR,
    "frontend": IR | QUESTIONS | {"files", "lower", "text"},
    "lower": IR | QUESTIONS,
    "text": IR | QUESTIONS | {"files"},
    "interop": IR | QUESTIONS | {"files", "text"},
    "models": IR | QUESTIONS | FRONT,
    "solvers": IR | QUESTIONS | FRONT | {"models", "compiled"},
    "compile": COMPILER,
    "bench": COMPILER | {"compile"},
    "cli": COMPILER | {"compile", "bench", "runtime"},
    "runtime": IR | QUESTIONS | {"files", "text"},
}
"""What each folder or module of the package may import, besides itself and `FOR_ALL` (whose own modules are listed in full)."""
ONLY_IN = {
    "torch": {"runtime"},
    "numba": {"compiled"},
    "ortools": {"models", "solvers"},
    "pulp": {"models", "solvers"},
    "highspy": {"models", "solvers"},
    "rich": {"cli"},
    "typer": {"cli"},
}
FOLDERS = sorted({path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()})


def _files(folder: str) -> list[Path]:
    module = PACKAGE / f"{folder}.py"
    return [module] if module.exists() else sorted((PACKAGE / folder).rglob("*.py"))


@cache
def _imports(folder: str) -> tuple[tuple[str, str], ...]:
    """(place, imported module) of every import, also those inside functions and for type checkers only."""
    return tuple(_read_imports(folder))


def _read_imports(folder: str) -> Iterator[tuple[str, str]]:
    for path in _files(folder):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            place = f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import):
                yield from ((place, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{place}: relative import"
                if node.module == "schedc":
                    yield from ((place, f"schedc.{alias.name}") for alias in node.names if not alias.name.startswith("__"))
                else:
                    yield place, node.module or ""


def test_every_folder_has_its_place() -> None:
    assert set(FOLDERS) <= set(MAY_SEE), "give the new folder its place in MAY_SEE, and in the architecture"


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_go_one_way(folder: str) -> None:
    allowed = MAY_SEE[folder] | {folder} | (set() if folder in FOR_ALL else FOR_ALL)
    wrong = [
        f"{place} imports {name}"
        for place, name in _imports(folder)
        if name.startswith("schedc.") and name.split(".")[1] not in allowed
    ]
    assert wrong == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_libraries_stay_where_they_belong(folder: str) -> None:
    wrong = [
        f"{place} imports {name}" for place, name in _imports(folder) if folder not in ONLY_IN.get(name.split(".")[0], {folder})
    ]
    assert wrong == []


def test_the_reader_of_imports_reads_all_kinds() -> None:
    found = {name.split(".")[0] for _, name in _imports("runtime")} | {name.split(".")[0] for _, name in _imports("solvers")}
    assert {"schedc", "torch", "ortools"} <= found
