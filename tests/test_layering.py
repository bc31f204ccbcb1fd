"""Imports go one way, between files and between folders, and heavy libraries stay in the folders that may use them."""

from __future__ import annotations

import ast
import re

import pytest
from repository.import_graph import PACKAGE, between_children, cycles, drawn, files, modules

FOR_ALL = {"errors", "units", "spelling"}
IR, QUESTIONS = {"ir"}, {"analysis", "verify"}
FRONT = {"io", "formats", "lower", "frontend"}
COMPILER = IR | QUESTIONS | FRONT | {"compiled", "models", "solvers"}
MAY_SEE = {
    "__init__": set(),
    "__main__": {"cli"},
    "errors": set(),
    "spelling": set(),
    "units": {"errors"},
    "ir": set(),
    "io": set(),
    "compiled": {"io"},
    "analysis": IR | {"compiled"},
    "verify": IR,
    "lower": IR | QUESTIONS,
    "formats": IR | QUESTIONS | {"io"},
    "frontend": IR | QUESTIONS | {"io", "formats", "lower"},
    "costs": {"io", "formats"},
    "models": IR | QUESTIONS,
    "solvers": IR | QUESTIONS | {"io", "lower", "compiled", "models"},
    "compile": COMPILER,
    "adapt": COMPILER | {"compile"},
    "study": COMPILER | {"compile", "costs"},
    "api": COMPILER | {"compile", "adapt", "study", "costs"},
    "runtime": IR | QUESTIONS | {"io", "formats", "lower"},
    "view": COMPILER | {"compile", "adapt", "study", "costs", "runtime"},
    "cli": COMPILER | {"compile", "adapt", "study", "costs", "api", "runtime", "view"},
}
"""What each folder or module of the package may import, besides itself and `FOR_ALL` (whose own modules are listed in full)."""
ONLY_IN = {
    "torch": {"runtime"},
    "matplotlib": {"view"},
    "numba": {"compiled"},
    "ortools": {"models", "solvers"},
    "pulp": {"models", "solvers"},
    "highspy": {"models", "solvers"},
    "rich": {"cli", "view"},
    "sklearn": {"runtime"},
    "typer": {"cli", "view"},
    "dask": {"study"},
    "distributed": {"study"},
    "pyarrow": {"study", "view"},
}
FOLDERS = sorted({path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()})
ARCHITECTURE = PACKAGE.parent / "docs" / "architecture.md"


def _imports(folder: str) -> list[tuple[str, str]]:
    """(place, imported module) of every import of the folder or module."""
    inside = f"schedc.{folder}"
    return [
        (f"{path.relative_to(PACKAGE)}:{each.line}", each.name)
        for name, (path, imports) in modules().items()
        if name == inside or name.startswith(f"{inside}.")
        for each in imports
    ]


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


def test_no_file_imports_itself_by_way_of_others() -> None:
    names = set(modules())
    assert cycles({name: {each.name for each in imports} & names for name, (_, imports) in modules().items()}) == []


@pytest.mark.parametrize("folder", sorted({name.rpartition(".")[0] for name in files()} - {""}))
def test_folders_within_a_folder_import_one_way(folder: str) -> None:
    edges = between_children(folder)
    assert cycles(edges) == []
    assert drawn(edges).startswith("flowchart")


@pytest.mark.parametrize("folder", FOLDERS)
def test_libraries_stay_where_they_belong(folder: str) -> None:
    wrong = [
        f"{place} imports {name}" for place, name in _imports(folder) if folder not in ONLY_IN.get(name.split(".")[0], {folder})
    ]
    assert wrong == []


def test_a_folder_says_what_it_is_for() -> None:
    for folder in {path.parent for path in files().values()}:
        first = (folder / "__init__.py").read_text(encoding="utf-8").partition("\n")[0]
        assert first.startswith('"""') and first.endswith((".", '."""')), f"{folder}/__init__.py: say in one line what it is for"


def test_a_room_keeps_to_its_budget_of_lines() -> None:
    """Of its Python files, as they are; the rooms are the rows of the table in docs/architecture.md."""
    table = ARCHITECTURE.read_text(encoding="utf-8").partition("## The rooms")[2].partition("\n## ")[0]
    budgets = {room: int(most.replace(",", "")) for room, most in re.findall(r"^\| `(\w+)` \| .* \| ([\d,]+) \|$", table, re.M)}
    lines = dict.fromkeys(budgets, 0)
    for name, path in files().items():
        if path.parent != PACKAGE:
            lines[name.split(".")[1]] += len(path.read_text(encoding="utf-8").splitlines())
    assert lines.keys() == budgets.keys()
    over = {room: f"{count} lines, at most {budgets[room]}" for room, count in lines.items() if count > budgets[room]}
    assert over == {}, "take out what is no longer needed, or say in the table why the room needs more"


def test_a_public_class_has_a_name_of_its_own() -> None:
    """A reader who searches for it finds one thing."""
    places: dict[str, list[str]] = {}
    for name, path in files().items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_the_reader_of_imports_reads_all_kinds() -> None:
    found = {name.split(".")[0] for folder in ("runtime", "solvers") for _, name in _imports(folder)}
    assert {"schedc", "torch", "ortools"} <= found


def test_cycles_are_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d"}, "e": {"a"}}) == [["b", "c"], ["d"]]


def test_edges_that_follow_are_not_drawn() -> None:
    assert drawn({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == "flowchart TD\n    a --> b\n    b --> c"
