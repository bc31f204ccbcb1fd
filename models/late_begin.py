"""A solution of a model for the stage span as orders of ops: what begins late there begins with a microbatch that arrives late.

In the models a rank may begin later than its first microbatch arrives (`models.start_windows`); the simulator starts an op as soon
as it can. So names are exchanged: the first forward of such a rank is that of the last microbatch, among those that are alike, that
has arrived by its start, and those before it follow, each no earlier than it arrives. From there on the names go along with what is
sent: the k-th forward of the next stage gets the k-th message, the k-th backward the k-th gradient, each W the name of its B. What
a rank does at any time stays the same; needs are kept, as nothing moves.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from schedc.ir.ops import Kind, Op
from schedc.ir.problem import Objective, Problem, groups_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from schedc.ir.schedule import Schedule
    from schedc.models.blocks import Blocks

CLOSE = 0.01
"""In ticks: the MILP's starts may be off by a rounding error."""


def with_late_begins(problem: Problem, blocks: Blocks, schedule: Schedule, start_of: Callable[[Op], float]) -> Schedule:
    """The schedule with other names, where a rank begins late; itself where the objective is the makespan.

    Args:
        problem: what is scheduled.
        blocks: of the model.
        schedule: the orders of a solution of the model.
        start_of: the start of an op of the model in that solution, in ticks.
    """
    if problem.objective is not Objective.STAGE_SPAN:
        return schedule
    names = _names(problem, blocks, {op: start_of(op) for op in blocks.duration})
    return replace(
        schedule,
        orders=tuple(
            tuple(op._replace(microbatch=names[op.kind is Kind.F, op.stage, op.microbatch]) for op in order)
            for order in schedule.orders
        ),
    )


def _names(problem: Problem, blocks: Blocks, start: Mapping[Op, float]) -> dict[tuple[bool, int, int], int]:
    """By whether it is a forward, stage and microbatch in the model: the microbatch whose op it becomes."""
    gap = {move.producer: move.occupancy + move.latency for move in blocks.transfers}
    first: dict[int, Op] = {}
    for op in sorted(start, key=lambda op: (start[op], op)):
        first.setdefault(problem.rank_of(op), op)
    alike: dict[int, list[int]] = {}
    for microbatch, group in enumerate(groups_of(problem)):
        alike.setdefault(group, []).append(microbatch)
    names: dict[tuple[bool, int, int], int] = {}
    for slots in alike.values():
        path, order = problem.path(slots[0]), slots
        names |= {(True, path[0], slot): slot for slot in slots}
        for before, stage in pairwise(path):
            begin = Op(Kind.F, stage, slots[0])
            if first[problem.rank_of(begin)] == begin:
                sends = [Op(Kind.F, before, slot) for slot in slots]
                arrivals = [start[op] + blocks.duration[op] + gap.get(op, 0) for op in sends]
                # Where several arrive with the first and take no time, nothing is late, and another name could be waited for.
                is_late = arrivals[0] < start[begin] - CLOSE
                arrived = sum(each <= start[begin] + CLOSE for each in arrivals) if is_late else 1
                order = [order[max(arrived, 1) - 1], *order[: max(arrived, 1) - 1], *order[max(arrived, 1) :]]
            names |= {(True, stage, slot): name for slot, name in zip(slots, order, strict=True)}
        names |= {(False, stage, slot): name for stage in path for slot, name in zip(slots, order, strict=True)}
    return names
