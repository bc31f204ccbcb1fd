"""Greedy with the microbatches sorted by their work, in a few ways: a Problem in, the best Schedule out.

It needs no compiled code, and is most of what the order in which microbatches enter can give: see `known_orders`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.solvers.common.microbatch_order import known_orders, order_is_open, permuted, renamed
from schedc.solvers.heuristics.greedy import greedy

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule


def sorted_microbatches(problem: Problem) -> Schedule:
    """The best of greedy's schedules for the known orders.

    Args:
        problem: microbatches that differ and may enter in any order; any placement, links and memory limits.

    Raises:
        Unsupported: the order is not open, or a rank's memory limit does not hold one microbatch.
    """
    if not order_is_open(problem):
        raise Unsupported("sorted needs microbatches that differ and may enter in any order (microbatch_order = auto)")
    schedules = (renamed(greedy(permuted(problem, order)), order) for order in known_orders(problem))
    return min(schedules, key=lambda schedule: simulate(problem, schedule).objective_ns(problem.objective))
