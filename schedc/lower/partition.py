"""The balanced partition of a workload's layers in a placement: the work of the rank with the most is as little as it can be.

Takes, for each piece of the chain, what it adds to the ranks that have it if it is layers i to j: matrices [i, j]. Gives
the cuts. Where each rank has one piece, the result is exact, by dynamic programming over the pieces. Among the cuts whose largest
load is least, the sum of the squares of the loads is least, and then earlier pieces are longer. Where ranks have several pieces,
this is as hard as dividing numbers into equal sums. It is exact there where all cuts can be tried; else cuts are moved until
no move makes it better.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise
from math import comb
from typing import TYPE_CHECKING

import numpy as np

from schedc.ir import Placement, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from numpy.typing import NDArray


_MOST_CELLS = 2**25
"""Above this many pieces × layers², the pieces get equal numbers of layers."""
_LEVELS = 2**20
"""Loads are compared by their squares in this many steps of the largest load, exactly, as whole numbers."""
_NEVER = np.int64(2**60)
_MOST_TRIED = 2**14
"""This many cuts are tried at once."""


def balanced_partition(
    workload: Workload, placed: Placement, recomputed: frozenset[int], *, in_slices: bool = False
) -> tuple[tuple[int, int], ...]:
    """Per stage, its layers [first, last).

    The work of a stage is that of its blocks in one step, each backward as the cheaper of BW and B with W, on its rank's device. If
    it can be had, every rank has room for what its stages hold all the time and as many microbatches as 1F1B has in flight there
    (`in_flight_of_1f1b`); else for one microbatch in each stage; else room does not count. In slices, few of which are in flight
    besides, the second comes first. The layers are one model, in order, at least as many as the placement has pieces; stages in
    `recomputed` recompute; `in_slices`: whole microbatches will be cut.
    """
    pieces, count = placed.pieces, len(workload.layers)
    cuts: tuple[int, ...] | None = None
    if pieces * count * count <= _MOST_CELLS and pieces > 1:
        chain = _Chain(workload, placed, recomputed)
        levels = (in_flight_of_1f1b(placed, workload.microbatches), (1,) * len(placed.rank_of_stage), None)
        for in_flight in levels[1:] if in_slices or workload.slices else levels:
            cuts = _balanced_cuts(chain.pieces(in_flight), chain.room_bytes if in_flight else np.full(workload.ranks, np.inf))
            if cuts is not None:
                break
    if cuts is None:
        cuts = tuple(piece * (count // pieces) + min(piece, count % pieces) for piece in range(pieces + 1))
    bounds = list(pairwise(cuts))
    return tuple(bounds[piece] for piece in placed.piece_of_stage)


def in_flight_of_1f1b(placed: Placement, microbatches: int) -> tuple[int, ...]:
    """Per stage, how many microbatches lie between its F and its backward where all stages take the same time.

    A microbatch comes back after twice as many stage times as there are stages from here on, and meanwhile the rank begins one for
    each of its stages in every two: 1F1B's p − i where each rank has one stage.
    """
    of_rank, of_path = Counter(placed.rank_of_stage), Counter(placed.path_of(microbatches))
    found = [0] * len(placed.rank_of_stage)
    for number, path in enumerate(placed.paths):
        for position, stage in enumerate(path):
            waits = -(-(len(path) - position) // of_rank[placed.rank_of_stage[stage]])
            found[stage] = min(waits, of_path[number])
    return tuple(found)


class _Chain:
    """What any layers in a row cost as a stage, as matrices [first, last]."""

    def __init__(self, workload: Workload, placed: Placement, recomputed: frozenset[int]) -> None:
        self._workload, self._placed, self._recomputed = workload, placed, recomputed
        layers = workload.layers
        self._activation = _sums([layer.activation_bytes for layer in layers])
        self._weights = _sums([layer.static_bytes for layer in layers])
        self._input = np.array([0, *(layer.message_bytes for layer in layers)], np.float64)[:, None]
        self._loads: dict[tuple[int, bool, Fraction], NDArray[np.float64]] = {}
        limits = (each.limit_bytes if each.capacity_bytes is None else each.capacity_bytes for each in workload.devices)
        self.room_bytes = np.array([np.inf if limit is None else limit for limit in limits])
        """Of each rank; infinity where a number of microbatches or nothing limits it."""

    def pieces(self, in_flight: Sequence[int] | None) -> list[list[_Share]]:
        """Per piece, what it adds to the ranks that have it, with this many microbatches in flight in each stage; None: any."""
        placed, workload = self._placed, self._workload
        found: list[list[_Share]] = [[] for _ in range(placed.pieces)]
        path_of_stage = {stage: number for number, path in enumerate(placed.paths) for stage in path}
        for stage, (rank, piece) in enumerate(zip(placed.rank_of_stage, placed.piece_of_stage, strict=True)):
            again = stage in self._recomputed
            held, once = self._activation, np.zeros_like(self._activation)
            if again:
                held, once = self._input + once, self._activation
            held = held * (in_flight[stage] if in_flight else 0)
            if workload.devices[rank].capacity_bytes is not None:
                held = held + self._weights + workload.static_bytes[stage if len(workload.static_bytes) > 1 else 0]
            load = self._load(path_of_stage[stage], again, workload.devices[rank].speed)
            found[piece].append(_Share(rank=rank, load=load, held_bytes=held, once_bytes=once))
        return found

    def _load(self, path: int, again: bool, speed: Fraction) -> NDArray[np.float64]:
        """The nanoseconds of one step on a device of this speed, of the microbatches of a path; the same array each time."""
        if (path, again, speed) not in self._loads:
            workload = self._workload
            path_of = self._placed.path_of(workload.microbatches)
            own = [microbatch for microbatch, number in enumerate(path_of) if number == path]

            def total_ns(values: tuple[int, ...]) -> int:
                return len(own) * values[0] if len(values) == 1 else sum(values[microbatch] for microbatch in own)

            layers = workload.layers
            load = _sums([total_ns(layer.forward_ns) for layer in layers])
            fused = _sums([total_ns(layer.backward_ns) for layer in layers])
            apart = _sums([total_ns(layer.backward_input_ns) + total_ns(layer.backward_weight_ns) for layer in layers])
            load = load + (np.minimum(fused, apart) if workload.split_backward else fused)
            if again:
                load = load + _sums([total_ns(layer.forward_again_ns or layer.forward_ns) for layer in layers])
            self._loads[path, again, speed] = load / float(speed)
        return self._loads[path, again, speed]


def _sums(values: Sequence[int]) -> NDArray[np.float64]:
    """[first, last]: the sum of values [first, last). Exact below 2^53."""
    up_to = np.array([0, *accumulate(values)], np.float64)
    return up_to[None, :] - up_to[:, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """What one piece adds to one rank. Matrices [first, last] of the piece's layers [first, last)."""

    rank: int
    load: NDArray[np.float64]
    held_bytes: NDArray[np.float64]
    once_bytes: NDArray[np.float64]
    """Needed besides, but on each rank for one piece at a time: for the one where it is most."""


def _balanced_cuts(pieces: Sequence[Sequence[_Share]], room_bytes: NDArray[np.float64]) -> tuple[int, ...] | None:
    """Where each piece begins, and the end: one more than there are pieces.

    Args:
        pieces: per piece its shares, two where two paths have it; at least one piece. The matrices have one row and column more
            than there are layers, of which there are at least as many as pieces.
        room_bytes: of each rank; infinity: without limit.

    Returns:
        The cuts, or None where no cuts were found for which every rank has room.
    """
    of_rank = np.bincount([share.rank for piece in pieces for share in piece], minlength=len(room_bytes))
    alone = all(of_rank[share.rank] == 1 for piece in pieces for share in piece)
    loads = []
    for piece in pieces:
        load = piece[0].load
        if not alone:
            load = np.max([share.load * of_rank[share.rank] for share in piece], axis=0)
        elif np.isfinite(room_bytes[piece[0].rank]):
            load = np.where(piece[0].held_bytes + piece[0].once_bytes <= room_bytes[piece[0].rank], load, np.inf)
        loads.append(load)
    cuts = _least_largest(loads)
    if cuts is None or alone:
        return cuts
    last = len(loads[0]) - 1
    if comb(last - 1, len(pieces) - 1) <= _MOST_TRIED:
        inner = [[0, *between, last] for between in combinations(range(1, last), len(pieces) - 1)]
        cuts, without_room = _best_of(np.array([cuts, *inner]), pieces, room_bytes)
    else:
        cuts, without_room = _moved(cuts, pieces, room_bytes)
    return None if without_room else cuts


def _least_largest(loads: Sequence[NDArray[np.float64]]) -> tuple[int, ...] | None:
    """The cuts for which the largest load of a piece is least; None where a piece always has an infinite one."""
    last = len(loads[0]) - 1
    upper = np.triu(np.ones_like(loads[0], dtype=bool), 1)  # a piece has one layer or more
    distinct = {id(load): np.where(upper, load, np.inf) for load in loads}
    largest = np.full(last + 1, np.inf)
    largest[0] = 0
    for load in loads:
        largest = np.maximum(largest[:, None], distinct[id(load)]).min(axis=0)
    if not np.isfinite(largest[last]):
        return None
    squared = {}
    for name, load in distinct.items():
        able = load <= largest[last]
        squared[name] = np.where(able, _levels(np.where(able, load, 0), largest[last]) ** 2, _NEVER)
    squares = np.full(last + 1, _NEVER)
    squares[0] = 0
    begins: list[NDArray[np.int64]] = []
    for load in loads:
        sums = squares[:, None] + squared[id(load)]
        begins.append(last - np.argmin(sums[::-1], axis=0))  # of equal ones the last, so that earlier pieces are longer
        squares = np.minimum(sums.min(axis=0), _NEVER)
    cuts = [last]
    for begin in reversed(begins):
        cuts.append(int(begin[cuts[-1]]))
    return tuple(reversed(cuts))


def _levels(loads: NDArray[np.float64], largest: float) -> NDArray[np.int64]:
    """The loads in steps of the largest one."""
    return np.rint(loads / (max(float(largest), 1e-9) / _LEVELS)).astype(np.int64)


def _moved(
    start: tuple[int, ...], pieces: Sequence[Sequence[_Share]], room_bytes: NDArray[np.float64]
) -> tuple[tuple[int, ...], float]:
    """The cuts after the best moves, one after another, until none makes them better; and how many bytes have no room."""
    moves, cuts = _moves(len(start)), np.array(start)
    while True:
        tried = np.concatenate([cuts[None], cuts + moves])  # the first wins where others are only as good
        found, without_room = _best_of(tried[(np.diff(tried, axis=1) > 0).all(axis=1)], pieces, room_bytes)
        if found == tuple(cuts.tolist()):
            return found, without_room
        cuts = np.array(found)


def _best_of(
    cuts: NDArray[np.int64], pieces: Sequence[Sequence[_Share]], room_bytes: NDArray[np.float64]
) -> tuple[tuple[int, ...], float]:
    """The row with the fewest bytes without room, then the least largest load, then the least sum of squares; and those bytes.

    Of equal ones the first.
    """
    shape = (len(cuts), len(room_bytes))
    loads, held, once = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    limited = np.isfinite(room_bytes)
    for number, piece in enumerate(pieces):
        first, last = cuts[:, number], cuts[:, number + 1]
        for share in piece:
            loads[:, share.rank] += share.load[first, last]
            if limited[share.rank]:
                held[:, share.rank] += share.held_bytes[first, last]
                once[:, share.rank] = np.maximum(once[:, share.rank], share.once_bytes[first, last])
    without_room = np.maximum(held + once - room_bytes, 0).sum(axis=1)
    largest = loads.max(axis=1)
    levels = _levels(loads, largest[0])
    best = np.lexsort(((levels * levels).sum(axis=1), largest, without_room))[0]
    return tuple(cuts[best].tolist()), float(without_room[best])


def _moves(count: int) -> NDArray[np.int64]:
    """By how much each cut moves, neither the first nor the last of all: neighbouring ones together, and any two, by one layer.

    Moving all cuts from one to another takes a layer from one piece to another one far away.
    """
    inner = range(1, count - 1)
    pairs = [(a, b) for a in inner for b in inner if a <= b]
    if 6 * len(pairs) > _MOST_TRIED:
        pairs = [(a, a) for a in inner]
    moves = np.zeros((6, len(pairs), count), np.int64)
    for number, (a, b) in enumerate(pairs):
        moves[0, number, a : b + 1], moves[1, number, a : b + 1] = 1, -1
        for row, (one, other) in enumerate(((1, 1), (1, -1), (-1, 1), (-1, -1)), start=2):
            moves[row, number, a], moves[row, number, b] = one, other
    return moves.reshape(-1, count)
