"""One lower bound of a problem, and whether the solvers' models are the problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.analysis.bounds.lower_bounds import Bound, lower_bounds
from schedc.ir.problem import Objective
from schedc.models.blocks import TimeGrid, blocks_of

if TYPE_CHECKING:
    from schedc.ir.plan import BoundName
    from schedc.ir.problem import Problem
    from schedc.ir.resource import Resource


def bound_of(name: BoundName | str, problem: Problem) -> Bound:
    """The bound of that name."""
    return next(found for found in lower_bounds(problem) if found.name == name)


def models_are_exact(problem: Problem) -> bool:
    """Whether CP-SAT and MILP have this problem, a chain without collectives, and no relaxation of it.

    They do for the makespan where a trunk has one sender, and a link or trunk is busy with all of its messages or with none.
    """
    uses: dict[Resource, set[tuple[int, bool]]] = {}
    for move in blocks_of(problem, TimeGrid(1, True)).transfers:
        uses.setdefault(move.resource, set()).add((problem.rank_of(move.producer), move.occupancy > 0))
    alone = all(len(each) == 1 or not any(busy for _, busy in each) for each in uses.values())
    return problem.objective is Objective.MAKESPAN and alone
