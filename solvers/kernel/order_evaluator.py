"""Local search over the orders themselves: time an order, change it, keep what is no worse; kernels, compiled.

It works on the arrays of `ProblemArrays`, on durations by microbatch, and on codes (kind × stages + stage) × most + n: kind a
value of `Kind`, n the microbatch's number on its stage, most the largest count of any stage. Orders may mix fused and split
backwards. The clock is the simulator's; only where a trunk serves several ranks and ops take no time may ties be decided otherwise.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from schedc.compiled.compiler import compiled
from schedc.compiled.kernel import kernel
from schedc.ir.ops import Kind
from schedc.solvers.kernel.draws import Draws, below, draw, fraction
from schedc.solvers.kernel.list_kernel import soonest_of
from schedc.solvers.kernel.problem_arrays import ProblemArrays, example_facts
from schedc.solvers.kernel.tables import NEVER as STRANDED

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

F, B, W, BW = (int(kind) for kind in Kind)
DRAWS = 16
"""Random numbers that a move takes, at most but for rare cases."""


class Orders(NamedTuple):
    """The ops of all ranks in order; a search changes them in place."""

    codes: NDArray[np.int64]
    """[rank, position]: wide enough for every backward split, if backwards may be."""
    lengths: NDArray[np.int64]
    """Per rank, how many of its positions count."""

    def copy(self) -> Orders:
        """The same orders in arrays of their own."""
        return Orders(self.codes.copy(), self.lengths.copy())


class Workspace(NamedTuple):
    """What `time_orders` writes."""

    ready: Any
    """[F or B, stage, n]: when its input is there; -1 while it is not."""
    done_backward: Any
    """[stage, n]: the same for W."""
    left: Any
    """Per stage."""
    entered: Any
    """Per stage: how many of its F have run; kept where microbatches enter in order."""
    gate_ns: Any
    """Per stage: when its all-gather ends; -1 while its place among the rank's is not known."""
    placed: Any
    """Per rank, as the next five: how many of its ops have run."""
    free_ns: Any
    begun_ns: Any
    left_bytes: Any
    gathering_ns: Any
    """When its next all-gather starts."""
    due_ns: Any
    """When its next op ends, `STRANDED` while that is not known; kept where ops are timed in turn."""
    link_free_ns: Any
    """Per link, trunk or lane for collectives."""


def workspace_of(facts: ProblemArrays) -> Workspace:
    """Room for `time_orders` on this problem."""
    ranks, stages, most = len(facts.limit), len(facts.stage_rank), int(facts.count.max())
    sizes = (2, stages, most), (stages, most), *(stages,) * 3, *(ranks,) * 6, len(facts.gathered)
    return Workspace(*(np.zeros(size, np.int64) for size in sizes))


@kernel(inline=True)
def due(facts: ProblemArrays, duration: Any, scratch: Workspace, rank: int, kind: int, stage: int, n: int) -> Any:
    """When this op ends as the rank's next; `STRANDED` while it has not what it needs."""
    if kind == F:
        ready_ns = scratch.ready[0, stage, n]
        gate_ns = scratch.gate_ns[stage]
        gate_ns = gate_ns if gate_ns >= 0 else scratch.gathering_ns[rank] + facts.gather[stage]
    else:
        ready_ns = scratch.done_backward[stage, n] if kind == W else scratch.ready[1, stage, n]
        gate_ns = 0
    if ready_ns < 0:
        return STRANDED
    return max(ready_ns, gate_ns, scratch.free_ns[rank]) + duration[kind, stage, n if duration.shape[2] > 1 else 0]


@kernel()
def due_next(facts: ProblemArrays, duration: Any, orders: Orders, scratch: Workspace, rank: int) -> Any:
    """When the rank's next op ends; `STRANDED` while that is not known, or where all have run."""
    at, stages, most = scratch.placed[rank], len(facts.stage_rank), scratch.ready.shape[2]
    if at >= orders.lengths[rank]:
        return STRANDED
    code = orders.codes[rank, at]
    return due(facts, duration, scratch, rank, code // (most * stages), (code // most) % stages, code % most)


@kernel()
def time_orders(facts: ProblemArrays, duration: Any, orders: Orders, scratch: Workspace) -> Any:
    """The end of the orders; `STRANDED` if they deadlock, run an op before its needs, or exceed a memory limit.

    The same if microbatches enter out of order where they must not.

    Args:
        facts: the problem, except for its durations.
        duration: [kind, stage, n], or [kind, stage, 0] where microbatches are alike.
        orders: what each rank runs.
        scratch: room for it.
    """
    ready, done_backward, left, entered, gate_ns, placed, free_ns, begun_ns, left_bytes, gathering_ns, due_ns, link_free_ns = (
        scratch
    )
    codes, lengths = orders
    stages, ranks, most = len(facts.stage_rank), len(facts.limit), ready.shape[2]
    differ = 1 if duration.shape[2] > 1 else 0
    for stage in range(stages):
        left[stage], entered[stage], gate_ns[stage] = facts.count[stage], 0, -1
        for n in range(facts.count[stage]):
            ready[0, stage, n] = 0 if facts.fed_by[stage] < 0 else -1
            ready[1, stage, n] = done_backward[stage, n] = -1
    for rank in range(ranks):
        placed[rank] = free_ns[rank] = begun_ns[rank] = 0
        left_bytes[rank], gathering_ns[rank] = facts.limit[rank], facts.gathering[rank]
        if facts.in_turn:
            due_ns[rank] = due_next(facts, duration, orders, scratch, rank)
    for link in range(len(link_free_ns)):
        link_free_ns[link] = facts.gathered[link]
    scattered_ns, rank, waiting = 0, 0, 0
    while waiting < ranks:  # each rank goes on as far as it can; or always the one whose op ends first
        if facts.in_turn:
            rank = soonest_of(due_ns)
            if due_ns[rank] >= STRANDED:
                break
        end_ns = STRANDED
        if placed[rank] < lengths[rank]:
            code = codes[rank, placed[rank]]
            n = code % most
            stage = (code // most) % stages
            kind = code // (most * stages)
            end_ns = due(facts, duration, scratch, rank, kind, stage, n)
        if end_ns >= STRANDED:
            waiting += 1
            rank = rank + 1 if rank + 1 < ranks else 0
            continue
        waiting = 0
        if kind == F:
            if facts.in_order and facts.fed_by[stage] < 0:
                if n != entered[stage]:
                    return STRANDED
                entered[stage] += 1
            left_bytes[rank] -= facts.held[stage]
            if gate_ns[stage] < 0:
                gathering_ns[rank] += facts.gather[stage]
                gate_ns[stage] = gathering_ns[rank]
        if left_bytes[rank] < (facts.again[stage] if kind in (B, BW) else 0):
            return STRANDED
        if placed[rank] == 0:
            begun_ns[rank] = end_ns - duration[kind, stage, differ * n]
        free_ns[rank] = end_ns
        placed[rank] += 1
        way = 0 if kind == F else 1
        neighbour = -1
        if kind == F:
            neighbour = facts.feeds[stage]
            if neighbour < 0:
                ready[1, stage, n] = end_ns
        elif kind == W:
            left_bytes[rank] += facts.kept[stage]
        else:
            left_bytes[rank] += facts.held[stage] - (facts.kept[stage] if kind == B else 0)
            done_backward[stage, n] = end_ns
            neighbour = facts.fed_by[stage]
        if neighbour >= 0:
            link = facts.resource[way * stages + stage]
            arrival_ns = end_ns
            if link >= 0:
                link_free_ns[link] = max(end_ns, link_free_ns[link]) + facts.occupancy[way * stages + stage]
                arrival_ns = link_free_ns[link] + facts.latency[way * stages + stage]
            ready[way, neighbour, n] = arrival_ns
        if kind in (W, BW):
            left[stage] -= 1
            if left[stage] == 0 and facts.scatter[stage] >= 0:
                link = facts.collectives[rank]
                link_free_ns[link] = max(end_ns, link_free_ns[link]) + facts.scatter[stage]
                scattered_ns = max(scattered_ns, link_free_ns[link])
        if facts.in_turn:
            due_ns[rank] = due_next(facts, duration, orders, scratch, rank)
            if neighbour >= 0:
                other = facts.stage_rank[neighbour]
                if due_ns[other] >= STRANDED:
                    due_ns[other] = due_next(facts, duration, orders, scratch, other)
    span_ns, latest_ns = 0, scattered_ns
    for rank in range(ranks):
        if placed[rank] < lengths[rank]:
            return STRANDED
        span_ns = max(span_ns, free_ns[rank] - begun_ns[rank])
        latest_ns = max(latest_ns, free_ns[rank])
    return span_ns if facts.span else latest_ns


def _example() -> tuple[Any, ...]:
    facts, row, duration = example_facts(), np.zeros(1, np.int64), np.zeros((4, 1, 1), np.int64)
    orders = Orders(np.zeros((1, 1), np.int64), row)
    return facts, duration, orders, orders, orders, workspace_of(facts), row, (0,) * 3, 0, draw(0, 1), 0.0, np.zeros(1, np.bool_)


@kernel(_example, lean=True)
def polish(
    facts: ProblemArrays,
    duration: Any,
    orders: Orders,
    current: Orders,
    best: Orders,
    scratch: Workspace,
    before: Any,
    ranges: Any,
    evaluations: int,
    draws: Draws,
    heat: float,
    stop: Any,
) -> Any:
    """Change the orders this many times, one op at a time; `orders` becomes the best found, whose end is returned.

    `current` and `best` are room for orders, `before` for one rank's. `ranges` has 2, how far an op may be moved, and one in how
    many changes fuses or splits a backward, 0 for none; from outside, as numba would compile `below` anew for each number written
    here. `stop[0]` set to true, by another thread, ends it after the change at hand.
    """
    blocks = len(facts.stage_rank) * scratch.ready.shape[2]
    current_ns = time_orders(facts, duration, orders, scratch)
    best_ns = current_ns
    copy_orders(orders, current)
    copy_orders(orders, best)
    for number in range(evaluations):
        if stop[0]:
            break
        change = change_at_random(current, before, blocks, ranges, draws)
        if change[0] < 0:
            continue
        moved_ns = time_orders(facts, duration, current, scratch)
        warm = heat * (1.0 - number / evaluations)
        if moved_ns <= current_ns or (
            moved_ns < STRANDED and warm > 0 and fraction(draws) < math.exp((current_ns - moved_ns) / (warm * best_ns))
        ):
            current_ns = moved_ns
            if moved_ns < best_ns:
                best_ns = moved_ns
                copy_orders(current, best)
        else:
            take_back(current, before, change)
    copy_orders(best, orders)
    return best_ns


@kernel(inline=True)
def change_at_random(orders: Orders, before: Any, blocks: int, ranges: Any, draws: Draws) -> Any:
    """Move one op of one rank, or fuse or split a backward; `take_back` undoes what this returns.

    Args:
        orders: changed.
        before: room for one rank's order, as it was where a backward is fused or split.
        blocks: how many codes a kind has.
        ranges: as of `polish`.
        draws: random numbers.

    Returns:
        The rank, or -1 where nothing has changed; whether a backward was fused or split; how many ops the rank had; from where the
        op was moved, and to where.
    """
    two, reach, exchanges = ranges
    codes, lengths = orders
    rank = below(len(lengths), draws)
    length = lengths[rank]
    if length < 2:
        return -1, False, length, 0, 0
    source = below(length, draws)
    if exchanges > 0 and below(exchanges, draws) == 0:
        for position in range(length):
            before[position] = codes[rank, position]
        if exchange(orders, rank, source, blocks, below(two, draws), below(reach, draws)):
            return rank, True, length, source, source
    distance = 1 + below(reach, draws)
    if below(two, draws) == 0:
        distance = -distance
    target = min(length - 1, max(0, source + distance))
    if source == target:
        return -1, False, length, 0, 0
    move_op(codes, rank, source, target)
    return rank, False, length, source, target


@kernel(inline=True)
def take_back(orders: Orders, before: Any, change: Any) -> None:
    """Undo what `change_at_random` has done."""
    codes, lengths = orders
    rank, exchanged, length, source, target = change
    if exchanged:
        for position in range(length):
            codes[rank, position] = before[position]
        lengths[rank] = length
    else:
        move_op(codes, rank, target, source)


@kernel()
def exchange(orders: Orders, rank: int, at: int, blocks: int, side: int, apart: int) -> bool:
    """Fuse the backward that the rank has at this position, or split it; returns whether there is one.

    Args:
        orders: changed.
        rank: whose order.
        at: a position in it.
        blocks: how many codes a kind has.
        side: 0: BW takes the place of B, or B that of BW; 1: the same of W.
        apart: this many ops come between B and W where BW is split, or as many as there are.
    """
    codes, lengths = orders
    code, length = codes[rank, at], lengths[rank]
    kind = code // blocks
    if kind == F:
        return False
    if kind == BW:
        codes[rank, length] = code - blocks
        lengths[rank] = length + 1
        if side == 0:
            codes[rank, at] = code - 2 * blocks
            move_op(codes, rank, length, min(length, at + 1 + apart))
        else:
            codes[rank, at] = code - 2 * blocks
            move_op(codes, rank, length, at + 1)
            move_op(codes, rank, at, max(0, at - apart))
        return True
    step = 1 if kind == B else -1
    half = code + step * blocks
    other = at + step
    while 0 <= other < length and codes[rank, other] != half:
        other += step
    if not 0 <= other < length:
        return False
    keep, leave = (min(at, other), max(at, other)) if side == 0 else (max(at, other), min(at, other))
    codes[rank, keep] = code + (BW - kind) * blocks
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
    """A compiled kernel that climbs over orders at work on one problem, for one thread."""

    def __init__(self, kernel: Callable[..., Any], given: tuple[Any, ...], reach: int, exchanges: int = 0) -> None:
        """Waits until the kernel is compiled.

        Args:
            kernel: `polish`, or another one that takes the same, from the orders on.
            given: what it takes before the orders, `ProblemArrays` first.
            reach: how far an op may be moved.
            exchanges: one in this many changes fuses or splits a backward; 0: none.
        """
        self._given, self._ranges = given, (2, reach, exchanges)
        self._room, self._polish = workspace_of(given[0]), compiled(kernel)

    def climb(self, orders: Orders, evaluations: int, seed: int, heat: float, stop: NDArray[np.bool_]) -> Any:
        """The best value of that many changes of the orders, which become the best."""
        rooms, draws = (orders.copy(), orders.copy()), draw(seed, DRAWS * evaluations)
        before = np.empty_like(orders.codes[0])
        return self._polish(*self._given, orders, *rooms, self._room, before, self._ranges, evaluations, draws, heat, stop)
