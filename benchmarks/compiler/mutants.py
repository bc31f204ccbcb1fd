"""Lines of the source broken on purpose: of how many does a test fail? The survivors are printed, each with what was changed.

Run it as `python benchmarks/compiler/mutants.py --room verify --mutants 10 --seed 0`; without `--room` it takes an hour or two. A
mutant is one operator, number or condition changed in a copy of a commit; the quick tests of the room's folder run on it until one
fails. A survivor is no defect by itself, as only speed depends on some of them: somebody has to look at each.

`--contexts` spares most of the time: a data file of coverage.py, recorded on the same commit, whose contexts are names of tests. It
needs `source = schedc, models, solvers, runtime`, as what a link leads to is not below it; of a file that it lacks, the room's run.
Then those tests of the whole suite run that run the line, those first that run little; what no test runs has survived at once.
A line that only a compiled kernel runs, or whose answer is kept from an earlier test, has fewer of them than tests depend on it.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from random import Random
from time import monotonic
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
TEST_S = 60
"""Of one test that was chosen by `--contexts`, the same."""
LIBRARIES = ("numpy", "numba", "ortools.sat.python.cp_model", "highspy", "torch", "hypothesis", "typer", "rich", "pytest")
"""What tests load."""
OWN_PATHS = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "tests" / "support")]
PLUGIN = Path(__file__).parents[2] / "tests" / "support" / "suite" / "chosen_tests.py"
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
    lines: range
    """Of the statement's own code, without the statements in it."""
    before: str
    after: str
    text: str
    """The whole file with it."""


class Contexts:
    """Which tests run a line, by a data file of coverage.py."""

    def __init__(self, file: Path) -> None:
        """Read it.

        Args:
            file: its paths end like those of the tree; a context is the name of a test, whatever phase of it follows after a space.
        """
        self._lines: dict[str, dict[int, set[str]]] = {}
        self._sizes: Counter[str] = Counter()
        with closing(sqlite3.connect(file)) as data:
            tables = "line_bits join file on file.id = file_id join context on context.id = context_id"
            rows = data.execute(f"select path, context, numbits from {tables}")
            for path, context, bits in rows:
                test = re.sub(r" \((setup|call|teardown)\)$", "", context)
                of_file = self._lines.setdefault(_in_repository(path), {})
                if test:
                    numbers = [8 * at + bit for at, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1]
                    self._sizes[test] += len(numbers)
                    for number in numbers:
                        of_file.setdefault(number, set()).add(test)

    def knows(self, path: str) -> bool:
        """Whether any test ran anything of the file."""
        return path in self._lines

    def tests_of(self, path: str, lines: range) -> list[str]:
        """Those that run one of these lines of the file, file of tests by file, those first that run the fewest lines."""
        of_file = self._lines.get(path, {})
        found = {test for line in lines for test in of_file.get(line, ())}
        least: dict[str, int] = {}
        for test in found:
            file = test.partition("::")[0]
            least[file] = min(least.get(file, self._sizes[test]), self._sizes[test])
        return sorted(found, key=lambda test: (least[file := test.partition("::")[0]], file, self._sizes[test], test))


def _in_repository(path: str) -> str:
    """`/any/where/schedc/models/x.py` as `models/x.py`, which the link leads to; `schedc/ir/x.py`."""
    inside = re.sub(r"^.*?/(?=(schedc/|models/|solvers/|runtime/))", "", path)
    return re.sub(r"^schedc/(?=(models|solvers|runtime)/)", "", inside)


def main() -> None:
    """Make mutants, run tests on each, print which of them nothing noticed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--room", action="append", choices=sorted(TESTS), help="may be given several times; default: all")
    parser.add_argument("--mutants", type=int, default=10, help="of each room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commit", default="HEAD", help="whose files are broken")
    parser.add_argument("--contexts", type=Path, help="a data file of coverage.py: which tests run which line of this commit")
    parser.add_argument("--limit-s", type=float, default=90, help="of the tests of one mutant that --contexts names")
    options = parser.parse_args()
    rooms = options.room or sorted(TESTS)
    contexts = options.contexts and Contexts(options.contexts)
    for library in LIBRARIES if contexts else ():
        import_module(library)
    found = made = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = exported(options.commit, Path(folder) / "tree")
        for room in rooms:
            killed = 0
            for mutant in mutants_of(tree, room, options.mutants, Random(f"{options.seed} {room}")):
                original = mutant.path.read_text(encoding="utf-8")
                mutant.path.write_text(mutant.text, encoding="utf-8")
                path = str(mutant.path.relative_to(tree))
                if contexts and contexts.knows(path):
                    tests = contexts.tests_of(path, mutant.lines)
                    noticed, ran = _chosen_notice(tree, tests, options.limit_s)
                else:
                    noticed, ran = any(not _passes(tree, tests) for tests in TESTS[room]), "the tests of its room"
                mutant.path.write_text(original, encoding="utf-8")
                killed += noticed
                what = "noticed " if noticed else "SURVIVED"
                print(f"{what} {path}:{mutant.line}: {mutant.before}  →  {mutant.after} ({ran})", flush=True)
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
        body: list[ast.stmt] = getattr(statement, "body", None) or []
        last = body[0].lineno - 1 if body else statement.end_lineno
        own = range(statement.lineno, max(last, statement.lineno) + 1)
        yield Mutant(path, line, own, before, ast.unparse(node), "".join(lines))


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


def _chosen_notice(tree: Path, tests: list[str], limit_s: float) -> tuple[bool, str]:
    """Whether one of these tests fails on the tree, and how many of them there are.

    Some files of tests after the other, as only to collect all of them takes half a minute.

    Raises:
        RuntimeError: pytest could not run them.
    """
    if not tests:
        return False, "no test runs it"
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    begun_s = monotonic()
    for first, last in pairwise((0, *(count for count in (2, 8) if count < len(files)), len(files))):
        left_s = limit_s - (monotonic() - begun_s)
        failed = _failed(tree, files[first:last], tests, left_s) if left_s > 0 else ""
        if failed:
            return True, f"{len(tests)} tests run it, {failed}"
    return False, f"{len(tests)} tests run it, in {monotonic() - begun_s:.0f} s"


def _failed(tree: Path, files: list[str], tests: list[str], limit_s: float) -> str:
    """Which of the tests in these files fails on the tree; empty: none does within the limit.

    A copy of this process runs them, which has the libraries already: to load them takes longer than most tests.
    """
    chosen, output = tree / "chosen-tests.txt", tree / "output.txt"
    chosen.write_text("\n".join(tests), encoding="utf-8")
    shutil.copy(PLUGIN, tree)
    given = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-p", "chosen_tests", "-m", "not slow", f"--timeout={TEST_S}", *files]
    given += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of plugins that are there already
    environment = {"PYTHONPATH": str(tree), "CI": "true", "CHOSEN_TESTS": str(chosen), "CHOSEN_TESTS_S": str(limit_s)}
    child = get_context("fork").Process(target=_test, args=(tree, given, environment, output))
    child.start()
    child.join(LIMIT_S)
    if child.exitcode is None:
        child.kill()
        child.join()
        return "and one does not end"
    said = output.read_text(encoding="utf-8", errors="replace")
    if child.exitcode in (0, 5):
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", said, re.MULTILINE)
    if failed is None:
        raise RuntimeError(said)
    return f"fails {failed[1]}"


def _test(tree: Path, given: list[str], environment: dict[str, str], output: Path) -> None:
    """Run pytest on the tree, and end with its status."""
    with output.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.environ.update(environment)
    os.chdir(tree)
    for name in [name for name in sys.modules if name.partition(".")[0] == "repository"]:
        del sys.modules[name]  # this checkout's own
    sys.path[:] = [str(tree), *(path for path in sys.path if path not in OWN_PATHS)]
    import pytest

    status = pytest.main(given)
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
