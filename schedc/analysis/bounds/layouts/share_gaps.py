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


def _fit(room: Vector, size: Vector, most: int) -> Vector:
    """How many fit, up to `most`; all where they take nothing."""
    fit = np.divide(np.maximum(room, 0), size, out=np.full(room.shape, float(most)), where=size > 0)
    whole: Vector = np.minimum(np.floor(fit), most)  # rounded up, if at all
    return whole


class _Most:
    """The most work that some microbatches can have done, or not done, within the room."""

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

    def done_before(self, step: int) -> list[Vector]:
        """Per number of microbatches none of which has begun the step, the most work that they have done."""
        counts = range(self._microbatches + 1)
        slots = _fit(self.room, self.one, self._microbatches)
        if step == FORWARD:
            return [np.zeros_like(self.room) for _ in counts]
        if step == BACK and self.has_two:
            return [np.minimum(count, slots) * (self.whole - self.back) for count in counts]
        if step in (AGAIN, BACK):
            return [np.minimum(count, slots) * self.forward for count in counts]
        found = [np.zeros_like(self.room) for _ in counts]
        most_both = _fit(self.room, self.both, self._microbatches)
        for n in range(int(most_both.max(initial=0)) + 1):  # that have both of their forwards behind them
            others = _fit(self.room - n * self.both, self.one, self._microbatches)
            for count in counts[n:]:
                here = n * (self.forward + self.again) + np.minimum(count - n, others) * self.forward
                found[count] = np.where(n <= most_both, np.maximum(found[count], here), found[count])
        return found

    def undone_after(self, step: int, count: int, room: Vector) -> Vector:
        """The most work left of `count` microbatches that have the step behind them; -inf without room."""
        if step == BACK:
            return np.where(room >= 0, self._rests(count, 0, room), -np.inf)
        size, work, others = {
            FORWARD: (self.one, self.whole - self.forward, self._rests),
            AGAIN: (self.both, self.backs, self._one_back),
            FIRST_BACK: (self.one, self.back, self._rests),
        }[step]
        found = np.full_like(room, -np.inf)
        for n in range(int(_fit(room, size, count).max(initial=0)) + 1):  # that have done no more than the step
            left = room - n * size
            more = n if step == FIRST_BACK else 0  # whose rests of the second stage are left besides, perhaps
            here = n * work + others(count - n, more, np.maximum(left, 0))
            found = np.where(left >= 0, np.maximum(found, here), found)
        return found

    def _rests(self, count: int, more: int, room: Vector) -> Vector:
        """Of some that have only rests left, which may be in any order, and of some more that have those of the second stage."""
        most = count * self.rests_ns[0] + (count + more) * self.rests_ns[1]
        pieces = _fit(room, self._least_rest, 2 * count + more) * np.maximum(*self.rests_ns)
        return np.minimum(most, np.minimum(pieces, self._times(self._rate, room)))

    def _one_back(self, count: int, _more: int, room: Vector) -> Vector:
        """Of some that have the backward of the first stage left, or rests."""
        return np.minimum(count * (self.back + self.rests_ns[1]), self._times(self._rate_back, room))

    @staticmethod
    def _times(rate: Vector, room: Vector) -> Vector:
        with np.errstate(invalid="ignore"):
            return np.where((room > 0) | np.isinf(rate), rate * np.maximum(room, 1e-300), 0)


def idle_ns(shares: RankShares, microbatches: int) -> Vector:
    """The least time that each of the ranks idles in disjoint gaps, before its last gradient part or after it."""
    most, counts = _Most(shares, microbatches), range(microbatches)
    steps = (FORWARD, AGAIN, FIRST_BACK, BACK) if shares.has_two else (FORWARD, BACK)
    one, both = most.one, most.both
    waits = {
        FORWARD: [(one, most.whole - most.forward)],
        AGAIN: [(both, most.backs)],
        FIRST_BACK: [(one, most.back), (one + most.rests_bytes[1], most.back + most.rests_ns[1])],
    }  # what one that waits behind the step may hold, and have left to do
    into: dict[int, dict[int, list[Vector]]] = {}
    """By step, and the step before or none (-1): what the gap costs, per number of microbatches before."""
    for at, step in enumerate(steps):
        done = most.done_before(step)
        into[step] = {-1: [np.maximum(0, shares.begin_ns[step] - j * most.whole - done[microbatches - j]) for j in counts]}
        for before in steps[:at]:
            away = shares.begin_ns[step] - shares.end_ns[before]
            waiting = [each for other in steps if before <= other < step for each in waits[other]]
            costs = []
            for j in counts:
                undone = np.max([work + most.undone_after(before, j, most.room - held) for held, work in waiting], axis=0)
                most_work = np.maximum(0, done[microbatches - j] + undone - most.whole)
                costs.append(np.maximum(0, away - most_work))
            into[step][before] = costs
    held = {FORWARD: one, AGAIN: both, FIRST_BACK: one}
    between = {
        (before, step): np.maximum(
            1, _fit(most.room, np.min([held[other] for other in steps if before <= other < step], axis=0), microbatches)
        ).astype(np.int64)
        for at, step in enumerate(steps)
        for before in steps[:at]
    }  # how many microbatches can be between the two
    idle = {step: np.zeros((microbatches, *one.shape)) for step in steps}
    best, columns = np.zeros_like(one), np.arange(one.size)
    for j in counts:
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
            undone = most.undone_after(step, j + 1, most.room)
            last = shares.tail_ns[step] - ((microbatches - 1 - j) * most.whole + undone)
            best = np.maximum(best, ended[step] + np.maximum(0, last))
    return best
