"""Chimera: two pipelines in opposite directions over the same ranks, fused backwards. A Problem in, a Schedule out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.solvers.kernel.rule import Rule
from schedc.solvers.templates.list_order import list_order
from schedc.solvers.templates.shape import two_lines

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule


def chimera(problem: Problem) -> Schedule:
    """Chimera (Li and Hoefler, 2021, section 3.1): 1F1B in both directions at once, a rank's turns where the other one waits.

    p microbatches (p even) are the paper's unit, p/2 in each direction: the outermost ranks hold p/2 + 1 activations, the middle
    ones p. Of more microbatches every rank may hold p (p + 1 the middle one of an odd p), so that they join without a further
    bubble and the paper's ratio (p − 2) / (3m/2 + p − 2) holds for BW = 2F and any multiple m of p.

    Raises:
        Unsupported: the placement is not bidirectional.
    """
    in_flight: list[int | None] = [None] * len(problem.stages)
    for grid in two_lines(problem, "chimera"):
        for position, (stage,) in enumerate(grid.stages):
            # A rank's two caps add up to p: 1F1B's p − i in one direction, one less in the other.
            in_flight[stage] = max(1, grid.positions - position - (position < grid.positions // 2))
    count = len(problem.stages)
    rule = Rule(priority=((0, 1, 0),) * count, in_flight=tuple(in_flight), weight_lag=(0,) * count, oldest_first=True)
    return list_order(problem, rule).schedule
