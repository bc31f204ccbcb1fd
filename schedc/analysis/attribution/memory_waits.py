"""From when on, in the idle time before an op, memory kept its rank from a forward that was ready.

A rank that idles before an op *waits for memory* from the moment at which there is an F, this op or a later one, so that

- it is the next F of its stage in the rank's order, and a whole block or the first part of one;
- its input is there, and its stage's weights are gathered;
- what the rank holds, with the F's activation and the largest recomputation of its stages, is more than its limit.

With room for one more activation of this stage the rank could have run it then. What follows later in the order would hold more,
too, and might not fit. So this says what the rank could have done with the time, not that the step would be shorter.
An F that fits, and is later in the order all the same, is no wait for memory: the order chose so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from schedc.analysis.simulation.memory import memory_changes
from schedc.ir.index import tables_of
from schedc.ir.ops import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from schedc.analysis.attribution.waits import Waits
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule


def memory_from_ns(problem: Problem, schedule: Schedule, timeline: Timeline, waits: Waits) -> NDArray[np.int64]:
    """Per op, from when on its rank waited for memory; the op's start where it did not.

    Args:
        problem: what the ops cost.
        schedule: the orders.
        timeline: when everything happens.
        waits: of the timeline.
    """
    from_ns = timeline.starts_ns.copy()
    if all(limit is None for limit in problem.memory_limit_bytes):
        return from_ns
    taken, released = memory_changes(problem, schedule, timeline.ops)
    held = np.cumsum(taken - released) - (taken - released)  # before the op; all ranks before included
    ready_ns = _forwards_ready_ns(problem, timeline)
    for rank, limit_bytes in enumerate(problem.memory_limit_bytes):
        first, end = timeline.begin[rank : rank + 2].tolist()
        idle = np.flatnonzero(waits.idle_ns[first:end]) + first
        if limit_bytes is None or not len(idle):
            continue
        held_bytes = held[idle] - held[first] + max(problem.stages[stage].recomputed_bytes for stage in problem.stages_on(rank))
        for stage in problem.stages_on(rank):
            rows = timeline.ops[first:end]
            forwards = np.flatnonzero((rows[:, 0] == Kind.F) & (rows[:, 1] == stage) & (rows[:, 3] <= 0)) + first
            at = np.searchsorted(forwards, idle)
            full = (at < len(forwards)) & (held_bytes + problem.stages[stage].activation_bytes > limit_bytes)
            op, following = idle[full], forwards[at[full]]
            since_ns = np.maximum(ready_ns[following], timeline.starts_ns[op] - waits.idle_ns[op])
            from_ns[op] = np.minimum(from_ns[op], since_ns)
    return from_ns


def _forwards_ready_ns(problem: Problem, timeline: Timeline) -> NDArray[np.int64]:
    """Per op that is the first piece of an F, when its input and its stage's weights are there; 0 for others."""
    kind, stage, microbatch, _ = timeline.ops.T
    tables = tables_of(problem)
    ready_ns = np.zeros(len(timeline.ops), np.int64)
    took = timeline.taken_from >= 0
    ready_ns[took] = timeline.arrival_ns[timeline.taken_from[took]]
    forward = kind == Kind.F
    end_ns = np.zeros((len(problem.stages), problem.microbatches), np.int64)
    np.maximum.at(end_ns, (stage[forward], microbatch[forward]), timeline.ends_ns[forward])
    before = tables.previous_stage[tables.path_of[microbatch], stage]
    here = forward & ~took & (before >= 0)  # the stage before is on the same rank
    ready_ns[here] = end_ns[before[here], microbatch[here]]
    gathered_ns = np.zeros(len(problem.stages), np.int64)
    for span in timeline.collectives:
        if span.collective.kind == "AG":
            gathered_ns[span.collective.stage] = span.end_ns
    return np.where(forward, np.maximum(ready_ns, gathered_ns[stage]), 0)
