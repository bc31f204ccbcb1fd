"""How much of schedc a training job imports: every module, with its lines, and the sum.

Two fresh processes are the two ranks of a small plan with B and W apart. Each does what a training job does: it imports
`schedc.runtime`, reads the plan, loads it, runs one step over gloo and the optimizer's step. No links are injected, nothing is
recorded, no other plan is moved to, and there is one pipeline. Comments and empty lines count.

Run it as `python benchmarks/runtime_lines.py`. tests/runtime/test_imported_lines.py holds the limit.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

RANKS = 2


def main() -> None:
    """Print the table, one column for each rank."""
    from imported_lines import lines_of_a_step  # here: the ranks import this file as well
    from plans import plan_of
    from problems import make_problem
    from rank_processes import rank_processes

    from schedc.solvers.driver.registry import constructive
    from schedc.text.plan.plan_file import write_plan

    problem = make_problem(RANKS, 4, split_backward=True)
    with tempfile.TemporaryDirectory() as directory, rank_processes(RANKS, Path(directory)) as processes:
        path = Path(directory) / "plan.json"
        write_plan(plan_of(problem, constructive("greedy")(problem)), path)
        ranks = processes.run(lines_of_a_step, str(path))
    for lines in ranks:
        if not isinstance(lines, dict):
            raise SystemExit(f"a rank failed: {lines}")
    print(f"{'lines of code, comments and empty lines':48}" + "".join(f"{f'rank {rank}':>8}" for rank in range(RANKS)))
    for name in sorted(set().union(*ranks)):
        print(f"{name:48}" + "".join(f"{lines.get(name, '-'):>8}" for lines in ranks))
    print(f"{'sum':48}" + "".join(f"{sum(lines.values()):>8}" for lines in ranks))


if __name__ == "__main__":
    main()
