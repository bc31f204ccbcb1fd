"""The event loop of the simulator: arrays of ops in, start times out.

It is written so that it runs in two ways: as plain Python over lists, at once and fast enough for small problems, and compiled
by numba over arrays for large ones. Numba takes most of a second to import, which a small compile should not pay.
"""

from __future__ import annotations

import heapq
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["COMPILE_FROM_OPS", "event_loop", "event_loop_for"]

COMPILE_FROM_OPS = 20_000
"""From this many ops on, importing the compiled loop pays for itself."""


def event_loop(
    begin: Any,
    duration_ns: Any,
    gate_ns: Any,
    waits: Any,
    consumer: Any,
    rank_of: Any,
    tie: Any,
    resource: Any,
    occupancy_ns: Any,
    latency_ns: Any,
    collective_after: Any,
    collective_resource: Any,
    collective_ns: Any,
    resource_free_ns: Any,
    starts_ns: Any,
    transfer_start_ns: Any,
    arrival_ns: Any,
    collective_start_ns: Any,
) -> int:
    """Run every rank's ops in order; returns how many ops ran, fewer than all of them where the order deadlocks.

    Op ends are taken in order of time, so the transfers that they make ready reach each link or trunk in order of ready time,
    ties by source rank, stage, microbatch (cost model, "Transfers"). A rank has at most one running op, so the heap never
    holds more entries than there are ranks.

    Args:
        begin: per rank, its first op; one more entry at the end.
        duration_ns: per op.
        gate_ns: per op, the earliest start known before it runs; changed while running.
        waits: per op, 1 where a transfer must arrive first; changed while running.
        consumer: per op, the op that its transfer goes to, or -1.
        rank_of: per op.
        tie: per op, the order among ops of one rank that end at the same time.
        resource: per op, the link or trunk of its transfer.
        occupancy_ns: per op, of its transfer.
        latency_ns: per op, of its transfer.
        collective_after: per op, the reduce-scatter that its end makes ready, or -1.
        collective_resource: per collective.
        collective_ns: per collective.
        resource_free_ns: per resource, when it is free; changed while running.
        starts_ns: per op, written.
        transfer_start_ns: per op, written where it sends.
        arrival_ns: per op, written where it sends.
        collective_start_ns: per collective, written.
    """
    ended = 0
    running = [(0, 0, 0, 0)]
    running.pop()
    at = begin[:-1].copy()
    for rank in range(len(at)):
        first = at[rank]
        if first < begin[rank + 1] and not waits[first]:
            starts_ns[first] = gate_ns[first]
            heapq.heappush(running, (gate_ns[first] + duration_ns[first], rank, tie[first], first))
    while len(running) > 0:
        now_ns, rank, _, op = heapq.heappop(running)
        ended += 1
        other = consumer[op]
        if other >= 0:
            link = resource[op]
            left_ns = max(now_ns, resource_free_ns[link])
            transfer_start_ns[op] = left_ns
            left_ns += occupancy_ns[op]
            resource_free_ns[link] = left_ns
            left_ns += latency_ns[op]
            arrival_ns[op] = left_ns
            waits[other] = 0
            gate_ns[other] = max(gate_ns[other], left_ns)
            if at[rank_of[other]] == other:
                starts_ns[other] = gate_ns[other]
                heapq.heappush(running, (gate_ns[other] + duration_ns[other], rank_of[other], tie[other], other))
        collective = collective_after[op]
        if collective >= 0:
            link = collective_resource[collective]
            collective_start_ns[collective] = max(now_ns, resource_free_ns[link])
            resource_free_ns[link] = collective_start_ns[collective] + collective_ns[collective]
        following = op + 1
        at[rank] = following
        if following < begin[rank + 1]:
            gate_ns[following] = max(gate_ns[following], now_ns)
            if not waits[following]:
                starts_ns[following] = gate_ns[following]
                heapq.heappush(running, (gate_ns[following] + duration_ns[following], rank, tie[following], following))
    return ended


_compiled: list[Callable[..., int]] = []


def event_loop_for(num_ops: int) -> tuple[Callable[..., int], bool]:
    """The loop to use for so many ops, and whether it is compiled (wants arrays) or plain (wants lists)."""
    if num_ops < COMPILE_FROM_OPS and not _compiled and "numba" not in sys.modules:
        return event_loop, False
    if not _compiled:
        import numba

        _compiled.append(numba.njit(cache=True)(event_loop))
    return _compiled[0], True
