"""A plan's times where all transfers of a rank share one queue that holds one transfer (cost model, "Engines that wait").

A send enters the queue when its op has ended and the transfer before it is through, which is when it has arrived; until then the
rank waits. A receive waits for the transfer before it, too. So a slow transfer holds up everything behind it.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from schedc.analysis.simulation.flow import Times, flow_of, timeline_of, waiting_text
from schedc.analysis.simulation.moments import BEGIN, Moment, Resources, after, arrived, gates_of
from schedc.errors import CheckFailed

if TYPE_CHECKING:
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

ENTERS, ENDS = 0, 1
"""What happens to an op: its send enters the queue; it ends, and makes a reduce-scatter ready. In this order at one moment."""


def simulate_one_queue(problem: Problem, schedule: Schedule) -> Timeline:
    """When every op, transfer and collective happens; the arguments are as of `simulate`.

    Raises:
        CheckFailed: the ranks wait for each other in a cycle. A schedule that ends with decoupled transfers ends here, too.
    """
    flow = flow_of(problem, schedule)
    times = Times.none_of(flow)
    begin, rank_of, consumer = flow.begin.tolist(), flow.rank_of.tolist(), flow.consumer.tolist()
    receives, collective_after = flow.receives.tolist(), flow.collective_after.tolist()
    duration_ns, resource = flow.duration_ns.tolist(), flow.resource.tolist()
    occupancy_ns, latency_ns = flow.occupancy_ns.tolist(), flow.latency_ns.tolist()
    gate, resources = gates_of(flow), Resources(flow)

    following = begin[:-1]
    """Per rank, the op that it runs next."""
    idle = [BEGIN] * problem.ranks
    """Per rank, when the op before has ended and its send, if it has one, has entered the queue."""
    enters = [False] * problem.ranks
    """Per rank, whether a send of it has yet to enter."""
    through = [BEGIN] * problem.ranks
    """Per rank, when the last transfer that entered its queue is through."""
    arrival: list[Moment | None] = [None] * len(rank_of)
    """Per op, when what it receives arrives."""
    events: list[tuple[Moment, int, int, int]] = []
    """(when, rank, what happens, op)."""
    started = 0

    def run(rank: int) -> None:
        """Start the rank's next ops, up to one that sends or whose message is not under way."""
        nonlocal started
        while not enters[rank] and (op := following[rank]) < begin[rank + 1]:
            start = max(idle[rank], gate[op])
            if receives[op]:
                came = arrival[op]
                if came is None:
                    return
                start = max(start, through[rank], came)
            times.starts_ns[op] = start[0]
            started += 1
            following[rank] += 1
            idle[rank] = after(start, duration_ns[op])
            if collective_after[op] >= 0:
                heapq.heappush(events, (idle[rank], rank, ENDS, op))
            if consumer[op] >= 0:
                heapq.heappush(events, (max(idle[rank], through[rank]), rank, ENTERS, op))
                enters[rank] = True

    for rank in range(problem.ranks):
        run(rank)
    while events:
        now, rank, what, op = heapq.heappop(events)
        if what == ENDS:
            collective = collective_after[op]
            times.scatter_start_ns[collective] = resources.reduce_scatter(collective, now)
            continue
        start, left = resources.serve(resource[op], now, occupancy_ns[op])
        through[rank] = arrived(left, latency_ns[op])
        times.transfer_start_ns[op], times.arrival_ns[op] = start[0], through[rank][0]
        idle[rank], enters[rank] = now, False
        arrival[consumer[op]] = through[rank]
        run(rank)
        run(rank_of[consumer[op]])
    if started < len(rank_of):
        raise CheckFailed(waiting_text(schedule, flow, times))
    return timeline_of(problem, flow, times)
