"""A relaxed CP-SAT model: ranks compute any number of ops at once, and only some ranks' memory limits count.

Takes a problem, its blocks and windows, bounds on the makespan in ticks, and those ranks. Precedences, links and trunks, microbatch
order and those limits stay, so every schedule of the problem is a solution, and where there is none, no schedule ends in time.
Where links are busy and ranks hold several chunks, this is settled long before the whole model is.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from schedc.models.cpsat.memory import add_memory_limit
from schedc.models.cpsat.model import add_microbatch_order, add_objective, add_precedences, add_transfers, variables_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from ortools.sat.python import cp_model

    from schedc.ir.problem import Problem
    from schedc.ir.resource import Resource
    from schedc.models.blocks import Blocks
    from schedc.models.start_windows import Windows


def build_relaxed(
    problem: Problem, blocks: Blocks, windows: Windows, lower: int, upper: int, ranks: Collection[int]
) -> cp_model.CpModel:
    """The model of all relaxed schedules with a makespan of at most `upper` ticks, for which the windows are.

    It minimizes the makespan, though what is asked is mostly whether there is any: CP-SAT refutes far faster with an objective.

    Raises:
        NothingAtMost: `upper` is below `lower` or what every schedule takes.
    """
    variables = variables_of(blocks, windows, lower, upper)
    model = variables.model
    shared: dict[Resource, list[cp_model.IntervalVar]] = defaultdict(list)
    add_precedences(variables)
    add_transfers(variables, windows, shared)
    add_microbatch_order(variables)
    for intervals in shared.values():
        model.add_no_overlap(intervals)
    limits = tuple(limit if rank in ranks else None for rank, limit in enumerate(problem.memory_limit_bytes))
    add_memory_limit(variables, replace(problem, memory_limit_bytes=limits), upper)
    add_objective(variables, problem, windows)
    return model
