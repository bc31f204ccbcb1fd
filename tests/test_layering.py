"""Imports go one way, between files and between folders, and heavy libraries stay in the folders that may use them."""

from __future__ import annotations

import ast

import pytest
from import_graph import PACKAGE, between_children, cycles, drawn, modules

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
    "processes": set(),
    "analysis": IR | {"compiled"},
    "verify": IR,
    "frontend": IR | QUESTIONS | {"files", "lower", "text"},
    "lower": IR | QUESTIONS,
    "text": IR | QUESTIONS | {"files"},
    "interop": IR | QUESTIONS | {"files", "text"},
    "architectures": {"files", "text"},
    "models": IR | QUESTIONS | FRONT,
    "solvers": IR | QUESTIONS | FRONT | {"models", "compiled"},
    "compile": COMPILER,
    "compile_layouts": COMPILER | {"compile"},
    "replan": COMPILER,
    "proposer": COMPILER | {"compiled", "processes", "replan"},
    "relayout": COMPILER | {"compile", "replan"},
    "assign": COMPILER | {"compile"},
    "api": COMPILER | {"architectures", "assign", "compile", "compile_layouts", "explain", "relayout"},
    "bench": COMPILER | {"compile", "compile_layouts", "processes"},
    "sweep": COMPILER | {"api", "compile_layouts", "processes"},
    "tune": COMPILER | {"architectures", "compile"},
    "cli": COMPILER
    | {
        "architectures",
        "assign",
        "relayout",
        "compile",
        "compile_layouts",
        "api",
        "bench",
        "sweep",
        "runtime",
        "tune",
        "report",
        "explain",
        "plot",
        "prepared",
    },
    "explain": COMPILER | {"compile", "compile_layouts"},
    "plot": IR | QUESTIONS | {"files"},
    "prepared": COMPILER | {"compile", "compiled"},
    "report": IR | QUESTIONS | {"text"},
    "runtime": IR | QUESTIONS | {"files", "lower", "text", "processes"},
}
"""What each folder or module of the package may import, besides itself and `FOR_ALL` (whose own modules are listed in full)."""
ONLY_IN = {
    "torch": {"runtime"},
    "matplotlib": {"plot"},
    "numba": {"compiled"},
    "ortools": {"models", "solvers"},
    "pulp": {"models", "solvers"},
    "highspy": {"models", "solvers"},
    "rich": {"cli"},
    "typer": {"cli"},
    "dask": {"sweep"},
    "distributed": {"sweep"},
    "pyarrow": {"plot", "sweep"},
}
FOLDERS = sorted({path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()})
MOST_FILES = 14
"""In one folder, with its `__init__`: a newcomer finds a file by its name."""


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


@pytest.mark.parametrize("folder", sorted({name.rpartition(".")[0] for name in modules()} - {""}))
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


def test_folders_are_not_crowded_and_say_what_they_are_for() -> None:
    folders: dict[str, int] = {}
    for path, _ in modules().values():
        folders[str(path.parent.relative_to(PACKAGE.parent))] = folders.get(str(path.parent.relative_to(PACKAGE.parent)), 0) + 1
    assert {folder: count for folder, count in folders.items() if count > MOST_FILES} == {}
    for folder in folders:
        first = (PACKAGE.parent / folder / "__init__.py").read_text(encoding="utf-8").partition("\n")[0]
        assert first.startswith('"""') and first.endswith((".", '."""')), (
            f"{folder}/__init__.py: say in one line what the folder is for"
        )


def test_a_public_class_has_a_name_of_its_own() -> None:
    """A reader who searches for it finds one thing."""
    places: dict[str, list[str]] = {}
    for name, (path, _) in modules().items():
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
