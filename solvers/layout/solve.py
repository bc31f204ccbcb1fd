"""The best schedule of one layout, if it has one below an objective: a start by the list scheduler, then CP-SAT.

Takes a layout's Problem; gives the best schedule of whole blocks and the bound that CP-SAT proves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.solvers.common.options import GreedyOptions
from schedc.solvers.exact.cpsat import solve_cpsat
from schedc.solvers.heuristics.greedy import greedy

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.solvers.common.base import Limits, Solved


def solve_below(problem: Problem, below_ns: int | None, bound_ns: int, limits: Limits) -> Solved:
    """The best schedule found, and a lower bound: with a final status, the least objective below `below_ns`, or `below_ns` if none.

    Args:
        problem: of the layout; a schedule exists.
        below_ns: only schedules with a smaller objective are sought; None: all.
        bound_ns: a lower bound that is known already.
        limits: when to stop, the seed and the workers.
    """
    start = greedy(problem, GreedyOptions(n_sub=1))
    return solve_cpsat(problem, start, limits=limits, known_bound_ns=bound_ns, below_ns=below_ns)
