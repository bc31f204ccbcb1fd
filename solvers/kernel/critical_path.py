"""Which ops decide when orders end: the critical path of the orders that were timed last; kernels, compiled.

Orders and times are as of `order_evaluator`. The path ends with the op that ends last; each of its ops is what the next waits for:
the one before on its rank, where that has only just ended, else the sender of what it needs. Where that message waits for its link,
the senders of the messages before it may come next, up to the one that found the link free; not so on trunks that several ranks
share. Orders end no sooner unless one of its ops leaves its block, a stretch of the path on one rank, or another op becomes the
block's first or last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from schedc.compiled.kernel import kernel
from schedc.solvers.kernel.tables import BW, KINDS, B, F, W

if TYPE_CHECKING:
    from schedc.solvers.kernel.order_evaluator import Orders, ProblemArrays, Workspace


class Critical(NamedTuple):
    """The path, from its last op to its first."""

    place: Any
    """Of each op, rank × width of the orders + position."""
    count: Any
    """One entry: how many ops there are."""


def critical_of(orders: Orders) -> Critical:
    """Room for the critical path of such orders, with none in it."""
    return Critical(np.zeros(orders.codes.size, np.int64), np.zeros(1, np.int64))


@kernel()
def trace(facts: ProblemArrays, duration: Any, orders: Orders, scratch: Workspace, critical: Critical, over_links: bool) -> None:
    """Find the path of these orders, which `time_orders` timed last in `scratch`; of graphs and slices none.

    `over_links`: whether it goes on with the messages before one that waits; else with what its sender waited for.
    """
    codes, lengths = orders
    stages, width = len(facts.stage_rank), codes.shape[1]
    critical.count[0], rank = 0, 0
    for other in range(len(lengths)):
        if scratch.free_ns[other] > scratch.free_ns[rank]:
            rank = other
    at = lengths[rank] - 1 if facts.slices == 0 else -1
    while at >= 0 and critical.count[0] < len(critical.place):
        critical.place[critical.count[0]] = rank * width + at
        critical.count[0] += 1
        code = codes[rank, at]
        kind, stage, microbatch = code % KINDS, (code // KINDS) % stages, (code // KINDS) // stages
        start_ns = scratch.ends_ns[rank, at] - duration[kind, stage, microbatch if duration.shape[2] > 1 else 0]
        at -= 1
        if at >= 0 and scratch.ends_ns[rank, at] >= start_ns:
            continue
        # It waits: an F for the stage before, a backward for the stage behind, or for the last stage's F.
        forward = kind == F or facts.feeds[stage] < 0
        giver = facts.fed_by[stage] if kind == F else stage if forward else facts.feeds[stage]
        at = -1
        if giver >= 0:
            rank, wanted = facts.stage_rank[giver], (microbatch * stages + giver) * KINDS
            at = lengths[rank] - 1
            while at >= 0:
                gives = codes[rank, at] - wanted
                if gives == F if forward else gives in (B, BW):
                    break
                at -= 1
            entry = (0 if kind == F else stages) + giver
            link = facts.resource[entry] if over_links and giver != stage and not facts.in_turn else -1
            entered_ns = start_ns - facts.latency[entry] - facts.occupancy[entry]
            while link >= 0 and at >= 0 and entered_ns > scratch.ends_ns[rank, at] and critical.count[0] < len(critical.place):
                critical.place[critical.count[0]] = rank * width + at
                critical.count[0] += 1
                at -= 1
                while at >= 0 and (codes[rank, at] % KINDS == W or facts.resource[_entry_of(codes[rank, at], stages)] != link):
                    at -= 1
                if at >= 0:
                    entered_ns -= facts.occupancy[_entry_of(codes[rank, at], stages)]


@kernel()
def _entry_of(code: int, stages: int) -> Any:
    """Of what an F or a backward sends: where it is in `ProblemArrays`."""
    return (0 if code % KINDS == F else stages) + code // KINDS % stages


@kernel(inline=True)
def block_of(critical: Critical, number: int, width: int) -> Any:
    """The rank of the path's op of this number, its position, and those of the first and the last op of its block."""
    place, count = critical.place, critical.count[0]
    first = last = number
    while first + 1 < count and place[first + 1] == place[first] - 1:
        first += 1
    while last > 0 and place[last - 1] == place[last] + 1:
        last -= 1
    return place[number] // width, place[number] % width, place[first] % width, place[last] % width
