"""The V schedules of zero-bubble (sail-sg, Qi et al. 2023 and 2024), rebuilt from their description: orders of p ranks in, or none.

A microbatch passes each rank four times: 0 is F of the rank's first chunk, from rank 0 to the last; 1 is F of its second, back to
rank 0; 2 is B of the second chunk, and 3 that of the first. All ranks cost the same, and so do all links. A forward holds 2 units,
B gives back one of them and W the other, so p activations of both chunks are 4 p units.

`bubble_filling` is ZB-V's heuristic for any costs: backwards and forwards in turn on all ranks, W where a rank would wait, or where
it waits longer than the worst of the ranks did. `patterned` is V-Half and V-Min: a pattern of six units that repeats, moved
together at its ends, with W in what is free.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from schedc.ir import Kind, Op, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

HELD = (2, 2, -1, -1, -1)
"""What passes 0 to 3 and a W take."""
UNITS = 6
"""One microbatch's pattern."""


class Costs(NamedTuple):
    """What all ranks cost, in nanoseconds: of one chunk, and of a message between ranks."""

    ranks: int
    microbatches: int
    forward: int
    backward: int
    weight: int
    message: int


class Unfit(Exception):
    """The heuristic ends without a schedule."""


def peer_schedules(costs: Costs) -> Iterator[tuple[str, Schedule]]:
    """Each schedule that these peers would make, with its name; none where a heuristic does not fit."""
    found = []
    for fill_backward, fill_forward in product((True, False), repeat=2):
        try:
            found.append(bubble_filling(costs, fill_forward, fill_backward))
        except Unfit:
            continue
    if found:
        yield "zb-v, filled", min(found, key=lambda each: each[1])[0]
    p = costs.ranks
    half = 3 if p % 2 == 0 else 0
    third = 2 if p % 3 == 0 else 0
    yield "v-half", patterned(costs, [[2 * r, 3 * p - r - 2, 3 * p + half + 2 * r - 1, 6 * p + half - r - 2] for r in range(p)])
    yield "v-min", patterned(costs, [[r, 2 * p - r - 1, 2 * p + third + r, 4 * p + third - r - 1] for r in range(p)])


def _schedule(ranks: int, orders: list[list[tuple[int, int, int]]]) -> Schedule:
    """From (pass, chunk of a W, microbatch) per rank; pass 4 is a W."""

    def op(rank: int, each: int, chunk: int, microbatch: int) -> Op:
        second = each in (1, 2) or (each == 4 and chunk == 1)
        kind = (Kind.F, Kind.F, Kind.B, Kind.B, Kind.W)[each]
        return Op(kind, 2 * ranks - 1 - rank if second else rank, microbatch)

    return Schedule(orders=tuple(tuple(op(rank, *each) for each in order) for rank, order in enumerate(orders)))


class _Filling:
    """The state of ZB-V's heuristic."""

    def __init__(self, costs: Costs, approved: list[int] | None) -> None:
        p = costs.ranks
        self.costs, self.last = costs, p - 1
        self.durations = (costs.forward,) * 2 + (costs.backward,) * 2 + (costs.weight,)
        self.ends: list[list[list[int]]] = [[[] for _ in range(p)] for _ in range(4)]
        self.clock, self.held, self.waited = [0] * p, [0] * p, [0] * p
        self.pending: list[deque[tuple[int, int]]] = [deque() for _ in range(p)]
        self.orders: list[list[tuple[int, int, int]]] = [[] for _ in range(p)]
        self.approved = approved or [-1] * p

    def count(self, which: int, rank: int) -> int:
        """How many microbatches have passed."""
        return len(self.ends[which][rank])

    def before(self, which: int, rank: int) -> int | None:
        """The rank before on this pass; None: the pass begins here."""
        other = rank - 1 if which % 2 == 0 else rank + 1
        return other if 0 <= other <= self.last else None

    def arrival(self, which: int, rank: int) -> int | None:
        """When the pass's next microbatch comes from the rank before; None: it does not, or not yet."""
        other, at = self.before(which, rank), self.count(which, rank)
        if other is None or self.count(which, other) <= at:
            return None
        return self.ends[which][other][at] + self.costs.message

    def put(self, which: int, rank: int) -> None:
        """Run the pass's next microbatch."""
        at = self.count(which, rank)
        comes = self.arrival(which, rank)
        missing = comes is None and self.before(which, rank) is not None
        if at >= self.costs.microbatches or missing or (which and self.count(which - 1, rank) <= at):
            raise Unfit
        begin = max(self.clock[rank], comes or 0, self.ends[which - 1][rank][at] if which else 0)
        if self.count(0, rank):
            self.waited[rank] += begin - self.clock[rank]
        self._run(which, 0, at, rank, begin)
        self.ends[which][rank].append(self.clock[rank])
        if which > 1:
            self.pending[rank].append((1 if which == 2 else 0, at))

    def put_w(self, rank: int) -> None:
        """Run the oldest W."""
        if not self.pending[rank]:
            raise Unfit
        self._run(4, *self.pending[rank].popleft(), rank, self.clock[rank])

    def _run(self, which: int, chunk: int, microbatch: int, rank: int, begin: int) -> None:
        self.held[rank] += HELD[which]
        if self.held[rank] > 4 * self.costs.ranks:
            raise Unfit
        self.clock[rank] = begin + self.durations[which]
        self.orders[rank].append((which, chunk, microbatch))

    def put_filling(self, which: int, rank: int, fill: bool) -> None:
        """Run the pass's next microbatch, W before it while they fit or there is no room, and one more if the wait is long."""
        while self.held[rank] + HELD[which] > 4 * self.costs.ranks:
            self.put_w(rank)
        comes = self.arrival(which, rank)
        while self.pending[rank] and comes is not None and comes >= self.clock[rank] + self.costs.weight:
            self.put_w(rank)
        worst = max(*self.waited, max(self.approved) - self.approved[rank])
        wait = (comes if comes is not None else self.costs.message - 1) - self.clock[rank]
        if fill and self.pending[rank] and wait > worst - self.waited[rank]:
            self.put_w(rank)
        self.put(which, rank)


def bubble_filling(
    costs: Costs, fill_forward: bool, fill_backward: bool, approved: list[int] | None = None
) -> tuple[Schedule, int]:
    """ZB-V's heuristic, and the longest time that a rank waits after its first F.

    Raises:
        Unfit: it ends without a schedule.
    """
    p, n = costs.ranks, costs.microbatches
    state = _Filling(costs, approved)
    for rank in range(p):
        state.put(0, rank)
    for rank in reversed(range(p)):
        if rank < p - 1:
            comes = state.ends[1][rank + 1][0] + costs.message
            while (
                state.held[rank] + 2 * (2 + 2 * rank) <= 4 * p
                and state.clock[rank] + costs.forward <= comes
                and state.count(0, rank) < n
            ):
                for other in range(rank + 1):
                    state.put(0, other)
        state.put(1, rank)
    which = 0
    for rank in range(1, p):
        while (
            state.count(0, rank) + state.count(1, rank) < state.count(0, rank - 1) + state.count(1, rank - 1)
            or state.count(1, rank) <= state.count(1, rank - 1) < n
        ):
            for other in reversed(range(rank, p)):
                if state.count(which, other) < n:
                    state.put(which, other)
            which = 1 - which
    for _ in range(2 * n):
        _round(state, n, fill_forward, fill_backward)
    for rank in range(p):
        while state.pending[rank]:
            state.put_w(rank)
    worst = max(state.waited)
    best = _schedule(p, state.orders), worst
    if approved is None or worst < max(approved):
        with suppress(Unfit):
            best = min(best, bubble_filling(costs, fill_forward, fill_backward, state.waited), key=lambda each: each[1])
    return best


def _round(state: _Filling, n: int, fill_forward: bool, fill_backward: bool) -> None:
    """One backward on each rank, then one forward where there is one."""
    ranks = range(state.last + 1)
    ups = []  # those whose next backward is of the first chunk
    for rank in ranks:
        if state.count(3, rank) < state.count(2, rank):
            comes = rank == state.last or state.arrival(3, rank) is not None
            if comes or state.count(2, rank) >= n:
                ups.append(rank)
    downs = [rank for rank in ranks if rank not in ups]
    for rank in ranks:
        while state.held[rank] + HELD[2] > 4 * state.costs.ranks:
            state.put_w(rank)
    for rank in reversed(ups):
        state.put_filling(3, rank, True)
    for rank in downs:
        state.put_filling(2, rank, fill_backward)
    for rank in ranks:
        if state.count(1, rank) >= n:
            continue
        first, second = state.count(0, rank), state.count(1, rank)
        if second >= first:
            which = 0
        elif rank == state.last or state.arrival(1, rank) is not None:
            which = 1
        elif first < n and (rank == 0 or state.arrival(0, rank) is not None):
            which = 0
        else:
            continue
        state.put_filling(which, rank, fill_forward)


def patterned(costs: Costs, pattern: list[list[int]]) -> Schedule:
    """The pattern's units per rank and pass, for all microbatches; its ends moved together, then W in what is free."""
    n = costs.microbatches
    starts = [[[unit + UNITS * m for m in range(n)] for unit in row] for row in pattern]
    for with_w in (True, False):
        _move_together(starts, with_w)
    orders = []
    for row in starts:
        timed = [(unit, which, 0, m) for which, units in enumerate(row) for m, unit in enumerate(units)]
        orders.append([each[1:] for each in sorted(timed + _weights(row))])
    return _schedule(costs.ranks, orders)


def _weights(row: list[list[int]]) -> list[tuple[int, int, int, int]]:
    """The W of one rank: each in the first free unit after the backwards before; of two the second chunk's first."""
    taken = {unit for units in row for unit in units}
    ends = sorted((unit, 1 if which == 2 else 0, m) for which in (2, 3) for m, unit in enumerate(row[which]))
    found: list[tuple[int, int, int, int]] = []
    waiting: list[tuple[int, int]] = []
    unit = at = 0
    while at < len(ends) or waiting:
        while at < len(ends) and ends[at][0] < unit:
            insort(waiting, (ends[at][2], 1 - ends[at][1]))
            at += 1
        if waiting and unit not in taken:
            m, chunk = waiting.pop(0)
            found.append((unit, 4, 1 - chunk, m))
        unit += 1
    return found


def _peak(row: list[list[int]]) -> int:
    """What a rank holds at most, W in what is free."""
    events = sorted([(unit, 1) for units in row[:2] for unit in units] + [(unit + 1, -1) for unit, *_ in _weights(row)])
    held = most = 0
    for _, change in events:
        held += change
        most = max(most, held)
    return most


def _move_together(starts: list[list[list[int]]], with_w: bool) -> None:
    """Move what is before the steady part, and behind it, to the first free units within needs and the peak."""
    peak, p = max(map(_peak, starts)), len(starts)
    taken = [{unit for units in row for unit in units} for row in starts]
    steady_from, steady_to = starts[0][3][0], starts[0][0][-1]
    for unit, rank, which, m in sorted(
        (unit, rank, which, m) for rank, row in enumerate(starts) for which, units in enumerate(row) for m, unit in enumerate(units)
    ):
        if steady_from <= unit <= steady_to or (unit < steady_from and not with_w):
            continue
        before = rank - 1 if which % 2 == 0 else rank + 1
        needs = [starts[before][which][m]] if 0 <= before < p else []
        needs += [starts[rank][which - 1][m]] if which else []
        needs += [starts[rank][which][m - 1]] if m else []
        for earlier in range(max(needs, default=-1) + 1, unit):
            if earlier not in taken[rank]:
                starts[rank][which][m] = earlier
                if _peak(starts[rank]) <= peak:
                    taken[rank] = taken[rank] - {unit} | {earlier}
                    break
                starts[rank][which][m] = unit
