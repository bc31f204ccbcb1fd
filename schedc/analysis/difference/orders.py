"""How the queues of one rank differ between two plans of the same shape: which ops moved, and how far.

The ops that both queues have are two orders of the same ops. As many of them as can be keep their order: a longest sequence of ops
that both queues have in the same order. All others moved, each by as many places as there are ops of that sequence that it passed.
So one op that is put elsewhere is one that moved, however many it passes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from schedc.ir import Kind, Op, RankPlan

if TYPE_CHECKING:
    from collections.abc import Sequence


Entry: TypeAlias = "tuple[Op, int]"
"""An op, and how often the queue has had it before, which is 0 in a sound plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOrder:
    """What is different in the queues of one rank. An op of one queue alone has not moved."""

    rank: int
    ops: int
    """How many compute ops both queues have."""
    moved: int = 0
    first: Op | None = None
    """Of the ops that moved, the one that is first in either queue."""
    first_places: int = 0
    """How far it moved; below 0: to an earlier place."""
    most_places: int = 0
    """How far an op moved at most, in either direction."""
    fused: int = 0
    """Backwards that were B and W, and are BW now."""
    split: int = 0
    """Backwards that were BW, and are B and W now."""
    recut: int = 0
    """Blocks of the same kind that are cut into other parts."""
    channels: bool = False
    """Whether transfers, or the places where receives are posted, differ."""
    collectives: bool = False
    """Whether collectives differ."""


def compare_queues(before: RankPlan, after: RankPlan) -> RankOrder | None:
    """What is different in the queues of a rank; None: nothing is."""
    if before == after:
        return None
    ours, theirs = _entries(before.compute), _entries(after.compute)
    place = {entry: index for index, entry in enumerate(theirs)}
    common = [entry for entry in ours if entry in place]
    moved = _moved(common, sorted(common, key=place.__getitem__)) if ours != theirs else {}
    fused, split, recut = _blocks_that_differ(ours, theirs)
    at = {entry: index for index, entry in enumerate(ours)}
    first = min(moved, key=lambda entry: (min(at[entry], place[entry]), entry), default=None)
    return RankOrder(
        rank=before.rank,
        ops=len(common),
        moved=len(moved),
        first=None if first is None else first[0],
        first_places=0 if first is None else moved[first],
        most_places=max(map(abs, moved.values()), default=0),
        fused=fused,
        split=split,
        recut=recut,
        channels=before.channels != after.channels,
        collectives=before.collectives != after.collectives,
    )


def _entries(queue: Sequence[Op]) -> list[Entry]:
    count: dict[Op, int] = defaultdict(int)
    entries = []
    for op in queue:
        entries.append((op, count[op]))
        count[op] += 1
    return entries


def _moved(before: Sequence[Entry], after: Sequence[Entry]) -> dict[Entry, int]:
    """The ops that moved, and how far, of two orders of the same ops."""
    place = {entry: index for index, entry in enumerate(after)}
    kept = _kept(before, place)
    passed_before, passed_after = (
        dict(zip(order, accumulate(entry in kept for entry in order), strict=True)) for order in (before, after)
    )  # per op, how many ops that keep their order are before it, or are itself
    return {entry: passed_after[entry] - passed_before[entry] for entry in before if entry not in kept}


def _kept(before: Sequence[Entry], place: dict[Entry, int]) -> set[Entry]:
    """A longest sequence of ops that both orders have in the same order.

    Of several, the one that is built from its end by ops that are the least far from their old place, then by their names: so it
    is the same sequence whichever of the two orders comes first.
    """
    least_end: list[int] = []  # per length, the earliest place where a sequence of this length can end
    ends: list[list[tuple[int, int, Entry]]] = []  # per length, the ops with which such a sequence can end, longest ones
    for index, entry in enumerate(before):
        length = bisect_left(least_end, place[entry])
        if length == len(least_end):
            least_end.append(place[entry])
            ends.append([])
        least_end[length] = place[entry]
        ends[length].append((index, place[entry], entry))
    kept: set[Entry] = set()
    bound = (len(before), len(before))
    for candidates in reversed(ends):
        fitting = [each for each in candidates if each[0] < bound[0] and each[1] < bound[1]]
        index, there, entry = min(fitting, key=lambda each: (abs(each[0] - each[1]), each[2]))
        kept.add(entry)
        bound = (index, there)
    return kept


def _blocks_that_differ(before: Sequence[Entry], after: Sequence[Entry]) -> tuple[int, int, int]:
    """How many backwards were fused, how many split, and how many blocks of the same kind have other parts."""
    ours, theirs = _parts_of_blocks(before), _parts_of_blocks(after)
    differing = [block for block in ours.keys() | theirs.keys() if ours.get(block) != theirs.get(block)]
    backwards = {(stage, microbatch) for kind, stage, microbatch in differing if kind is Kind.BW}
    fused = {block for block in backwards if (Kind.BW, *block) not in ours and (Kind.B, *block) in ours}
    split = {block for block in backwards if (Kind.BW, *block) not in theirs and (Kind.B, *block) in theirs}
    recut = [block for block in differing if block[0] is Kind.F or block[1:] not in fused | split]
    return len(fused), len(split), len(recut)


def _parts_of_blocks(entries: Sequence[Entry]) -> dict[tuple[Kind, int, int], set[tuple[int, int]]]:
    parts: dict[tuple[Kind, int, int], set[tuple[int, int]]] = defaultdict(set)
    for op, count in entries:
        parts[op.kind, op.stage, op.microbatch].add((op.part, count))
    return dict(parts)
