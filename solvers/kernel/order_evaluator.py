"""Local search over the orders themselves: time an order, move an op, keep what is no worse; kernels, compiled.

It works on the arrays of `rule_kernel.Facts` and on codes (kind × stages + stage) × most + n, n the microbatch's
number on its stage and most the largest count of any stage. A trunk that several ranks share is served in the order of this pass.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from schedc.compiled import compiled, kernel
from schedc.solvers.kernel.draws import Draws, below, draw, fraction
from schedc.solvers.kernel.rule_kernel import STRANDED, B, F, Facts, W, example_facts

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["OrderClimber", "polish"]

DRAWS = 16
"""Random numbers that a move takes, at most but for rare cases."""


class Room(NamedTuple):
    """What `time_orders` writes."""

    ready: Any
    """[F or B, stage, n]: when its input is there; -1 while it is not."""
    done_backward: Any
    """[stage, n]: the same for W."""
    left: Any
    """Per stage."""
    at: Any
    """Per rank, as the next three."""
    free: Any
    begun: Any
    room: Any
    link_free: Any
    """Per link or trunk."""


def room_of(facts: Facts) -> Room:
    """Room for `time_orders` on this problem."""
    ranks, stages, most = len(facts.limit), len(facts.stage_rank), int(facts.count.max())
    sizes = (2, stages, most), (stages, most), stages, ranks, ranks, ranks, ranks, facts.resources
    return Room(*(np.zeros(size, np.int64) for size in sizes))


@kernel()
def time_orders(facts: Facts, orders: Any, lengths: Any, scratch: Room) -> Any:
    """The end of the orders; `STRANDED` if they deadlock, run an op before its needs, or exceed a memory limit.

    Args:
        facts: the problem.
        orders: [rank, position], codes.
        lengths: per rank, how many.
        scratch: room for it.
    """
    ready, done_backward, left, at, free, begun, room, link_free = scratch
    stages, ranks, most, split = len(facts.stage_rank), len(facts.limit), ready.shape[2], facts.split
    for s in range(stages):
        left[s] = facts.count[s]
        for n in range(facts.count[s]):
            ready[0, s, n] = facts.gate[s] if facts.fed_by[s] < 0 else -1
            ready[1, s, n] = done_backward[s, n] = -1
    for r in range(ranks):
        at[r] = free[r] = begun[r] = 0
        room[r] = facts.limit[r]
    for link in range(len(link_free)):
        link_free[link] = 0
    end = 0
    moving = True
    while moving:
        moving = False
        for r in range(ranks):
            while at[r] < lengths[r]:
                code = orders[r, at[r]]
                n = code % most
                s = (code // most) % stages
                kind = code // (most * stages)
                start = done_backward[s, n] if kind == W else ready[kind, s, n]
                if start < 0:
                    break
                if kind == F:
                    room[r] -= facts.held[s]
                    if room[r] < 0:
                        return STRANDED
                if facts.span and at[r] == 0:
                    begun[r] = start
                now = max(start, free[r]) + facts.duration[kind * stages + s]
                free[r] = now
                at[r] += 1
                moving = True
                to = -1
                if kind == F:
                    to = facts.feeds[s]
                    if to < 0:
                        ready[1, s, n] = now
                elif kind == B:
                    room[r] += facts.held[s] - (facts.kept[s] if split else 0)
                    done_backward[s, n] = now
                    to = facts.fed_by[s]
                else:
                    room[r] += facts.kept[s]
                if kind == (W if split else B):
                    left[s] -= 1
                    if left[s] == 0:
                        end = max(end, now + facts.tail[s] - begun[r])
                if to >= 0:
                    link = facts.resource[kind * stages + s]
                    if link >= 0:
                        now = max(now, link_free[link]) + facts.occupancy[kind * stages + s]
                        link_free[link] = now
                        now += facts.latency[kind * stages + s]
                    ready[kind, to, n] = max(now, facts.gate[to]) if kind == F else now
    for r in range(ranks):
        if at[r] < lengths[r]:
            return STRANDED
    return end


def _example() -> tuple[Any, ...]:
    facts, row, table = example_facts(), np.zeros(1, np.int64), np.zeros((1, 1), np.int64)
    return facts, table, table, table, row, room_of(facts), (0,) * 2, 0, draw(0, 1), 0.0, np.zeros(1, np.bool_)


@kernel(_example)
def polish(
    facts: Facts,
    orders: Any,
    current: Any,
    best_orders: Any,
    lengths: Any,
    scratch: Room,
    ranges: Any,
    evaluations: int,
    draws: Draws,
    heat: float,
    stop: Any,
) -> Any:
    """Move single ops within their rank's order this many times; `orders` becomes the best found, whose end is returned.

    `current` and `best_orders` are room for orders. `ranges` has 2 and how far an op may be moved; from outside, as numba would
    compile `below` anew for each number written here. `stop[0]` set to true, by another thread, ends it after the move
    at hand.
    """
    two, reach = ranges
    ranks = len(lengths)
    now = time_orders(facts, orders, lengths, scratch)
    best = now
    _copy(orders, lengths, current)
    _copy(orders, lengths, best_orders)
    for turn in range(evaluations):
        if stop[0]:
            break
        r = below(ranks, draws)
        if lengths[r] < 2:
            continue
        i = below(lengths[r], draws)
        distance = 1 + below(reach, draws)
        if below(two, draws) == 0:
            distance = -distance
        j = min(lengths[r] - 1, max(0, i + distance))
        if i == j:
            continue
        _move(current, r, i, j)
        value = time_orders(facts, current, lengths, scratch)
        warm = heat * (1.0 - turn / evaluations)
        if value <= now or (value < STRANDED and warm > 0 and fraction(draws) < math.exp((now - value) / (warm * best))):
            now = value
            if value < best:
                best = value
                _copy(current, lengths, best_orders)
        else:
            _move(current, r, j, i)
    _copy(best_orders, lengths, orders)
    return best


@kernel()
def _copy(orders: Any, lengths: Any, target: Any) -> None:
    for r in range(len(lengths)):
        for position in range(lengths[r]):
            target[r, position] = orders[r, position]


@kernel()
def _move(orders: Any, r: int, i: int, j: int) -> None:
    code = orders[r, i]
    step = 1 if j > i else -1
    while i != j:
        orders[r, i] = orders[r, i + step]
        i += step
    orders[r, j] = code


class OrderClimber:
    """The compiled kernel at work on one problem, for one thread."""

    def __init__(self, facts: Facts, lengths: NDArray[np.int64], reach: int) -> None:
        """Waits until the kernel is compiled. `lengths`: ops per rank; `reach`: how far an op may be moved."""
        self.facts, self.lengths, self.ranges = facts, lengths, (2, reach)
        self._room, self._polish = room_of(facts), compiled(polish)

    def climb(self, orders: NDArray[np.int64], evaluations: int, seed: int, heat: float, stop: NDArray[np.bool_]) -> int:
        """The best end of that many moves from `orders` [rank, position], which become the best."""
        rooms, draws = (np.empty_like(orders), np.empty_like(orders)), draw(seed, DRAWS * evaluations)
        return int(self._polish(self.facts, orders, *rooms, self.lengths, self._room, self.ranges, evaluations, draws, heat, stop))
