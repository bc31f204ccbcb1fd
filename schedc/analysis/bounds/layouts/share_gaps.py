"""What a rank with one stage or two must idle while microbatches are away from it and memory keeps others out, for many such ranks.

Takes what stages cost as arrays, one value for each rank; gives the least idle time of each. The argument is that of
`chunk_idle_gap_bound`, which has the proof, for a rank under its own limit; it shares no code with that, as it is for thousands of
ranks at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    Counts = NDArray[np.int64]

FORWARD, AGAIN, FIRST_BACK, BACK = range(4)
"""The steps of a microbatch on a rank: F of its stages, then their gradient parts in the other order; one stage: the outer two."""
MORE = 1 + 1e-12
"""What is divided is rounded up by this factor, which is more than floats lose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShares:
    """What some ranks have: a stage, and where `has_two` another one behind it, whose times and bytes are 0 otherwise.

    A pair has the values of the two stages. Work is the longest of any microbatch, times on the way are the least.
    """

    has_two: bool
    room_bytes: Vector
    forward_ns: tuple[Vector, Vector]
    gradient_ns: tuple[Vector, Vector]
    """Work of the part of the backward that the gradient waits for."""
    rest_ns: tuple[Vector, Vector]
    by_gradient_bytes: tuple[Vector, Vector]
    by_rest_bytes: tuple[Vector, Vector]
    begin_ns: Sequence[Vector]
    """Per step, least time from the step's begin on the first rank, as is `end_ns`."""
    end_ns: Sequence[Vector]
    tail_ns: Sequence[Vector]
    """Per step, least time from its end to that of the last gradient part."""


def _fit(room: Vector, size: Vector, most: int | Counts) -> Vector:
    """How many of this size fit in the room, up to `most`; that many where they take nothing."""
    fit = np.divide(np.maximum(room, 0), size, out=np.full(room.shape, np.inf), where=size > 0)
    whole: Vector = np.minimum(np.floor(fit), most)  # rounded up, if at all
    return whole


class _Most:
    """The most work, in ns, that some microbatches can have done, or have left to do, while a rank holds what `room` allows.

    One value for each rank. `one`, `both` and `room` are bytes: what a microbatch holds after the forward of the first stage, and
    after both forwards, and what the rank may hold. The rest is work in ns: `forward` and `again` of the two forwards, `back` of
    the first stage's backward, `backs` of both, and `whole` of all.
    """

    def __init__(self, shares: RankShares, microbatches: int) -> None:
        self._microbatches, self.room = microbatches, shares.room_bytes
        one, other = (g + r for g, r in zip(shares.by_gradient_bytes, shares.by_rest_bytes, strict=True))
        self.rests_bytes, self.rests_ns = shares.by_rest_bytes, shares.rest_ns
        self.forward, self.again = shares.forward_ns
        self.whole = sum((*shares.forward_ns, *shares.gradient_ns, *shares.rest_ns), np.zeros_like(self.room))
        self.back = shares.gradient_ns[0] + shares.rest_ns[0]
        self.backs = self.back + shares.gradient_ns[1] + shares.rest_ns[1]
        self.has_two, self.one, self.both = shares.has_two, one, one + other
        with np.errstate(divide="ignore", invalid="ignore"):  # rests that take no room are as many as may be
            rates = [np.where(ns > 0, ns / size * MORE, 0) for ns, size in zip(self.rests_ns, self.rests_bytes, strict=True)]
            self._rate = np.maximum(*rates)
            self._rate_back = np.maximum(self._rate, np.where(self.back > 0, self.back / one * MORE, 0))
        sizes = [np.where(ns > 0, size, np.inf) for ns, size in zip(self.rests_ns, self.rests_bytes, strict=True)]
        least = np.minimum(*sizes)
        self._least_rest = np.where(np.isinf(least), 0, least)

    def done_before(self, step: int) -> Vector:
        """The most work that n microbatches have done, none of which has begun the step; [n from 0 to all microbatches, ranks]."""
        counts = np.arange(self._microbatches + 1)[:, None]
        slots = _fit(self.room, self.one, self._microbatches)
        if step == FORWARD:
            return np.zeros((counts.size, slots.size))
        if step == BACK and self.has_two:
            most: Vector = np.minimum(counts, slots) * (self.whole - self.back)
            return most
        found: Vector = np.minimum(counts, slots) * self.forward
        if step in (AGAIN, BACK):
            return found
        most_both = _fit(self.room, self.both, self._microbatches)
        for n in range(1, int(most_both.max(initial=0)) + 1):  # that have both of their forwards behind them
            others = np.minimum(counts[n:] - n, _fit(self.room - n * self.both, self.one, self._microbatches))
            here = n * (self.forward + self.again) + others * self.forward
            found[n:] = np.where(n <= most_both, np.maximum(found[n:], here), found[n:])
        return found

    def undone_after(self, step: int, counts: Counts, room: Vector) -> Vector:
        """The most work left of n microbatches that have ended the step, -inf where there is no room; [counts, ranks].

        `counts` is a column of n, each one more than the last.
        """
        if step == BACK:
            return np.where(room >= 0, self._rests(counts, 0, room), -np.inf)
        size, work, others = {
            FORWARD: (self.one, self.whole - self.forward, self._rests),
            AGAIN: (self.both, self.backs, self._one_back),
            FIRST_BACK: (self.one, self.back, self._rests),
        }[step]
        found = np.full((counts.size, room.size), -np.inf)
        for n in range(int(_fit(room, size, int(counts[-1, 0])).max(initial=0)) + 1):  # that have done no more than the step
            left, first = room - n * size, int(np.searchsorted(counts[:, 0], n))  # the first count of n or more
            more = n if step == FIRST_BACK else 0  # whose rests of the second stage are left besides, perhaps
            here = n * work + others(counts[first:] - n, more, np.maximum(left, 0))
            found[first:] = np.where(left >= 0, np.maximum(found[first:], here), found[first:])
        return found

    def _rests(self, counts: Counts, more: int, room: Vector) -> Vector:
        """Of some that have only rests left, which may be in any order, and of some more that have those of the second stage."""
        most = counts * self.rests_ns[0] + (counts + more) * self.rests_ns[1]
        pieces = _fit(room, self._least_rest, 2 * counts + more) * np.maximum(*self.rests_ns)
        return np.minimum(most, np.minimum(pieces, self._times(self._rate, room)))

    def _one_back(self, counts: Counts, _more: int, room: Vector) -> Vector:
        """Of some that have the backward of the first stage left, or rests."""
        return np.minimum(counts * (self.back + self.rests_ns[1]), self._times(self._rate_back, room))

    @staticmethod
    def _times(rate: Vector, room: Vector) -> Vector:
        with np.errstate(invalid="ignore"):
            return np.where((room > 0) | np.isinf(rate), rate * np.maximum(room, 1e-300), 0)


def idle_ns(shares: RankShares, microbatches: int) -> Vector:
    """The least time that each of the ranks idles in disjoint gaps, before its last gradient part or after it."""
    most, counts = _Most(shares, microbatches), np.arange(microbatches)[:, None]
    steps = (FORWARD, AGAIN, FIRST_BACK, BACK) if shares.has_two else (FORWARD, BACK)
    one, both = most.one, most.both
    waits = {
        FORWARD: [(one, most.whole - most.forward)],
        AGAIN: [(both, most.backs)],
        FIRST_BACK: [(one, most.back), (one + most.rests_bytes[1], most.back + most.rests_ns[1])],
    }  # by a step, what a microbatch that has ended it and waits for the next one may hold (bytes), and have left to do (ns)
    into: dict[int, dict[int, Vector]] = {}
    """By a step, and the one before the gap (-1: none): what the gap costs in ns, [microbatches that come before it, ranks]."""
    undone: dict[int, Vector] = {}
    """By the step before the gap, the most work left of n that have ended it, one of which waits for the step; [n, ranks].

    With each further step, one more place where that one may wait."""
    for at, step in enumerate(steps):
        done = most.done_before(step)[:0:-1]  # of all that do not come before the gap, so from most to fewest
        into[step] = {-1: np.maximum(0, shares.begin_ns[step] - counts * most.whole - done)}
        for before in steps[:at]:
            away = shares.begin_ns[step] - shares.end_ns[before]
            for held_bytes, work in waits[steps[at - 1]]:
                here = work + most.undone_after(before, counts, most.room - held_bytes)
                undone[before] = np.maximum(undone[before], here) if before in undone else here
            into[step][before] = np.maximum(0, away - np.maximum(0, done + undone[before] - most.whole))
    held = {FORWARD: one, AGAIN: both, FIRST_BACK: one}
    between = {
        (before, step): np.maximum(
            1, _fit(most.room, np.min([held[other] for other in steps if before <= other < step], axis=0), microbatches)
        ).astype(np.int64)
        for at, step in enumerate(steps)
        for before in steps[:at]
    }  # how many microbatches can be between the two
    after = {step: shares.tail_ns[step] - most.undone_after(step, counts + 1, most.room) for step in steps}
    idle = {step: np.zeros((microbatches, *one.shape)) for step in steps}
    best, columns = np.zeros_like(one), np.arange(one.size)
    for j in range(microbatches):
        ended = {-1: np.zeros_like(one)}
        for at, step in enumerate(steps):
            here = idle[step][j - 1] if j else np.zeros_like(one)
            for before, known in ended.items():
                here = np.maximum(here, known + into[step][before][j])
            idle[step][j] = here
            ended[step] = np.max([idle[other][j] for other in steps[: at + 1]], axis=0)
            for later in steps[at + 1 :]:
                earlier = j - between[step, later]
                then = np.where(earlier >= 0, idle[later][np.maximum(earlier, 0), columns], 0)
                ended[step] = np.maximum(ended[step], then)
            last = after[step][j] - (microbatches - 1 - j) * most.whole
            best = np.maximum(best, ended[step] + np.maximum(0, last))
    return best
