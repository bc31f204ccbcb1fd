"""How much of schedc a training job imports: every module, with its lines; how many files and lines, of the runtime and of all.

Two fresh processes are the two ranks of a small plan with fused backwards, two more those of one with B and W apart. Each does what
a training job does: it imports `schedc.runtime`, reads the plan, loads it, runs one step over gloo and the optimizer's step.
Nothing is recorded, no links are injected, no other plan is moved to, and there is one pipeline. Comments and empty lines count.

Run it as `python benchmarks/runtime/imported_lines.py`. tests/runtime/test_step_imports.py holds the list of packages.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

RANKS = 2


def main() -> None:
    """Print the table, one column for each rank."""
    from inputs.plans import plan_of
    from inputs.problems import make_problem
    from runs.imported_lines import lines_of_a_step  # here: the ranks import this file as well
    from runs.processes import rank_processes

    from schedc.formats.plan.plan_file import write_plan
    from schedc.solvers.driver.registry import constructive

    columns: list[dict[str, int]] = []
    for split in (False, True):
        problem = make_problem(RANKS, 4, split_backward=split)
        with tempfile.TemporaryDirectory() as directory, rank_processes(RANKS, Path(directory)) as processes:
            path = Path(directory) / "plan.json"
            write_plan(plan_of(problem, constructive("greedy")(problem)), path)
            columns += processes.run(lines_of_a_step, str(path))
    for lines in columns:
        if not isinstance(lines, dict):
            raise SystemExit(f"a rank failed: {lines}")
    print(f"{'lines, with comments and empty ones':42}{'fused, rank 0':>16}{'rank 1':>8}{'split, rank 0':>16}{'rank 1':>8}")
    for name in sorted(set().union(*columns)):
        _print_row(name, [lines.get(name, "-") for lines in columns])
    for what, of in (("the runtime", "schedc.runtime"), ("all", "schedc")):
        counted = [[lines[name] for name in lines if name == of or name.startswith(f"{of}.")] for lines in columns]
        _print_row(f"files of {what}", list(map(len, counted)))
        _print_row(f"lines of {what}", list(map(sum, counted)))


def _print_row(name: str, cells: Sequence[object]) -> None:
    print(f"{name:42}{cells[0]:>16}{cells[1]:>8}{cells[2]:>16}{cells[3]:>8}")


if __name__ == "__main__":
    main()
