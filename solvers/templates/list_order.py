"""Orders of fused backwards in unit times: the list scheduler on a Problem whose F take one unit of time and BW two.

For templates that say what goes first instead of listing the order; the order is the template's, not the job's.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING

from schedc.ir.problem import Link, Problem
from schedc.solvers.kernel.list_scheduler import ListSchedule, list_schedule

if TYPE_CHECKING:
    from schedc.solvers.kernel.rule import Rule


def list_order(problem: Problem, rule: Rule) -> ListSchedule:
    """What the rule makes of the problem in unit times, with free links and all memory that it wants.

    Args:
        problem: only its stages' ranks, its paths and its microbatches matter.
        rule: what goes first, and how many microbatches each stage may have in flight.
    """
    stages = tuple(
        replace(stage, forward_ns=(1,), backward_input_ns=(1,), backward_weight_ns=(1,), backward_ns=(2,))
        for stage in problem.stages
    )
    links = tuple(Link(source=source, destination=destination) for source, destination in permutations(range(problem.ranks), 2))
    no_limits = (None,) * problem.ranks
    units = replace(problem, stages=stages, links=links, memory_limit_bytes=no_limits, split_backward=False, data_parallel=None)
    return list_schedule(units, rule)
