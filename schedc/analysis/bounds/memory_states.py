"""What one microbatch has done for a machine, and what it holds of a rank's memory, at each step of its way there and back.

Takes the frames of one path; gives the steps of the way that matter, the statuses between them as pairs of bytes held and work
done, and the most value that some microbatches' statuses can have together within a memory limit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from typing import TYPE_CHECKING

from schedc.ir.resource import Resource

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from fractions import Fraction

    import numpy as np
    from numpy.typing import NDArray

    from schedc.analysis.bounds.heads_and_tails import HeadsAndTails
    from schedc.ir.problem import Problem

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrip:
    """The least times along a path there and back, and where on it each machine is used; so that a trip need not walk all of it."""

    forward_begin_ns: tuple[int, ...]
    """Per position, from the start of the way. Durations are the least of any microbatch."""
    gradient_begin_ns: tuple[int, ...]
    positions_on: dict[Resource, list[int]]
    """Per rank, the positions of its stages."""
    hops_on: dict[Resource, list[tuple[int, bool]]]
    """Per link or trunk, the hops that use it: their position, and whether they lead forwards."""
    stages_on: Counter[int]
    """Per rank, how many stages it has, on this path or another."""


def way_of(problem: Problem, frames: Sequence[HeadsAndTails]) -> RoundTrip:
    """The way of the microbatches of one path; `frames` are those of one observer, all classes of microbatches."""
    microbatches, positions = frames[0].microbatches, frames[0].positions()
    now_ns = 0
    forward, gradient = [0] * len(microbatches.path), [0] * len(microbatches.path)
    positions_on: dict[Resource, list[int]] = {}
    hops_on: dict[Resource, list[tuple[int, bool]]] = {}
    for at in positions:
        forward[at] = now_ns
        now_ns += min(frame.microbatches.costs[at].forward_ns for frame in frames)
        positions_on.setdefault(Resource.of_rank(problem.stages[microbatches.path[at]].rank), []).append(at)
        if at < len(microbatches.path) - 1:
            now_ns += microbatches.forward[at].total_ns
            for hop, forwards in ((microbatches.forward[at], True), (microbatches.backward[at], False)):
                if hop.resource is not None:
                    hops_on.setdefault(hop.resource, []).append((at, forwards))
    for at in reversed(positions):
        if at < len(microbatches.path) - 1:
            now_ns += microbatches.backward[at].total_ns
        gradient[at] = now_ns
        now_ns += min(frame.microbatches.costs[at].gradient_ns for frame in frames)
    return RoundTrip(
        forward_begin_ns=tuple(forward),
        gradient_begin_ns=tuple(gradient),
        positions_on=positions_on,
        hops_on=hops_on,
        stages_on=Counter(stage.rank for stage in problem.stages),
    )


def trip_of(problem: Problem, frames: Sequence[HeadsAndTails], way: RoundTrip, machine: Resource, rank: int) -> list[WayStep]:
    """The steps that use the machine or the rank's memory, in order; empty if none uses the machine.

    Args:
        problem: whose microbatches all take one path.
        frames: of one observer, all classes of microbatches.
        way: of these frames.
        machine: a rank, a link or a trunk.
        rank: whose memory counts.
    """
    size = len(frames[0].microbatches.path)
    after_ns = min((frame.after_weight_ns[at] for frame in frames for at in way.positions_on.get(machine, ())), default=0)
    blocks = {at for each in (machine, Resource.of_rank(rank)) for at in way.positions_on.get(each, ())}
    hops = way.hops_on.get(machine, ())
    # In the order of the way: the forward at 2 × its position, the hop behind it one later, the way back from 4 × the size down.
    steps = {2 * at: _block_step(problem, frames, way, at, True, machine, rank, after_ns) for at in blocks}
    steps |= {4 * size - 2 * at: _block_step(problem, frames, way, at, False, machine, rank, after_ns) for at in blocks}
    steps |= {(2 * at + 1 if forwards else 4 * size - 2 * at - 1): _hop_step(frames, way, at, forwards) for at, forwards in hops}
    trip = [steps[place] for place in sorted(steps)]
    return trip if any(step.all_ns for step in trip) else []


def _block_step(
    problem: Problem,
    frames: Sequence[HeadsAndTails],
    way: RoundTrip,
    at: int,
    forward: bool,
    machine: Resource,
    rank: int,
    after_ns: int,
) -> WayStep:
    stage = problem.stages[frames[0].microbatches.path[at]]
    costs = [frame.microbatches.costs[at] for frame in frames]
    durations = [cost.forward_ns if forward else cost.gradient_ns for cost in costs]
    rests = [0 if forward else cost.backward_ns - cost.gradient_ns for cost in costs]
    begin_ns = (way.forward_begin_ns if forward else way.gradient_begin_ns)[at]
    works, holds = Resource.of_rank(stage.rank) == machine, stage.rank == rank
    kept_bytes = stage.activation_after_input_bytes if problem.split_backward and holds else 0
    all_ns = sum(
        frame.microbatches.count * (duration_ns + rest_ns)
        for frame, duration_ns, rest_ns in zip(frames, durations, rests, strict=True)
    )
    return WayStep(
        begin_ns=begin_ns,
        end_ns=begin_ns + min(durations),
        head_ns=min((frame.forward_head_ns if forward else frame.gradient_head_ns)[at] for frame in frames),
        tail_ns=min((frame.forward_tail_ns if forward else frame.gradient_tail_ns)[at] for frame in frames),
        sent_tail_ns=min(frame.sent_tail_ns[at] for frame in frames) if works and not forward else 0,
        split_price=min(cost.split_price for cost in costs) if works and not forward else None,
        work_ns=max(durations) if works else 0,
        rest_ns=max(rests) if works else 0,
        all_ns=all_ns if works else 0,
        after_ns=after_ns,
        acquired_bytes=stage.activation_bytes if forward and holds else 0,
        released_bytes=stage.activation_bytes - kept_bytes if holds and not forward else 0,
        released_by_rest_bytes=0 if forward else kept_bytes,
    )


def _hop_step(frames: Sequence[HeadsAndTails], way: RoundTrip, at: int, forward: bool) -> WayStep:
    microbatches = frames[0].microbatches
    hop = microbatches.forward[at] if forward else microbatches.backward[at]
    if forward:
        begin_ns = way.forward_begin_ns[at + 1] - hop.total_ns
        head_ns = min(frame.forward_head_ns[at] + frame.microbatches.costs[at].forward_ns for frame in frames)
        tail_ns = min(frame.microbatches.costs[at + 1].forward_ns + frame.forward_tail_ns[at + 1] for frame in frames)
    else:
        begin_ns = way.gradient_begin_ns[at] - hop.total_ns
        head_ns = min(frame.gradient_head_ns[at + 1] + frame.microbatches.costs[at + 1].gradient_ns for frame in frames)
        tail_ns = min(frame.microbatches.costs[at].gradient_ns + frame.gradient_tail_ns[at] for frame in frames)
    return WayStep(
        begin_ns=begin_ns,
        end_ns=begin_ns + hop.occupancy_ns,
        head_ns=head_ns,
        tail_ns=hop.latency_ns + tail_ns,
        work_ns=hop.occupancy_ns,
        all_ns=sum(frame.microbatches.count for frame in frames) * hop.occupancy_ns,
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
