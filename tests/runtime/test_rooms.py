"""The rooms of the runtime have an order: each imports from those before it only, so that a job reads them one after the other."""

from __future__ import annotations

import ast
from pathlib import Path

RUNTIME = Path(__file__).parents[2] / "runtime"
ORDER = (
    "common",
    "transports",
    "measure",
    "replicas",
    "stage",
    "asynchronous",
    "execution",
    "profiling",
    "interference",
    "session",
    "training",
    "adapt",
    "frameworks",
    "emulation",
)
"""From what needs nothing to what needs the rest; a module of the runtime itself may import all of them."""


def test_rooms_import_from_those_before_them() -> None:
    assert {path.parent.name for path in RUNTIME.glob("*/*.py")} == set(ORDER)
    wrong = []
    for path in RUNTIME.glob("*/*.py"):
        allowed = ORDER[: ORDER.index(path.parent.name) + 1]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("schedc.runtime."):
                room = (node.module or "").split(".")[2]
                if room not in allowed:
                    wrong.append(f"{path.relative_to(RUNTIME)}:{node.lineno} imports {node.module}")
    assert wrong == []
