"""HiGHS on the MILP beside CP-SAT, on 200 small random problems: how many optima are equal, and how long each takes.

The problems are those of the agreement tests: at most 3 ranks and 4 microbatches, every placement, slow links, every other one with
trunks, memory limits and collectives. Both start from the greedy schedule; CP-SAT uses two workers. Times are this machine's.

Run it as `python benchmarks/schedules/milp.py`.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from schedc.solvers.common.base import Limits, SolverStatus
from schedc.solvers.exact.cpsat import solve_cpsat
from schedc.solvers.exact.milp import solve_milp
from schedc.solvers.heuristics.greedy import Greedy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schedc.solvers.common.base import Solved

PROBLEMS = 200
SUPPORT = Path(__file__).parents[2] / "tests" / "support"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Both solvers on one problem."""

    placement: str
    milp_s: float
    cpsat_s: float
    proven: bool
    """Whether both proved their model's optimum."""
    equal: bool
    """Whether they proved the same one."""


def run(seed: int) -> Run:
    """Solve the problem of this number with both."""
    from inputs.small_problems import small_problem

    problem = small_problem(seed, shared_trunks=seed % 2 == 1)
    incumbent = Greedy(n_sub=1)(problem)
    seconds: list[float] = []
    solved: list[Solved] = []
    for solve in (solve_milp, solve_cpsat):
        begun = time.perf_counter()
        solved.append(solve(problem, incumbent, limits=Limits(workers=2)))
        seconds.append(time.perf_counter() - begun)
    return Run(
        placement=problem.placement,
        milp_s=seconds[0],
        cpsat_s=seconds[1],
        proven=all(one.status is SolverStatus.OPTIMAL for one in solved),
        equal=solved[0].lower_bound_ns == solved[1].lower_bound_ns,
    )


def add_row(table: Table, name: str, runs: Iterable[Run]) -> None:
    """One line of the table."""
    runs = list(runs)
    milp, cpsat = [each.milp_s for each in runs], [each.cpsat_s for each in runs]
    table.add_row(
        name,
        str(len(runs)),
        str(sum(each.proven for each in runs)),
        str(sum(each.proven and each.equal for each in runs)),
        *(f"{1000 * value:.0f}" for times in (milp, cpsat) for value in (statistics.median(times), max(times))),
    )


def main() -> None:
    """Solve all problems and print the table."""
    sys.path.insert(0, str(SUPPORT))
    runs = [run(seed) for seed in range(PROBLEMS)]
    table = Table("placement", title="MILP (HiGHS) and CP-SAT: optima proven by both, equal ones, median and longest times")
    for heading in ("problems", "proven", "equal", "MILP ms", "most", "CP-SAT ms", "most"):
        table.add_column(heading, justify="right")
    for placement in dict.fromkeys(each.placement for each in runs):
        add_row(table, placement, (each for each in runs if each.placement == placement))
    table.add_section()
    add_row(table, "all", runs)
    Console().print(table)


if __name__ == "__main__":
    main()
