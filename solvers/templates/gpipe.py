"""GPipe: all forwards, then all backwards, fused. A Problem in, a Schedule out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir.ops import Kind, Op
from schedc.ir.schedule import Schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


def gpipe(problem: Problem) -> Schedule:
    """GPipe (Huang et al., 2019): all forwards, then all backwards; every rank holds m activations of each of its stages.

    Exists for every placement. A rank with several stages finishes one for all microbatches before it starts the next (the
    breadth-first order of Lamy-Poirier, 2022).
    """
    depth = [{stage: index for index, stage in enumerate(path)} for path in problem.paths]
    orders: list[list[tuple[int, int, int]]] = [[] for _ in range(problem.ranks)]
    for stage, microbatch in problem.blocks():
        orders[problem.stages[stage].rank].append((depth[problem.path_of[microbatch]][stage], microbatch, stage))
    return Schedule(
        orders=tuple(
            tuple(Op(Kind.F, stage, microbatch) for _, microbatch, stage in sorted(order))
            + tuple(Op(Kind.BW, stage, microbatch) for _, microbatch, stage in sorted(order, key=lambda at: (-at[0], at[1])))
            for order in orders
        )
    )
