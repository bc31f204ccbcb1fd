"""Which backwards are fused, as patience (`choice.decide`): the policies that searches over rules start from."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from schedc.solvers.kernel.scheduler_state import depth_by_stage
from schedc.solvers.kernel.tables import NEVER, SchedulerState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from schedc.ir.problem import Problem


def longest_op_ns(scheduler: SchedulerState) -> int:
    """The longest op."""
    longest_ns = 0
    costs = attrgetter("fused", "forward_ns", "backward_ns", "backward_input_ns", "weight_ns")
    for fused, forward_ns, backward_ns, backward_input_ns, weight_ns in set(map(costs, scheduler.blocks)):  # most are alike
        longest_ns = max(longest_ns, forward_ns, backward_ns if fused else max(backward_input_ns, weight_ns))
    return longest_ns


def levels_ns_of(longest_ns: int) -> tuple[int, int, int, int, int]:
    """What a block's patience may be, where the longest op takes this long: to split, to fuse, and three that depend on the run."""
    return -NEVER, NEVER, 0, longest_ns // 2, longest_ns


def policies(problem: Problem, scheduler: SchedulerState) -> list[NDArray[np.int64]]:
    """Patience of all positions, by policy; one without any entry where the scheduler does not mix.

    Args:
        problem: the scheduler's.
        scheduler: as lists.

    Returns:
        None fused; all; where nothing waits for the gradient; where it comes half an op too late at most; those of the first
        stages, which send none; all but the last of each stage, 1 for the first of a path, 2 for the next, and so on.
    """
    if not scheduler.settings[0].mixes:
        return [np.zeros(0, np.int64)]
    depth = depth_by_stage(problem)
    none, every, first, steady = (
        np.full(len(scheduler.blocks), level_ns, np.int64) for level_ns in (-NEVER, NEVER, -NEVER, -NEVER)
    )
    for lane in scheduler.lanes:
        if lane.previous < 0:
            first[lane.first : lane.last] = NEVER
        steady[lane.first : max(lane.first, lane.last - depth[lane.stage] - 1)] = NEVER
    waits = [np.full(len(scheduler.blocks), level_ns, np.int64) for level_ns in levels_ns_of(longest_op_ns(scheduler))[2:4]]
    return [none, every, *waits, first, steady]
