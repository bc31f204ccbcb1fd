"""Memory: what a schedule holds on each rank (cost model, "Memory").

F holds its activation from its start; the end of B releases
all but what W needs, the end of W the rest, the end of BW all. Where a stage recomputes, B and BW take the activations when they
start. A rank runs one op at a time, so its peak follows from its order alone; a Timeline only says when. Where steps overlap,
versions of weights beside the newest count, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from schedc.analysis.simulation.unroll import shown
from schedc.analysis.simulation.versions import versions_of
from schedc.ir import Kind, Problem, Schedule
from schedc.ir.index import ops_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from schedc.analysis.simulation.timeline import Timeline


def peak_bytes(problem: Problem, schedule: Schedule) -> tuple[int, ...]:
    """Per rank, the most that is held at any moment; of a period, at any moment of a run of any number of steps."""
    if problem.updates is not None and problem.updates.is_period:
        problem, schedule = shown(problem, schedule)
    held_at_start, released_at_end = memory_changes(problem, schedule, ops_array(schedule.orders))
    peaks, begin = [0] * len(schedule.orders), 0
    before = np.cumsum(held_at_start) - np.cumsum(released_at_end) + released_at_end  # while the op runs, all ranks before included
    versions = versions_of(problem, schedule).more if problem.updates is not None else None
    for rank, order in enumerate(schedule.orders):
        if order:
            end = begin + len(order)
            others = before[begin] - held_at_start[begin]
            held = before[begin:end] - others
            peaks[rank] = max(0, int((held if versions is None else held + versions[rank]).max()))
            begin = end
    return tuple(peaks)


def exceeded_limit(problem: Problem, schedule: Schedule) -> tuple[int, int, int] | None:
    """The first rank that holds more than its memory limit, with its peak and the limit in bytes; None: none does."""
    for rank, (peak, limit) in enumerate(zip(peak_bytes(problem, schedule), problem.memory_limit_bytes, strict=True)):
        if limit is not None and peak > limit:
            return rank, peak, limit
    return None


def memory_curve(problem: Problem, schedule: Schedule, timeline: Timeline, rank: int) -> list[tuple[int, int]]:
    """What the rank holds over time: (time_ns, bytes from then on), one entry for each change, times ascending."""
    held_at_start, released_at_end = memory_changes(problem, schedule, ops_array((schedule.orders[rank],)))
    versions = np.array(versions_of(problem, schedule).more[rank] if problem.updates is not None else [0] * len(held_at_start))
    held_at_start = held_at_start + np.diff(versions, prepend=0)
    curve: list[tuple[int, int]] = [(0, 0)]
    held = 0
    for start_ns, end_ns, more, less in zip(
        timeline.start_ns(rank), timeline.end_ns(rank), held_at_start.tolist(), released_at_end.tolist(), strict=True
    ):
        for time_ns, change in ((start_ns, more), (end_ns, -less)):
            if change:
                held += change
                if curve[-1][0] == time_ns:
                    curve.pop()
                curve.append((time_ns, held))
    return curve


def memory_changes(problem: Problem, schedule: Schedule, ops: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Per op, the bytes that it takes when it starts and gives back when it ends."""
    kind, stage, _, part = ops.T
    used, stage_at = np.unique(stage, return_inverse=True)  # a rank has few of all stages
    takes = np.array([[problem.stages[each].taken_bytes(of) for of in Kind] for each in used], np.int64).reshape(-1, len(Kind))
    gives = np.array([[problem.stages[each].released_bytes(of) for of in Kind] for each in used], np.int64).reshape(-1, len(Kind))
    last_part = part < 0
    for parts in schedule.parts:
        last_part |= (kind == parts.kind) & (stage == parts.stage) & (part == len(parts.shares) - 1)
    return np.where(part <= 0, takes[stage_at, kind], 0), np.where(last_part, gives[stage_at, kind], 0)
