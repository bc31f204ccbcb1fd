"""Changes of orders, which can be taken back: an op moves, on one rank or on several, or backwards are fused or split; kernels.

Orders are those of `order_evaluator`; where microbatches are alike, their numbers follow from the orders (`numbering`). What one
rank does sooner often helps only if other ranks do it sooner, too, and each of these changes alone makes things worse. So after two
ops have changed places on one rank, the ops that depend on them may change places on other ranks (`follow`).
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
    """What a change has changed, to undo it."""

    orders: Orders
    """As they were before the change, of the changed ranks alone."""
    ranks: Any
    """The first `count` entries: which ranks have changed."""
    count: Any
    """One entry: how many ranks have changed."""


def saved_of(orders: Orders) -> Undo:
    """Room to undo changes of such orders."""
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
    """Undo the last change."""
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
    """Move one op of one rank and perhaps what depends on it on other ranks, or fuse or split backwards; `take_back` undoes it.

    Half of the changes are of an op of the critical path, which leaves its block (`block_of`) or becomes its first or last op.

    Args:
        facts: the problem.
        orders: changed.
        saved: gets the ranks that change, as they were.
        critical: the critical path of the orders; where it has no ops, any op may be changed.
        numbering: the numbers of microbatches that are alike.
        ranges: four numbers: 2; how many places an op may be moved; one in how many changes fuses or splits backwards; one in how
            many changes may be followed on other ranks. 0: none does. They are arguments, the 2 included, as numba would compile
            `below` anew for each number that is written here.
        draws: random numbers.
        again: of `exchange`.

    Returns:
        Whether something has changed that is worth timing. False: nothing has, or the orders can never run.
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
    if exchanges > 0 and below(exchanges, draws) == 0 and codes[rank, source] % KINDS != F:
        return exchange_at_random(facts, orders, saved, numbering, ranges, draws, again, rank, source)
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
def exchange_at_random(
    facts: ProblemArrays,
    orders: Orders,
    saved: Undo,
    numbering: Numbering,
    ranges: Any,
    draws: Draws,
    again: int,
    rank: int,
    at: int,
) -> bool:
    """Fuse the backward that the rank has at this position, or split it; perhaps others of its stage, and on other stages.

    Which of a stage are fused is decided for stretches of it, when it fills and when it drains, and one alone often only costs. One
    change in four is of several of a stage (`exchange_some`). The same may be done from stage to stage, for the same microbatches,
    up to a stage whose first of them is not as it was here, or by chance: one in `reach` goes no further. Arguments and result are
    those of `change_at_random`.
    """
    two, reach, _, follows = ranges
    stages, code = len(facts.stage_rank), orders.codes[rank, at]
    kind, stage = code % KINDS, code // KINDS % stages
    first, side, apart, count = code // KINDS - stage, below(two, draws), below(reach, draws), 1
    if below(two, draws) == 0 and below(two, draws) == 0:
        count += below(facts.microbatches, draws)
    along, ahead = follows > 0 and kind != W and below(follows, draws) == 0, below(two, draws) == 0
    while exchange_some(orders, rank, at, stages, count, side, apart, again):
        if not number_anew(facts, orders, rank, numbering):
            return False
        stage = facts.feeds[stage] if ahead else facts.fed_by[stage]
        if not along or stage < 0 or below(reach, draws) == 0:
            return True
        rank = facts.stage_rank[stage]
        at = place_of(orders, rank, first + stage, False)
        if orders.codes[rank, at] % KINDS != kind:
            return True
        save(orders, saved, rank)
    return False


@kernel()
def follow(
    facts: ProblemArrays, orders: Orders, saved: Undo, numbering: Numbering, rank: int, target: int, sooner: bool, ahead: bool
) -> bool:
    """After one op has passed another one on a rank, let the ops that depend on these two do the same on other ranks.

    It goes from rank to rank: each next two ops are those that get the messages of the last two (or that send them theirs). It ends
    where these are not on one rank, where they are in the wanted order, at a rank that has changed already, and at a W.

    Args:
        facts: the problem.
        orders: changed.
        saved: gets the ranks that change, as they were.
        numbering: the numbers of microbatches that are alike.
        rank: on which an op has passed another one.
        target: the position of that op; its neighbour is the op that it has passed, behind it if `sooner`, else before it.
        sooner: whether it was moved to an earlier position.
        ahead: whether to go to the ops that get messages of the two, or to those that send them.

    Returns:
        False: the orders can never run.
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
    """The position of the forward, or of the backward (B or BW), of a block: microbatch × stages + stage. The rank must have it."""
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
        apart: where BW is split, this many ops come between B and W, or as many as there are.
        again: B is fused with the next W whose code differs, apart from the kind, by a multiple of this; W with the last such B
            before it. That is the same microbatch, or any of the stage where microbatches are alike.
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
def exchange_some(orders: Orders, rank: int, at: int, stages: int, count: int, side: int, apart: int, again: int) -> bool:
    """As `exchange`; then the next ones of the stage that are still as this one was, `count` in all, or as many as there are."""
    codes, lengths = orders
    stage, kind = codes[rank, at] // KINDS % stages, codes[rank, at] % KINDS
    done = exchange(orders, rank, at, side, apart, again)
    while done and count > 1 and at + 1 < lengths[rank]:
        at += 1
        if codes[rank, at] % KINDS == (BW if kind == BW else B) and codes[rank, at] // KINDS % stages == stage:
            count -= 1
            exchange(orders, rank, at, side, apart, again)
    return done


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
