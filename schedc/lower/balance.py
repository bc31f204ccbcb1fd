"""Cutting a chain of layers into pieces so that the rank with the most work has as little as possible.

Takes, for each piece, what it adds to the ranks that have it if it is layers i to j: matrices [i, j]. Gives the cuts.
Where each rank has one piece, the result is exact, by dynamic programming over the pieces. Among the cuts whose largest load is
least, the sum of the squares of the loads is least, and then earlier pieces are longer. Where ranks have several pieces, this is as
hard as dividing numbers into equal sums. There the result is exact where all cuts can be tried; else cuts are moved until no move
makes it better.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_LEVELS = 2**20
"""Loads are compared by their squares in this many steps of the largest load, exactly, as whole numbers."""
_NEVER = np.int64(2**60)
_MOST_TRIED = 2**14
"""This many cuts are tried at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one piece adds to one rank. Matrices [first, last] of the piece's layers [first, last)."""

    rank: int
    load: NDArray[np.float64]
    held_bytes: NDArray[np.float64]
    once_bytes: NDArray[np.float64]
    """Needed besides, but on each rank for one piece at a time: for the one where it is most."""


def balanced_cuts(pieces: Sequence[Sequence[Share]], room_bytes: NDArray[np.float64]) -> tuple[int, ...] | None:
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
    unit = _unit(largest[last])
    squared = {}
    for name, load in distinct.items():
        able = load <= largest[last]
        squared[name] = np.where(able, _levels(np.where(able, load, 0), unit) ** 2, _NEVER)
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


def _unit(largest: float) -> float:
    return max(float(largest), 1e-9) / _LEVELS


def _levels(loads: NDArray[np.float64], unit: float) -> NDArray[np.int64]:
    return np.rint(loads / unit).astype(np.int64)


def _moved(
    start: tuple[int, ...], pieces: Sequence[Sequence[Share]], room_bytes: NDArray[np.float64]
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
    cuts: NDArray[np.int64], pieces: Sequence[Sequence[Share]], room_bytes: NDArray[np.float64]
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
    levels = _levels(loads, _unit(largest[0]))
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
