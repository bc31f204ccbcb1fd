"""What one microbatch has done for a machine, and what it holds of a rank's memory, at each step of its way there and back.

Takes a frame in which all take one path; gives the steps of the way that matter, the statuses between them as pairs of bytes held
and work done, and the most value that some microbatches' statuses can have together within a memory limit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from operator import add, mul
from typing import TYPE_CHECKING

from schedc.ir import Resource

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from fractions import Fraction

    import numpy as np
    from numpy.typing import NDArray

    from schedc.analysis.bounds.heads_and_tails import Frame

Status = tuple[int, int]
"""Bytes held and nanoseconds of work done, of one microbatch."""
MOST_UNITS = 1000
"""Memory limits are counted in no more units than this; bytes are rounded down to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WayStep:
    """A block or transfer on a microbatch's way. Times are the least of any microbatch, work is the longest."""

    begin_ns: int
    """Least time from the start of the way."""
    end_ns: int
    """The same for its end, if all that lies between is as short as it can be."""
    head_ns: int
    """Least time from the frame's start to its start."""
    tail_ns: int
    """Least time from its end to the frame's end."""
    sent_tail_ns: int = 0
    """Of a gradient part, least time to the frame's end after the end of the block that sends the gradient, B or BW."""
    work_ns: int = 0
    """On the machine."""
    rest_ns: int = 0
    """Work on the machine that may follow at any later time: the rest of a backward."""
    split_price: Fraction | None = None
    """Of a backward on the machine, the least cost of a nanosecond of its W apart (`LeastTimes.split_price`)."""
    all_ns: int = 0
    """`work_ns` and `rest_ns` of all microbatches, each its own."""
    after_ns: int = 0
    """What must follow after the machine's last work, whatever it is: nothing, or a least collective."""
    acquired_bytes: int = 0
    released_bytes: int = 0
    released_by_rest_bytes: int = 0

    def all_sent(self) -> WayStep:
        """The step as if all of a backward's work were done when its gradient is sent."""
        if self.split_price is None:
            return self
        return replace(self, work_ns=self.work_ns + self.rest_ns, rest_ns=0, tail_ns=self.sent_tail_ns)


def trip_of(frame: Frame, machine: Resource, rank: int) -> list[WayStep]:
    """The steps that use the machine or the rank's memory, in order; empty if none uses the machine.

    All microbatches of the frame take one path; the machine is a rank, a link or a trunk.
    """
    way, size = frame.way, len(frame.classes[0].microbatches.path)
    after_ns = min((each.after_weight_ns[at] for each in frame.classes for at in way.positions_on.get(machine, ())), default=0)
    blocks = {at for each in (machine, Resource.of_rank(rank)) for at in way.positions_on.get(each, ())}
    hops = way.hops_on.get(machine, ())
    # In the order of the way: the forward at 2 × its position, the hop behind it one later, the way back from 4 × the size down.
    steps = {2 * at: _block_step(frame, at, True, machine, rank, after_ns) for at in blocks}
    steps |= {4 * size - 2 * at: _block_step(frame, at, False, machine, rank, after_ns) for at in blocks}
    steps |= {(2 * at + 1 if forwards else 4 * size - 2 * at - 1): _hop_step(frame, at, forwards) for at, forwards in hops}
    trip = [steps[place] for place in sorted(steps)]
    return trip if any(step.all_ns for step in trip) else []


def _block_step(frame: Frame, at: int, forward: bool, machine: Resource, rank: int, after_ns: int) -> WayStep:
    problem, classes = frame.problem, frame.classes
    stage = problem.stages[classes[0].microbatches.path[at]]
    costs = [each.microbatches.costs[at] for each in classes]
    durations = [cost.forward_ns if forward else cost.gradient_ns for cost in costs]
    rests = [0 if forward else cost.backward_ns - cost.gradient_ns for cost in costs]
    begin_ns = (frame.way.forward_begin_ns if forward else frame.way.gradient_begin_ns)[at]
    works, returns, holds = Resource.of_rank(stage.rank) == machine, not forward, stage.rank == rank
    kept_bytes = stage.activation_after_input_bytes if problem.split_backward and holds else 0
    all_ns = sum(map(mul, [each.microbatches.count for each in classes], map(add, durations, rests)))
    return WayStep(
        begin_ns=begin_ns,
        end_ns=begin_ns + min(durations),
        head_ns=min((each.forward_head_ns if forward else each.gradient_head_ns)[at] for each in classes),
        tail_ns=min((each.forward_tail_ns if forward else each.gradient_tail_ns)[at] for each in classes),
        sent_tail_ns=min(each.sent_tail_ns[at] for each in classes) if works and returns else 0,
        split_price=min(cost.split_price for cost in costs) if works and returns else None,
        work_ns=max(durations) if works else 0,
        rest_ns=max(rests) if works else 0,
        all_ns=all_ns if works else 0,
        after_ns=after_ns,
        acquired_bytes=stage.activation_bytes if forward and holds else 0,
        released_bytes=stage.activation_bytes - kept_bytes if returns and holds else 0,
        released_by_rest_bytes=kept_bytes if returns else 0,
    )


def _hop_step(frame: Frame, at: int, forward: bool) -> WayStep:
    first, classes = frame.classes[0].microbatches, frame.classes
    hop = first.forward[at] if forward else first.backward[at]
    if forward:
        begin_ns = frame.way.forward_begin_ns[at + 1] - hop.total_ns
        head_ns = min(each.forward_head_ns[at] + each.microbatches.costs[at].forward_ns for each in classes)
        tail_ns = min(each.microbatches.costs[at + 1].forward_ns + each.forward_tail_ns[at + 1] for each in classes)
    else:
        begin_ns = frame.way.gradient_begin_ns[at] - hop.total_ns
        head_ns = min(each.gradient_head_ns[at + 1] + each.microbatches.costs[at + 1].gradient_ns for each in classes)
        tail_ns = min(each.microbatches.costs[at].gradient_ns + each.gradient_tail_ns[at] for each in classes)
    return WayStep(
        begin_ns=begin_ns,
        end_ns=begin_ns + hop.occupancy_ns,
        head_ns=head_ns,
        tail_ns=hop.latency_ns + tail_ns,
        work_ns=hop.occupancy_ns,
        all_ns=frame.microbatches * hop.occupancy_ns,
    )


def statuses_after(steps: Sequence[WayStep]) -> list[list[Status]]:
    """Per number of steps behind a microbatch, 0 to all, what it may hold and have done: with each of the rests done or not.

    Those are left out that no bound needs: others hold no more bytes and have done as much and more, others as little and less.
    """
    found: list[list[Status]] = [[(0, 0)]]
    for step in steps:
        after = {(held + step.acquired_bytes - step.released_bytes, done_ns + step.work_ns) for held, done_ns in found[-1]}
        if step.rest_ns or step.released_by_rest_bytes:
            after |= {(held - step.released_by_rest_bytes, done_ns + step.rest_ns) for held, done_ns in after}
        least = pareto_front((held, -done_ns) for held, done_ns in after)
        found.append(sorted({*pareto_front(after), *((held, -done_ns) for held, done_ns in least)}))
    return found


class Knapsack:
    """The most value that statuses (bytes, value) can have together, by how many of them there are and what room they have.

    An unbounded knapsack; bytes are rounded down to a common unit, so that what fits still fits.
    """

    def __init__(self, statuses: Iterable[Status], limit_bytes: int | None, count: int) -> None:
        """Up to `count` statuses, and room up to this limit; None: there is room for all."""
        import numpy as np

        front = [each for each in pareto_front(statuses) if each[1] > 0 and (limit_bytes is None or each[0] <= limit_bytes)]
        self._front, self._counts = front or [(0, 0)], np.arange(count + 1)
        self._all_bytes = count * self._front[-1][0]
        self._limit_bytes = self._all_bytes if limit_bytes is None else min(self._all_bytes, limit_bytes)

    def most(self, room_bytes: int | None) -> NDArray[np.int64]:
        """Per number of statuses, 0 to `count`, the most value of that many or fewer which fit this room together."""
        if room_bytes is None or self._all_bytes <= room_bytes:
            most: NDArray[np.int64] = self._front[-1][1] * self._counts
        else:
            rows, unit_bytes = self._rows
            most = rows[self._counts.clip(max=len(rows) - 1), room_bytes // unit_bytes]
        return most

    @cached_property
    def _rows(self) -> tuple[NDArray[np.int64], int]:
        """Per number of statuses and units of room, the most value, and a unit's bytes; from the last number on it is the same."""
        import numpy as np

        unit = gcd(*(held for held, _ in self._front))
        if self._limit_bytes // unit > MOST_UNITS:
            unit = -(-self._limit_bytes // MOST_UNITS)
        units = self._limit_bytes // unit
        rows = [np.zeros(units + 1, np.int64)]
        while len(rows) < len(self._counts):
            more = rows[-1].copy()
            for held, value in self._front:
                size = held // unit
                np.maximum(more[size:], rows[-1][: units + 1 - size] + value, out=more[size:])
            if np.array_equal(more, rows[-1]):
                break
            rows.append(more)
        return np.array(rows), unit


def pareto_front(points: Iterable[Status]) -> list[Status]:
    """Those (bytes, value) of which no other has no more bytes and no less value; both ascending."""
    kept: list[Status] = []
    for held, value in sorted(points, key=lambda point: (point[0], -point[1])):
        if not kept or value > kept[-1][1]:
            kept.append((held, value))
    return kept
