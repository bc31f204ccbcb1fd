"""Local search over the orders themselves: change an order, time it, keep what is no worse; kernels, compiled.

Orders are as of `order_evaluator`, with the microbatches of `numbering` where these are alike. They are run on one problem, or
under many conditions: then the mean of their ends counts, or a percentile.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from schedc.compiled.compiler import compiled
from schedc.compiled.kernel import kernel, variant
from schedc.ir import Problem
from schedc.solvers.kernel.critical_path import Critical, block_of, critical_of, trace
from schedc.solvers.kernel.draws import Draws, below, draw, fraction
from schedc.solvers.kernel.joints import takes_joints
from schedc.solvers.kernel.numbering import Numbering, number_anew, unnumbered
from schedc.solvers.kernel.order_evaluator import (
    Orders,
    ProblemArrays,
    Sampled,
    Workspace,
    example_facts,
    unsampled,
    value_of,
    workspace_of,
)
from schedc.solvers.kernel.tables import BW, KINDS, NEVER as STRANDED, B, F, W

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

DRAWS = 16
"""Random numbers that a move takes, at most but for rare cases."""


def _example() -> tuple[Any, ...]:
    facts, row = example_facts(), np.zeros(1, np.int64)
    sampled = unsampled(np.zeros((4, 1, 1), np.int64))
    orders, stop = Orders(np.zeros((1, 1), np.int64), row), np.zeros(1, np.bool_)
    given = facts, sampled.duration[0], sampled
    rooms = workspace_of(facts), row, critical_of(orders), unnumbered(1)
    return *given, orders, orders, orders, *rooms, (0,) * 3, 0, draw(0, 1), 0.0, stop


@kernel(_example, lean=True)
def polish(
    facts: ProblemArrays,
    duration: Any,
    sampled: Sampled,
    orders: Orders,
    current: Orders,
    best: Orders,
    scratch: Workspace,
    before: Any,
    critical: Critical,
    numbering: Numbering,
    ranges: Any,
    evaluations: int,
    draws: Draws,
    heat: float,
    stop: Any,
) -> Any:
    """Change the orders this many times, one op at a time; `orders` becomes the best found, whose value is returned.

    The value is `value_of`'s. Where there are samples it is told beforehand what would be good enough, so that not all of them need
    be timed; without them a number is drawn only where it decides.

    `current` and `best` are room for orders, `before` for one rank's, `critical` for a path. `ranges` has 2,
    how far an op may be moved, and one in how many changes fuses or splits a backward, 0 for none; from outside, as numba would
    compile `below` anew for each number written here. `stop[0]` set to true, by another thread, ends it after the change at hand.
    """
    samples = len(sampled.share)
    again = len(facts.stage_rank) * KINDS * (facts.microbatches if numbering.members.shape[1] == 0 else 1)
    current_ns = value_of(facts, duration, sampled, orders, scratch, 1.0 * STRANDED)
    best_ns = current_ns
    copy_orders(orders, current)
    copy_orders(orders, best)
    if samples == 0:
        trace(facts, duration, current, scratch, critical)
    for number in range(evaluations):
        if stop[0]:
            break
        rank, length = change_at_random(current, before, critical, ranges, draws, again)
        if rank < 0:
            continue
        if not number_anew(facts, current, rank, numbering):
            take_back(current, before, rank, length)
            continue
        limit_ns = current_ns
        warm = heat * (1.0 - number / evaluations)
        if samples > 0 and warm > 0:
            limit_ns = current_ns - warm * best_ns * math.log(1.0 - fraction(draws))
        moved_ns = value_of(facts, duration, sampled, current, scratch, limit_ns)
        if moved_ns <= limit_ns or (
            samples == 0
            and moved_ns < STRANDED
            and warm > 0
            and fraction(draws) < math.exp((current_ns - moved_ns) / (warm * best_ns))
        ):
            current_ns = moved_ns
            if samples == 0:
                trace(facts, duration, current, scratch, critical)
            if moved_ns < best_ns:
                best_ns = moved_ns
                copy_orders(current, best)
        else:
            take_back(current, before, rank, length)
    copy_orders(best, orders)
    return best_ns


polish_chain = variant(polish, "polish_chain", without=("GRAPHS",))
"""`polish` for chains of whole microbatches."""


def polish_kernel(problem: Problem) -> Callable[..., Any]:
    """The form of `polish` that is compiled for the problem."""
    return polish if takes_joints(problem) else polish_chain


@kernel(inline=True)
def change_at_random(orders: Orders, before: Any, critical: Critical, ranges: Any, draws: Draws, again: int) -> Any:
    """Move one op of one rank, or fuse or split a backward; `take_back` undoes what this returns.

    Half of the changes are of an op of the critical path, which leaves its block or becomes its first or last op.

    Args:
        orders: changed.
        before: room for one rank's order, which becomes as it was.
        critical: the path of the orders; where it has no ops, all changes are of any op.
        ranges: as of `polish`.
        draws: random numbers.
        again: as of `exchange`.

    Returns:
        The rank, or -1 where nothing has changed; how many ops the rank had.
    """
    two, reach, exchanges = ranges
    codes, lengths = orders
    if critical.count[0] > 0 and below(two, draws) == 0:
        rank, source, first, last = block_of(critical, below(critical.count[0], draws), codes.shape[1])
    else:
        rank = below(len(lengths), draws)
        source = first = last = below(lengths[rank], draws)
    length = lengths[rank]
    if length < 2:
        return -1, length
    for position in range(length):
        before[position] = codes[rank, position]
    exchanged = exchanges > 0 and below(exchanges, draws) == 0
    if exchanged and exchange(orders, rank, source, below(two, draws), below(reach, draws), again):
        return rank, length
    distance = 1 + below(reach, draws)
    if below(two, draws) == 0:  # before its block, or as its last op sooner
        target = max(0, (first + 1 if first < source < last else source) - distance)
    else:
        target = min(length - 1, max(source, last - 1) + distance)
    if source == target:
        return -1, length
    move_op(codes, rank, source, target)
    return rank, length


@kernel(inline=True)
def take_back(orders: Orders, before: Any, rank: int, length: int) -> None:
    """Undo what was done to the rank, which had this many ops."""
    for position in range(length):
        orders.codes[rank, position] = before[position]
    orders.lengths[rank] = length


@kernel()
def exchange(orders: Orders, rank: int, at: int, side: int, apart: int, again: int) -> bool:
    """Fuse the backward that the rank has at this position, or split it; returns whether there is one.

    Args:
        orders: changed.
        rank: whose order.
        at: a position in it.
        side: 0: BW takes the place of B, or B that of BW; 1: the same of W.
        apart: this many ops come between B and W where BW is split, or as many as there are.
        again: codes that differ by a multiple of it are alike: B is fused with the next such W, W with the last such B before it.
    """
    codes, lengths = orders
    code, length = codes[rank, at], lengths[rank]
    kind = code % KINDS
    if kind == F:
        return False
    if kind == BW:
        codes[rank, length] = code + W - BW
        lengths[rank] = length + 1
        codes[rank, at] = code + B - BW
        if side == 0:
            move_op(codes, rank, length, min(length, at + 1 + apart))
        else:
            move_op(codes, rank, length, at + 1)
            move_op(codes, rank, at, max(0, at - apart))
        return True
    step = 1 if kind == B else -1
    half = code + step * (W - B)
    other = at + step
    while 0 <= other < length and (codes[rank, other] - half) % again:
        other += step
    if not 0 <= other < length:
        return False
    keep, leave = (min(at, other), max(at, other)) if side == 0 else (max(at, other), min(at, other))
    codes[rank, keep] = code + BW - kind
    move_op(codes, rank, leave, length - 1)
    lengths[rank] = length - 1
    return True


@kernel()
def copy_orders(orders: Orders, target: Orders) -> None:
    """Make `target` the same."""
    for rank in range(len(orders.lengths)):
        target.lengths[rank] = orders.lengths[rank]
        for position in range(orders.lengths[rank]):
            target.codes[rank, position] = orders.codes[rank, position]


@kernel()
def move_op(codes: Any, rank: int, source: int, target: int) -> None:
    """Move what a rank has at one position to another; what is between makes room."""
    code = codes[rank, source]
    step = 1 if target > source else -1
    while source != target:
        codes[rank, source] = codes[rank, source + step]
        source += step
    codes[rank, target] = code


class OrderClimber:
    """The compiled kernel at work on one problem, or on its samples, for one thread."""

    def __init__(self, facts: ProblemArrays, sampled: Sampled, numbering: Numbering, reach: int, exchanges: int = 0) -> None:
        """Waits until the kernel is compiled.

        Args:
            facts: the problem; it stays as it is, as do the samples.
            sampled: its samples, or how long its ops take (`unsampled`).
            numbering: the numbers of microbatches that are alike.
            reach: how far an op may be moved.
            exchanges: one in this many changes fuses or splits a backward; 0: none.
        """
        own = facts._replace(latency=facts.latency.copy(), occupancy=facts.occupancy.copy())
        self._given = own, sampled.duration[0].copy(), sampled._replace(ends_ns=sampled.ends_ns.copy())
        self._numbering = Numbering(*(each.copy() for each in numbering))
        self._ranges, self._room = (2, reach, exchanges), workspace_of(facts)
        self._polish = compiled(polish if facts.slices else polish_chain)

    def climb(self, orders: Orders, evaluations: int, seed: int, heat: float, stop: NDArray[np.bool_]) -> float:
        """The best value of that many changes of the orders, which become the best."""
        before, draws = np.empty_like(orders.codes[0]), draw(seed, DRAWS * evaluations)
        rooms = orders.copy(), orders.copy(), self._room, before, critical_of(orders), self._numbering, self._ranges
        given: tuple[Any, ...] = *self._given, orders, *rooms, evaluations, draws, heat, stop
        value_ns: float = self._polish(*given)
        return value_ns
