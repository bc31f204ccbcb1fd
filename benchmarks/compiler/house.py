"""The house in figures: lines of source by folder, before and after, and the graph of imports between folders.

    python benchmarks/compiler/house.py lines [BEFORE]     lines of the package's Python files, now, and at a commit
    python benchmarks/compiler/house.py graph [FOLDER]     imports between the folders of the package, or of one, as Mermaid's text

Lines count as they are in the files, with docstrings and comments; tests, examples and benchmarks are left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from import_graph import PACKAGE, between_children, drawn

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
    now = _lines(None)
    then = _lines(before) if before else Counter()
    width = max(map(len, now | then))
    print(f"{'folder':<{width}}" + (f" {before:>8}" if before else "") + f" {'now':>8}")
    for folder in (*sorted(now | then), "all"):
        counts = [sum(each.values()) if folder == "all" else each[folder] for each in ((then, now) if before else (now,))]
        print(f"{folder:<{width}}" + "".join(f" {count:>8}" for count in counts))


def _lines(commit: str | None) -> Counter[str]:
    """Lines by folder: of the working tree, or of a commit."""
    command = [
        "git",
        "-C",
        str(ROOT),
        "grep",
        "--count",
        "",
        *([commit] if commit else []),
        "--",
        *(f"{name}/*.py" for name in SOURCES),
    ]
    counts: Counter[str] = Counter()
    for line in subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout.splitlines():
        name, _, count = line.removeprefix(f"{commit}:").rpartition(":")
        parts = Path(name).parent.parts
        counts["/".join(parts[:2] if parts[0] == "schedc" else parts[:1])] += int(count)
    return counts


if __name__ == "__main__":
    main()
