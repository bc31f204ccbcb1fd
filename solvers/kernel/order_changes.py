"""Changes of orders, which can be taken back: an op moves, the same on other ranks, or a backward is fused or split; kernels.

Orders are as of `order_evaluator`, with the microbatches of `numbering` where these are alike. What one rank does sooner often
helps only where the next ranks do it sooner, too, while each of these steps alone makes things worse: so a change may follow the
two ops that have changed places from rank to rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from schedc.compiled.kernel import kernel
from schedc.solvers.kernel.critical_path import Critical, block_of
from schedc.solvers.kernel.draws import Draws, below
from schedc.solvers.kernel.numbering import Numbering, number_anew
from schedc.solvers.kernel.tables import BW, KINDS, B, F, W

if TYPE_CHECKING:
    from schedc.solvers.kernel.order_evaluator import Orders, ProblemArrays


class Undo(NamedTuple):
    """Orders of ranks as they were before a change."""

    orders: Orders
    ranks: Any
    """Which ranks have changed, one after another."""
    count: Any
    """One entry: how many."""


def saved_of(orders: Orders) -> Undo:
    """Room for changes of such orders."""
    return Undo(orders.copy(), np.zeros_like(orders.lengths), np.zeros(1, np.int64))


@kernel()
def save(orders: Orders, saved: Undo, rank: int) -> bool:
    """Keep the rank's order, which is about to change; False if it has changed already."""
    count = saved.count[0]
    for at in range(count):
        if saved.ranks[at] == rank:
            return False
    saved.ranks[count] = rank
    saved.count[0] = count + 1
    saved.orders.lengths[rank] = orders.lengths[rank]
    for position in range(orders.lengths[rank]):
        saved.orders.codes[rank, position] = orders.codes[rank, position]
    return True


@kernel()
def take_back(orders: Orders, saved: Undo) -> None:
    """Undo the change."""
    for at in range(saved.count[0]):
        rank = saved.ranks[at]
        orders.lengths[rank] = saved.orders.lengths[rank]
        for position in range(orders.lengths[rank]):
            orders.codes[rank, position] = saved.orders.codes[rank, position]


@kernel(inline=True)
def change_at_random(
    facts: ProblemArrays,
    orders: Orders,
    saved: Undo,
    critical: Critical,
    numbering: Numbering,
    ranges: Any,
    draws: Draws,
    again: int,
) -> bool:
    """Move one op of one rank and, on others, what goes with it, or fuse or split a backward; `take_back` undoes it.

    Half of the changes are of an op of the critical path, which leaves its block or becomes its first or last op.

    Args:
        facts: the problem.
        orders: changed.
        saved: the ranks that have changed, as they were.
        critical: the path of the orders; where it has no ops, all changes are of any op.
        numbering: the numbers of microbatches that are alike.
        ranges: 2; how far an op may be moved; one in how many changes fuses or splits a backward, and one in how many moves may be
            followed on other ranks, 0 for none. From outside, as numba would compile `below` anew for each number written here.
        draws: random numbers.
        again: as of `exchange`.

    Returns:
        Whether anything has changed, and the orders may run.
    """
    two, reach, exchanges, follows = ranges
    codes, lengths = orders
    saved.count[0] = 0
    if critical.count[0] > 0 and below(two, draws) == 0:
        rank, source, first, last = block_of(critical, below(critical.count[0], draws), codes.shape[1])
    else:
        rank = below(len(lengths), draws)
        source = first = last = below(lengths[rank], draws)
    length = lengths[rank]
    if length < 2:
        return False
    save(orders, saved, rank)
    exchanged = exchanges > 0 and below(exchanges, draws) == 0
    if exchanged and exchange(orders, rank, source, below(two, draws), below(reach, draws), again):
        return number_anew(facts, orders, rank, numbering)
    distance = 1 + below(reach, draws)
    sooner = below(two, draws) == 0
    if sooner:  # before its block, or as its last op sooner
        target = max(0, (first + 1 if first < source < last else source) - distance)
    else:
        target = min(length - 1, max(source, last - 1) + distance)
    if source == target:
        return False
    move_op(codes, rank, source, target)
    if not number_anew(facts, orders, rank, numbering):
        return False
    if follows > 0 and below(follows, draws) == 0:
        for ahead in range(2):
            if below(two, draws) == 0 and not follow(facts, orders, saved, numbering, rank, target, sooner, ahead == 0):
                return False
    return True


@kernel()
def follow(
    facts: ProblemArrays, orders: Orders, saved: Undo, numbering: Numbering, rank: int, target: int, sooner: bool, ahead: bool
) -> bool:
    """Let other ranks do what one has done: an op was moved before another one, or behind it.

    What needs the two (or what they need) gets the same order, from rank to rank as long as both are on one that has another order.

    Args:
        facts: the problem.
        orders: changed.
        saved: as above.
        numbering: the numbers of microbatches that are alike.
        rank: which rank's op was moved.
        target: to what position.
        sooner: whether it was moved before the other one.
        ahead: whether to go on to what needs them, or to what they need.

    Returns:
        Whether the orders may run.
    """
    codes, stages, step = orders.codes, len(facts.stage_rank), 1 if sooner else -1
    while True:
        moved, passed = codes[rank, target], codes[rank, target + step]
        moved_kind, passed_kind = moved % KINDS, passed % KINDS
        if W in (moved_kind, passed_kind):
            return True
        moved, passed = moved // KINDS, passed // KINDS
        moved_stage = facts.feeds[moved % stages] if (moved_kind == F) == ahead else facts.fed_by[moved % stages]
        passed_stage = facts.feeds[passed % stages] if (passed_kind == F) == ahead else facts.fed_by[passed % stages]
        if moved_stage < 0 or passed_stage < 0 or facts.stage_rank[moved_stage] != facts.stage_rank[passed_stage]:
            return True
        rank = facts.stage_rank[moved_stage]
        source = place_of(orders, rank, moved - moved % stages + moved_stage, moved_kind == F)
        target = place_of(orders, rank, passed - passed % stages + passed_stage, passed_kind == F)
        if (source < target) == sooner or not save(orders, saved, rank):
            return True
        move_op(codes, rank, source, target)
        if not number_anew(facts, orders, rank, numbering):
            return False


@kernel()
def place_of(orders: Orders, rank: int, block: int, forward: bool) -> Any:
    """Where the rank has the forward or the backward of a stage and microbatch."""
    codes = orders.codes
    at = 0
    while codes[rank, at] // KINDS != block or codes[rank, at] % KINDS == W or (codes[rank, at] % KINDS == F) != forward:
        at += 1
    return at


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
