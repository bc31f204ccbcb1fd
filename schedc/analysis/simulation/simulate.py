"""The simulator: a Problem and a Schedule in, a Timeline out, exact to the nanosecond.

It implements the cost model's "Time", "Transfers" and "Data parallelism": a rank runs one op at a time in its order; a transfer is
ready when its producer ends, occupies its link or trunk in the order in which transfers become ready, and arrives after the
latency; collectives run beside compute. `flow` turns the schedule into arrays; `event_loop` runs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.analysis.simulation.event_loop import event_loop_for
from schedc.analysis.simulation.flow import Flow, Times, flow_of, timeline_of, waiting_text
from schedc.errors import CheckFailed
from schedc.ir import Problem, Schedule

if TYPE_CHECKING:
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.index import Tables


def simulate(problem: Problem, schedule: Schedule, *, tables: Tables | None = None) -> Timeline:
    """When every op, transfer and collective of the schedule happens.

    Args:
        problem: what the ops cost.
        schedule: a schedule that `verify_schedule` accepts; needs between ops of one rank are taken as met by its order.
        tables: the problem's lookups, where the caller has them already.

    Raises:
        CheckFailed: the ranks wait for each other in a cycle, or for an op that the schedule does not have.
    """
    flow = flow_of(problem, schedule, tables)
    times, ended = times_of(flow)
    if ended < len(flow.ops):
        raise CheckFailed(waiting_text(schedule, flow, times))
    return timeline_of(problem, flow, times)


def times_of(flow: Flow) -> tuple[Times, int]:
    """When everything of the flow begins, and how many ops run: fewer than all where the ranks wait for each other in a cycle."""
    times = Times.none_of(flow)
    arrays = [
        flow.begin,
        flow.duration_ns,
        *flow.gates,
        flow.receives,
        flow.consumer,
        flow.rank_of,
        flow.resource,
        flow.occupancy_ns,
        flow.latency_ns,
        flow.collective_after,
        flow.scatter_resource,
        flow.scatter_ns,
        *flow.free,
    ]
    results = [times.starts_ns, times.transfer_start_ns, times.arrival_ns, times.scatter_start_ns]
    loop, compiled = event_loop_for(len(flow.ops))
    if compiled:
        ended = loop(*(array.copy() for array in arrays), *results)  # it changes some of them, and a flow may run again
    else:
        lists = [array.tolist() for array in results]
        ended = loop(*(array.tolist() for array in arrays), *lists)
        for array, values in zip(results, lists, strict=True):
            array[:] = values
    return times, ended
