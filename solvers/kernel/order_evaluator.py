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
    placed: Any
    """Per rank, as the next three: how many of its ops have run."""
    free_ns: Any
    begun_ns: Any
    left_bytes: Any
    link_free_ns: Any
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
    ready, done_backward, left, placed, free_ns, begun_ns, left_bytes, link_free_ns = scratch
    stages, ranks, most, split = len(facts.stage_rank), len(facts.limit), ready.shape[2], facts.split
    for stage in range(stages):
        left[stage] = facts.count[stage]
        for n in range(facts.count[stage]):
            ready[0, stage, n] = facts.gate[stage] if facts.fed_by[stage] < 0 else -1
            ready[1, stage, n] = done_backward[stage, n] = -1
    for rank in range(ranks):
        placed[rank] = free_ns[rank] = begun_ns[rank] = 0
        left_bytes[rank] = facts.limit[rank]
    for link in range(len(link_free_ns)):
        link_free_ns[link] = 0
    latest_ns = 0
    moving = True
    while moving:
        moving = False
        for rank in range(ranks):
            while placed[rank] < lengths[rank]:
                code = orders[rank, placed[rank]]
                n = code % most
                stage = (code // most) % stages
                kind = code // (most * stages)
                ready_ns = done_backward[stage, n] if kind == W else ready[kind, stage, n]
                if ready_ns < 0:
                    break
                if kind == F:
                    left_bytes[rank] -= facts.held[stage]
                    if left_bytes[rank] < 0:
                        return STRANDED
                if facts.span and placed[rank] == 0:
                    begun_ns[rank] = ready_ns
                end_ns = max(ready_ns, free_ns[rank]) + facts.duration[kind * stages + stage]
                free_ns[rank] = end_ns
                placed[rank] += 1
                moving = True
                neighbour = -1
                if kind == F:
                    neighbour = facts.feeds[stage]
                    if neighbour < 0:
                        ready[1, stage, n] = end_ns
                elif kind == B:
                    left_bytes[rank] += facts.held[stage] - (facts.kept[stage] if split else 0)
                    done_backward[stage, n] = end_ns
                    neighbour = facts.fed_by[stage]
                else:
                    left_bytes[rank] += facts.kept[stage]
                if kind == (W if split else B):
                    left[stage] -= 1
                    if left[stage] == 0:
                        latest_ns = max(latest_ns, end_ns + facts.tail[stage] - begun_ns[rank])
                if neighbour >= 0:
                    link = facts.resource[kind * stages + stage]
                    arrival_ns = end_ns
                    if link >= 0:
                        link_free_ns[link] = max(end_ns, link_free_ns[link]) + facts.occupancy[kind * stages + stage]
                        arrival_ns = link_free_ns[link] + facts.latency[kind * stages + stage]
                    ready[kind, neighbour, n] = max(arrival_ns, facts.gate[neighbour]) if kind == F else arrival_ns
    for rank in range(ranks):
        if placed[rank] < lengths[rank]:
            return STRANDED
    return latest_ns


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
    current_ns = time_orders(facts, orders, lengths, scratch)
    best_ns = current_ns
    _copy(orders, lengths, current)
    _copy(orders, lengths, best_orders)
    for number in range(evaluations):
        if stop[0]:
            break
        rank = below(ranks, draws)
        if lengths[rank] < 2:
            continue
        source = below(lengths[rank], draws)
        distance = 1 + below(reach, draws)
        if below(two, draws) == 0:
            distance = -distance
        target = min(lengths[rank] - 1, max(0, source + distance))
        if source == target:
            continue
        _move(current, rank, source, target)
        moved_ns = time_orders(facts, current, lengths, scratch)
        warm = heat * (1.0 - number / evaluations)
        if moved_ns <= current_ns or (
            moved_ns < STRANDED and warm > 0 and fraction(draws) < math.exp((current_ns - moved_ns) / (warm * best_ns))
        ):
            current_ns = moved_ns
            if moved_ns < best_ns:
                best_ns = moved_ns
                _copy(current, lengths, best_orders)
        else:
            _move(current, rank, target, source)
    _copy(best_orders, lengths, orders)
    return best_ns


@kernel()
def _copy(orders: Any, lengths: Any, target: Any) -> None:
    for rank in range(len(lengths)):
        for position in range(lengths[rank]):
            target[rank, position] = orders[rank, position]


@kernel()
def _move(orders: Any, rank: int, source: int, target: int) -> None:
    code = orders[rank, source]
    step = 1 if target > source else -1
    while source != target:
        orders[rank, source] = orders[rank, source + step]
        source += step
    orders[rank, target] = code


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
