"""Which backwards are fused, as patience (`list_kernel.decide`): the policies that searches over rules start from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from schedc.solvers.kernel.tables import NEVER, SchedulerState

if TYPE_CHECKING:
    from numpy.typing import NDArray


def levels_ns_of(longest_ns: int) -> tuple[int, int, int, int, int]:
    """What a block's patience may be, where the longest op takes this long: to split, to fuse, and three that depend on the run."""
    return -NEVER, NEVER, 0, longest_ns // 2, longest_ns


def policies(scheduler: SchedulerState, depth: list[int], longest_ns: int) -> list[NDArray[np.int64]]:
    """Patience of all positions, by policy; one without any entry where the scheduler does not mix.

    Args:
        scheduler: as lists.
        depth: by stage, how many stages come before it on its path.
        longest_ns: the longest op.

    Returns:
        None fused; all; where nothing waits for the gradient; where it comes half an op too late at most; those of the first
        stages, which send none; all but the last of each stage, 1 for the first of a path, 2 for the next, and so on.
    """
    if not scheduler.settings[0].mixes:
        return [np.zeros(0, np.int64)]
    none, every, first, steady = (
        np.full(len(scheduler.blocks), level_ns, np.int64) for level_ns in (-NEVER, NEVER, -NEVER, -NEVER)
    )
    for lane in scheduler.lanes:
        if lane.previous < 0:
            first[lane.first : lane.last] = NEVER
        steady[lane.first : max(lane.first, lane.last - depth[lane.stage] - 1)] = NEVER
    waits = [np.full(len(scheduler.blocks), level_ns, np.int64) for level_ns in levels_ns_of(longest_ns)[2:4]]
    return [none, every, *waits, first, steady]
