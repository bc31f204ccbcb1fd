"""A plan's times where a rank waits in each send and receive, as in Megatron's 1F1B (cost model, "Engines that wait").

A transfer begins when both of its ranks have come to it, and holds both until it has arrived. Between two ops a rank sends what the
first has made and receives what the second needs: in one exchange if both are with the same peer, else the send first.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from schedc.analysis.simulation.flow import Times, flow_of, timeline_of
from schedc.analysis.simulation.moments import BEGIN, Moment, Resources, after, arrived, gates_of
from schedc.errors import CheckFailed
from schedc.ir.ops import token

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from schedc.analysis.simulation.flow import Flow
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

BEGINS, ENDS = 0, 1
"""What happens to an op: its transfer begins; it ends, and makes a reduce-scatter ready. In this order at one moment."""


def simulate_blocking(problem: Problem, schedule: Schedule) -> Timeline:
    """When every op, transfer and collective happens; the arguments are as of `simulate`.

    Raises:
        CheckFailed: the ranks wait for each other in a cycle, which depends on the orders alone; names the cycle.
    """
    flow = flow_of(problem, schedule)
    times = Times.none_of(flow)
    rank_of, consumer = flow.rank_of.tolist(), flow.consumer.tolist()
    collective_after, duration_ns, resource = flow.collective_after.tolist(), flow.duration_ns.tolist(), flow.resource.tolist()
    occupancy_ns, latency_ns = flow.occupancy_ns.tolist(), flow.latency_ns.tolist()
    gate, resources = gates_of(flow), Resources(flow)

    producer = {needs: op for op, needs in enumerate(consumer) if needs >= 0}
    work = [_work(flow, producer, rank) for rank in range(problem.ranks)]
    """Per rank, what it does next: an op, or the transfers of an exchange, named by the ops that send them."""
    clock = [BEGIN] * problem.ranks
    """Per rank, when it is done with what it did last."""
    exchange: list[tuple[int, ...]] = [()] * problem.ranks
    """Per rank, the transfers of its exchange that have not begun."""
    came: dict[int, Moment] = {}
    """Of transfers to which one rank has come: when."""
    events: list[tuple[Moment, int, int, int]] = []
    """(when, rank, what happens, op)."""
    started = 0

    def go_on(rank: int) -> None:
        """Start the rank's next ops, up to an exchange."""
        nonlocal started
        for step in work[rank]:
            if isinstance(step, int):
                start = max(clock[rank], gate[step])
                times.starts_ns[step] = start[0]
                started += 1
                clock[rank] = after(start, duration_ns[step])
                if collective_after[step] >= 0:
                    heapq.heappush(events, (clock[rank], rank, ENDS, step))
                continue
            exchange[rank] = step
            for transfer in step:
                if transfer in came:
                    ready = max(came.pop(transfer), clock[rank])
                    heapq.heappush(events, (ready, rank_of[transfer], BEGINS, transfer))
                else:
                    came[transfer] = clock[rank]
            return

    for rank in range(problem.ranks):
        go_on(rank)
    while events:
        now, _, what, op = heapq.heappop(events)
        if what == ENDS:
            collective = collective_after[op]
            times.scatter_start_ns[collective] = resources.reduce_scatter(collective, now)
            continue
        start, left = resources.serve(resource[op], now, occupancy_ns[op])
        end = arrived(left, latency_ns[op])
        times.transfer_start_ns[op], times.arrival_ns[op] = start[0], end[0]
        for rank in (rank_of[op], rank_of[consumer[op]]):
            clock[rank] = max(clock[rank], end)
            exchange[rank] = tuple(transfer for transfer in exchange[rank] if transfer != op)
            if not exchange[rank]:
                go_on(rank)
    if started < len(rank_of):
        raise CheckFailed(_deadlock(schedule, flow, exchange))
    return timeline_of(problem, flow, times)


def _work(flow: Flow, producer: Mapping[int, int], rank: int) -> Iterator[int | tuple[int, ...]]:
    """The ops of the rank in order, and before each and after the last the exchanges there."""
    first, end = flow.begin[rank : rank + 2].tolist()
    for op in range(first, end + 1):
        sent = op - 1 if op > first and flow.consumer[op - 1] >= 0 else None
        received = producer.get(op) if op < end else None
        if sent is not None and received is not None and flow.rank_of[flow.consumer[sent]] == flow.rank_of[received]:
            yield sent, received
        else:
            yield from ((transfer,) for transfer in (sent, received) if transfer is not None)
        if op < end:
            yield op


def _deadlock(schedule: Schedule, flow: Flow, exchange: Sequence[tuple[int, ...]]) -> str:
    """The cycle of ranks of which each waits for the next: all transfers of an exchange are with one peer, which has not come."""
    ops = [op for order in schedule.orders for op in order]
    waiting = next(rank for rank, transfers in enumerate(exchange) if transfers)
    seen: list[int] = []
    while waiting not in seen:
        seen.append(waiting)
        transfer = exchange[waiting][0]
        waiting = int(flow.rank_of[transfer] + flow.rank_of[flow.consumer[transfer]] - waiting)
    waits = []
    for rank in seen[seen.index(waiting) :]:
        transfers = [
            f"send {token(ops[transfer])} to rank {flow.rank_of[flow.consumer[transfer]]}"
            if flow.rank_of[transfer] == rank
            else f"receive {token(ops[transfer])} from rank {flow.rank_of[transfer]}"
            for transfer in exchange[rank]
        ]
        waits.append(f"rank {rank} to {' and '.join(transfers)}")
    return f"where transfers block, the ranks wait for each other indefinitely: {', '.join(waits)}"
