"""Lines of the source broken on purpose: of how many does a test fail? The survivors are printed, each with what was changed.

Run it as `python benchmarks/compiler/mutants.py --room verify --mutants 10 --seed 0`; without `--room` it takes an hour or two. A
mutant is one operator, number or condition changed in a copy of the last commit; the quick tests of the room's folder run on it
until one fails. A survivor is no defect by itself, as only speed depends on some of them: somebody has to look at each.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from repository.exported_commit import exported

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = {
    "adapt": ("tests/adapt", "tests/cli"),
    "analysis": ("tests/analysis",),
    "cli": ("tests/cli",),
    "compile": ("tests/test_api.py", "tests/cli", "tests/solvers"),
    "compiled": ("tests/test_compiled.py", "tests/solvers"),
    "costs": ("tests/costs",),
    "formats": ("tests/formats", "tests/cli"),
    "frontend": ("tests/frontend", "tests/cli"),
    "io": ("tests/io", "tests/formats", "tests/cli"),
    "ir": ("tests/lower", "tests/verify", "tests/formats", "tests/analysis"),
    "lower": ("tests/lower", "tests/verify"),
    "models": ("tests/models", "tests/solvers"),
    "runtime": ("tests/runtime",),
    "solvers": ("tests/solvers",),
    "study": ("tests/study", "tests/cli"),
    "verify": ("tests/verify", "tests/test_mutations.py"),
    "view": ("tests/view", "tests/cli"),
}
"""The tests of each room, those that find most first."""
LIMIT_S = 900
"""Of the tests of one mutant, after which it counts as found: a loop that does not end is one that a person notices."""
OTHER: dict[type[ast.AST], Any] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
"""What an operator becomes."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one line of a file."""

    path: Path
    line: int
    before: str
    after: str
    text: str
    """The whole file with it."""


def main() -> None:
    """Make mutants, run tests on each, print which of them nothing noticed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--room", action="append", choices=sorted(TESTS), help="may be given several times; default: all")
    parser.add_argument("--mutants", type=int, default=10, help="of each room")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rooms = options.room or sorted(TESTS)
    found = made = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = exported("HEAD", Path(folder) / "tree")
        for room in rooms:
            killed = 0
            for mutant in mutants_of(tree, room, options.mutants, Random(f"{options.seed} {room}")):
                original = mutant.path.read_text(encoding="utf-8")
                mutant.path.write_text(mutant.text, encoding="utf-8")
                noticed = any(not _passes(tree, tests) for tests in TESTS[room])
                mutant.path.write_text(original, encoding="utf-8")
                killed += noticed
                if not noticed:
                    where = f"{mutant.path.relative_to(tree)}:{mutant.line}"
                    print(f"SURVIVED {where}: {mutant.before}  →  {mutant.after}", flush=True)
            print(f"{room:<10}{killed:4} of {options.mutants} noticed", flush=True)
            found, made = found + killed, made + options.mutants
    print(f"{found} of {made} noticed")


def mutants_of(tree: Path, room: str, count: int, random: Random) -> Iterator[Mutant]:
    """This many changes of the room's lines, each in another place, drawn over all places of all its files alike."""
    folder = tree / (room if room in {"models", "runtime", "solvers"} else f"schedc/{room}")
    places = [(path, index) for path in sorted(folder.rglob("*.py")) for index in range(len(_places(ast.parse(path.read_text()))))]
    for path, index in random.sample(places, count):
        module = ast.parse(path.read_text(encoding="utf-8"))
        node = _places(module)[index]
        statement, before = _statement_of(module, node), ast.unparse(node)
        _change(node)
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        assert statement.end_lineno is not None
        # Only the statement's own lines are written anew, so that the rest of the file keeps its text.
        indent = " " * statement.col_offset
        anew = "".join(f"{indent}{line}\n" for line in ast.unparse(statement).splitlines())
        lines[statement.lineno - 1 : statement.end_lineno] = [anew]
        line = getattr(node, "lineno", statement.lineno)
        yield Mutant(path, line, before, ast.unparse(node), "".join(lines))


def _places(module: ast.Module) -> list[ast.AST]:
    """What may be changed, in the order of the walk: operators and numbers in functions."""
    found: list[ast.AST] = []
    for function in ast.walk(module):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in (inner for statement in function.body for inner in ast.walk(statement)):
            is_number = isinstance(node, ast.Constant) and type(node.value) in (int, bool)
            is_operator = isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in OTHER
            is_comparison = isinstance(node, ast.Compare) and type(node.ops[0]) in OTHER
            is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
            if (is_number or is_operator or is_comparison or is_not) and node not in found:
                found.append(node)
    return found


def _change(node: ast.AST) -> None:
    if isinstance(node, ast.Compare):
        node.ops[0] = OTHER[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp | ast.BoolOp):
        node.op = OTHER[type(node.op)]()
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd() if isinstance(node.operand, ast.Constant) else ast.Not()
        node.operand = ast.UnaryOp(op=ast.Not(), operand=node.operand)


def _statement_of(module: ast.Module, sought: ast.AST) -> ast.stmt:
    """The innermost statement that has it."""
    return [each for each in ast.walk(module) if isinstance(each, ast.stmt) and sought in ast.walk(each)][-1]


def _passes(tree: Path, tests: str) -> bool:
    """Whether the tests find nothing wrong with the tree."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider", "-m", "not slow", tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "CI": "true"}
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode in (0, 5)


if __name__ == "__main__":
    main()
