"""The simulator: a Problem and a Schedule in, a Timeline out, exact to the nanosecond.

It implements the cost model's "Time", "Transfers" and "Data parallelism": a rank runs one op at a time in its order; a transfer is
ready when its producer ends, occupies its link or trunk in the order in which transfers become ready, and arrives after the
latency; collectives run beside compute. An op may send several transfers and wait for several (docs/graphs.md). `flow` turns the
schedule into arrays; the event loop runs them.

The loop is written so that it runs in two ways: as plain Python over lists, at once and fast enough for small problems, and
compiled by numba over arrays for large ones. Numba takes most of a second to import, which a small compile should not pay.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import numpy as np

from schedc.analysis.simulation.flow import Flow, Times, flow_of, timeline_of, waiting_text
from schedc.compiled.kernel import kernel
from schedc.errors import CheckFailed
from schedc.ir import Problem, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.index import Tables

COMPILE_FROM_OPS = 20_000
"""From this many ops on, importing the compiled loop pays for itself."""


def simulate(problem: Problem, schedule: Schedule, *, tables: Tables | None = None) -> Timeline:
    """When every op, transfer and collective of the schedule happens.

    `verify_schedule` accepts the schedule; needs between ops of one rank are taken as met by its order. `tables` are the problem's.

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
        flow.takings,
        flow.taken,
        flow.taker,
        flow.rank_of,
        flow.resource,
        flow.occupancy_ns,
        flow.latency_ns,
        flow.collective_after,
        flow.collective_next,
        flow.collective_taker,
        flow.collective_resource,
        flow.collective_ns,
        *flow.free,
    ]
    results = [times.starts_ns, times.transfer_start_ns, times.arrival_ns, times.collective_start_ns]
    loop, compiled = event_loop_for(len(flow.ops))
    if compiled:
        ended = loop(*(array.copy() for array in arrays), *results)  # it changes some of them, and a flow may run again
    else:
        lists = [array.tolist() for array in results]
        ended = loop(*(array.tolist() for array in arrays), *lists)
        for array, values in zip(results, lists, strict=True):
            array[:] = values
    return times, ended


@kernel(lambda: (np.zeros(2, np.int64),) * 23)
def event_loop(
    begin: Any,
    duration_ns: Any,
    gate_ns: Any,
    gate_delta: Any,
    waits: Any,
    takings: Any,
    taken: Any,
    taker: Any,
    rank_of: Any,
    resource: Any,
    occupancy_ns: Any,
    latency_ns: Any,
    collective_after: Any,
    collective_next: Any,
    collective_taker: Any,
    collective_resource: Any,
    collective_ns: Any,
    free_ns: Any,
    free_delta: Any,
    starts_ns: Any,
    transfer_start_ns: Any,
    arrival_ns: Any,
    collective_start_ns: Any,
) -> int:
    """Run every rank's ops in order; returns how many ops ran, fewer than all of them where the order deadlocks.

    A moment is a nanosecond and a delta within it (cost model, "Moments"): what takes no time ends one delta after it starts, so
    nothing ends at the moment at which what it waited for ended. Op ends are taken in order of their moments, so the transfers and
    collectives that they make ready reach each link or trunk in that order, ties by source rank. A rank has at most one running
    op, so the heap never holds more entries than there are ranks, and no rank ends two ops at one moment.

    Args:
        begin: per rank, its first op; one more entry at the end.
        duration_ns: per op.
        gate_ns: per op, the nanosecond of the earliest start known before it runs; changed while running.
        gate_delta: per op, the delta of that; changed while running.
        waits: per op, how many transfers must arrive first; changed while running.
        takings: per op, the first need for what it sends; one more entry at the end.
        taken: per need, the transfer; ascending.
        taker: per need, the op that has it.
        rank_of: per op.
        resource: per transfer, its link or trunk.
        occupancy_ns: per transfer.
        latency_ns: per transfer.
        collective_after: per op, the first collective that its end makes ready, or -1.
        collective_next: per collective, the next that the same op makes ready, or -1.
        collective_taker: per collective, the op of its rank that waits for it, or -1.
        collective_resource: per collective.
        collective_ns: per collective.
        free_ns: per resource, the nanosecond at which it is free; changed while running.
        free_delta: per resource, the delta of that; changed while running.
        starts_ns: per op, written.
        transfer_start_ns: per transfer, written.
        arrival_ns: per transfer, written.
        collective_start_ns: per collective, written.
    """
    ended, served, moment_ns, delta = 0, -1, 0, 0
    running = [(0, 0, 0, 0)]
    running.pop()
    at = begin[:-1].copy()
    for rank in range(len(at)):
        first = at[rank]
        if first < begin[rank + 1] and not waits[first]:
            starts_ns[first] = gate_ns[first]
            delta = 0 if duration_ns[first] > 0 else gate_delta[first] + 1
            heapq.heappush(running, (gate_ns[first] + duration_ns[first], delta, rank, first))
    while len(running) > 0:
        now_ns, now_delta, rank, op = heapq.heappop(running)
        ended += 1
        taking, last = takings[op], takings[op + 1]
        while taking < last:
            transfer, other = taken[taking], taker[taking]
            if transfer != served:  # of equal values, the first is sent
                link, moment_ns, delta = resource[transfer], now_ns, now_delta
                if free_ns[link] > now_ns or (free_ns[link] == now_ns and free_delta[link] > now_delta):
                    moment_ns, delta = free_ns[link], free_delta[link]
                transfer_start_ns[transfer] = moment_ns
                delta = 0 if occupancy_ns[transfer] > 0 else delta + 1
                moment_ns += occupancy_ns[transfer]
                free_ns[link], free_delta[link] = moment_ns, delta
                if latency_ns[transfer] > 0:
                    delta = 0
                moment_ns += latency_ns[transfer]
                arrival_ns[transfer], served = moment_ns, transfer
            waits[other] -= 1
            if moment_ns > gate_ns[other] or (moment_ns == gate_ns[other] and delta > gate_delta[other]):
                gate_ns[other], gate_delta[other] = moment_ns, delta
            if not waits[other] and at[rank_of[other]] == other:
                starts_ns[other] = gate_ns[other]
                started = 0 if duration_ns[other] > 0 else gate_delta[other] + 1
                heapq.heappush(running, (gate_ns[other] + duration_ns[other], started, rank_of[other], other))
            taking += 1
        collective = collective_after[op]
        while collective >= 0:
            link, moment_ns, delta = collective_resource[collective], now_ns, now_delta
            if free_ns[link] > now_ns or (free_ns[link] == now_ns and free_delta[link] > now_delta):
                moment_ns, delta = free_ns[link], free_delta[link]
            collective_start_ns[collective] = moment_ns
            delta = 0 if collective_ns[collective] > 0 else delta + 1
            moment_ns += collective_ns[collective]
            free_ns[link], free_delta[link] = moment_ns, delta
            other = collective_taker[collective]
            if other >= 0:  # it comes behind this op on its rank, which does not wait for it there yet
                waits[other] -= 1
                if moment_ns > gate_ns[other] or (moment_ns == gate_ns[other] and delta > gate_delta[other]):
                    gate_ns[other], gate_delta[other] = moment_ns, delta
            collective = collective_next[collective]
        following = op + 1
        at[rank] = following
        if following < begin[rank + 1]:
            if now_ns > gate_ns[following] or (now_ns == gate_ns[following] and now_delta > gate_delta[following]):
                gate_ns[following], gate_delta[following] = now_ns, now_delta
            if not waits[following]:
                starts_ns[following] = gate_ns[following]
                delta = 0 if duration_ns[following] > 0 else gate_delta[following] + 1
                heapq.heappush(running, (gate_ns[following] + duration_ns[following], delta, rank, following))
    return ended


def event_loop_for(num_ops: int) -> tuple[Callable[..., int], bool]:
    """The loop to use for this many ops, and whether it is compiled (wants arrays) or plain (wants lists).

    Both give the same, so nobody waits for the compiler: until a child process has compiled the loop, the plain one runs.
    """
    if num_ops < COMPILE_FROM_OPS:
        return event_loop, False
    from schedc.compiled.compiler import at_hand, compile_ahead, compiled  # loads much, for large problems

    compile_ahead(event_loop)
    return (compiled(event_loop), True) if at_hand(event_loop) else (event_loop, False)
