"""The house in figures: lines and statements of source by room, before and after, and the graph of imports between rooms.

    python benchmarks/compiler/house.py lines [BEFORE]     lines and statements of the package's Python files, now, and at a commit
    python benchmarks/compiler/house.py graph [FOLDER]     imports between the folders of the package, or of one, as Mermaid's text

Lines count as they are in the files, with docstrings and comments; statements without docstrings. Tests, examples and benchmarks
are left out.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from repository.import_graph import PACKAGE, between_children, drawn

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = PACKAGE.parent
FOR_ALL = {"errors", "units", "spelling"}
SOURCES = ("schedc", "models", "solvers", "runtime")


def main() -> None:
    """Print lines or the graph."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("lines", "graph"))
    parser.add_argument("which", nargs="?", help="of lines: a commit to compare with; of graph: a folder, as in runtime")
    options = parser.parse_args()
    if options.what == "graph":
        folder = f"schedc.{options.which}" if options.which else "schedc"
        edges = {name: others - FOR_ALL for name, others in between_children(folder).items() if name not in FOR_ALL}
        print(drawn(edges))
    else:
        _print_lines(options.which)


def _print_lines(before: str | None) -> None:
    trees = [before, None] if before else [None]
    counts = [_counts(tree) for tree in trees]
    rooms = sorted(set().union(*counts))
    width = max(map(len, rooms))
    heads = [f"{what} {tree or 'now'}" for what in ("lines", "statements") for tree in trees]
    print(" ".join([f"{'room':<{width}}", *(f"{head:>20}" for head in heads)]))
    for room in (*rooms, "all"):
        cells = [sum(pair[which] for name, pair in each.items() if room in (name, "all")) for which in (0, 1) for each in counts]
        print(" ".join([f"{room:<{width}}", *(f"{cell:>20,}" for cell in cells)]))


def _counts(commit: str | None) -> dict[str, tuple[int, int]]:
    """Lines, and statements without docstrings, by room: of the working tree, or of a commit."""
    counts: dict[str, tuple[int, int]] = {}
    for name, text in _sources(commit):
        parts = Path(name).parent.parts
        room = "/".join(parts[:2] if parts[0] == "schedc" else parts[:1])
        lines, statements = counts.get(room, (0, 0))
        counts[room] = lines + len(text.splitlines()), statements + _statements(text)
    return counts


def _statements(text: str) -> int:
    """How many statements there are; a constant that stands alone is a docstring."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    return sum(not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in nodes)


def _sources(commit: str | None) -> Iterator[tuple[str, str]]:
    """The package's Python files by name, each with its text."""
    listed = ["ls-files", "--", *SOURCES] if commit is None else ["ls-tree", "-r", "--name-only", commit, "--", *SOURCES]
    for name in _git(*listed).splitlines():
        if name.endswith(".py"):
            yield name, (ROOT / name).read_text(encoding="utf-8") if commit is None else _git("show", f"{commit}:{name}")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout


if __name__ == "__main__":
    main()
