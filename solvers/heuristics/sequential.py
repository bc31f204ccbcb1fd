"""One microbatch after another, each backward whole: a Problem in, a Schedule out. Slow, and there where nothing else fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir.ops import Kind, Op
from schedc.ir.schedule import Schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


def sequential(problem: Problem) -> Schedule:
    """Every microbatch goes there and back before the next one begins.

    No schedule holds less: each rank's peak is the least limit with which any exists (`minimum_limit_bytes`, and its proof).

    Args:
        problem: any.
    """
    orders: list[list[Op]] = [[] for _ in range(problem.ranks)]
    for microbatch in range(problem.microbatches):
        path = problem.path(microbatch)
        blocks = [Op(Kind.F, stage, microbatch) for stage in path] + [Op(Kind.BW, stage, microbatch) for stage in reversed(path)]
        for op in blocks:
            orders[problem.rank_of(op)].append(op)
    return Schedule(orders=tuple(map(tuple, orders)))
