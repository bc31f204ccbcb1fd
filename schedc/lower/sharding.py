"""When sharded weights are gathered and released, and gradients reduced, for orders that are given.

`placed` takes a Problem whose weights are sharded and a Schedule; gives the schedule with collectives, within memory limits.
Rank by rank, as what a rank holds depends on its own queue alone:

- Weights that were gathered stay while there is room. Where an op needs room, those are released whose next op is furthest away:
  of stages of one size no rule gathers less often (Belady 1966). Or those that are unused the longest, whose room the next gather
  then has early. Both are tried.
- Gathers go in the order in which they are needed, each as early as there is room from then on. Earlier is never later for an op:
  the rank's collectives go one after the other in this order.
- The rank waits for a reduction where the gradients' room is needed, but not before it ends by a timeline, if weights can give
  theirs up instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from schedc.analysis.simulation.memory import memory_changes
from schedc.analysis.simulation.simulate import simulate
from schedc.ir import Collective, DataParallel, Kind, Problem, Schedule, with_whole_weights
from schedc.ir.index import ops_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir import Op

ROUNDS = 2
"""How often a timeline of the schedule itself says anew when reductions end."""


def placed(problem: Problem, schedule: Schedule) -> Schedule | None:
    """The schedule with the places of its collectives, the best found by its objective; None: the orders do not fit.

    Args:
        problem: with sharded weights.
        schedule: orders that `verify_schedule` accepts for `with_whole_weights`.
    """
    assert problem.data_parallel is not None
    orders = [_Order.of(problem, schedule, rank) for rank in range(problem.ranks)]
    timeline = simulate(with_whole_weights(problem), replace(schedule, collectives=()))
    best: tuple[int, Schedule] | None = None
    for waits, longest_unused in product((False,) * ROUNDS + (True,), (False, True)):
        until = None if waits else timeline
        found = [order.collectives(problem.data_parallel, until, longest_unused=longest_unused) for order in orders]
        made = replace(schedule, collectives=tuple(each for each in found if each is not None))
        if len(made.collectives) < problem.ranks:
            continue
        timeline = simulate(problem, made)
        objective_ns = timeline.objective_ns(problem.objective)
        if best is None or objective_ns < best[0]:
            best = objective_ns, made
    return None if best is None else best[1]


def with_collectives(problem: Problem, schedule: Schedule) -> Schedule | None:
    """The schedule of any problem, with collectives where weights are sharded; None: they have no room."""
    return placed(problem, schedule) if problem.is_sharded else schedule


@dataclass(slots=True, kw_only=True)
class _Stay:
    """Weights of a stage that are there for some ops."""

    stage: int
    first: int
    """The first op that needs them."""
    until: int
    """Behind the last one."""
    before: int = 0
    """The op before which they are gathered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """The queue of one rank."""

    rank: int
    ops: tuple[Op, ...]
    room: list[float]
    """Per op, what is left for weights and gradients while it runs, in bytes."""

    @classmethod
    def of(cls, problem: Problem, schedule: Schedule, rank: int) -> _Order:
        """That of the rank."""
        order, limit = schedule.orders[rank], problem.memory_limit_bytes[rank]
        if limit is None:
            return cls(rank=rank, ops=order, room=[inf] * len(order))
        taken, released = memory_changes(problem, schedule, ops_array((order,)))
        held = np.cumsum(taken) - np.cumsum(released) + released
        return cls(rank=rank, ops=order, room=(limit - held).tolist())

    def collectives(
        self, parallel: DataParallel, timeline: Timeline | None, *, longest_unused: bool
    ) -> tuple[Collective, ...] | None:
        """Its collectives in the order in which they are issued; None: there is no room for one stage's weights.

        Args:
            parallel: what they take and hold.
            timeline: which says when reductions end; None: the rank waits for each behind the op that makes it ready.
            longest_unused: whether those go first, else those whose next op is furthest away.
        """
        first = {op.stage: at for at, op in reversed(list(enumerate(self.ops))) if op.kind in (Kind.W, Kind.BW)}
        last = {op.stage: at + 1 for at, op in enumerate(self.ops) if op.kind in (Kind.W, Kind.BW)}
        until = dict(last)
        if timeline is not None:
            starts_ns = timeline.start_ns(self.rank)
            ended_ns = {span.collective.stage: span.end_ns for span in timeline.collectives if span.collective.kind == "RS"}
            for stage, at in last.items():
                until[stage] = next((op for op in range(at, len(starts_ns)) if starts_ns[op] >= ended_ns[stage]), len(starts_ns))
        room = list(self.room)
        for stage, at in first.items():
            for op in range(at, until[stage]):
                room[op] -= parallel.gradient_bytes[stage]
        stays = self._stays(parallel, room, last, until, longest_unused=longest_unused)
        if stays is None:
            return None
        self._gather_early(parallel.gathered_bytes, room, stays)
        gathers = [(stay.before, stay.first, Collective("AG", stay.stage, stay.before, stay.until)) for stay in stays]
        # What an op waits for at once goes first, so that gathers before it have the room.
        reductions = [
            (at, until[stage] - (until[stage] == at), Collective("RS", stage, at, until[stage])) for stage, at in last.items()
        ]
        return tuple(each for _, _, each in sorted(gathers + reductions))

    def _stays(
        self, parallel: DataParallel, room: list[float], last: dict[int, int], until: dict[int, int], *, longest_unused: bool
    ) -> list[_Stay] | None:
        """The stays, each from the first op that needs it; takes the gradients' room where it must, with `until` and `room`."""
        following = self._next_use()
        stays: list[_Stay] = []
        there: dict[int, _Stay] = {}
        for at, op in enumerate(self.ops):
            if op.stage not in there:
                there[op.stage] = _Stay(stage=op.stage, first=at, until=at + 1)
                stays.append(there[op.stage])
            there[op.stage].until = at + 1
            others = sorted(
                there.keys() - {op.stage},
                key=lambda stage: -there[stage].until if longest_unused else following[there[stage].until - 1],
            )
            while sum(parallel.gathered_bytes[stage] for stage in there) > room[at]:
                if others:
                    del there[others.pop()]
                    continue
                waited = [stage for stage, end in last.items() if end <= at < until[stage]]
                if not waited:
                    return None
                for later in range(at, until[waited[0]]):
                    room[later] += parallel.gradient_bytes[waited[0]]
                until[waited[0]] = at
            if following[at] == len(self.ops):
                del there[op.stage]
        return stays

    def _next_use(self) -> list[int]:
        """Per op, the next of its stage; behind the queue where there is none."""
        following, seen = [len(self.ops)] * len(self.ops), dict[int, int]()
        for at in range(len(self.ops) - 1, -1, -1):
            following[at] = seen.get(self.ops[at].stage, len(self.ops))
            seen[self.ops[at].stage] = at
        return following

    def _gather_early(self, gathered_bytes: Sequence[int], room: list[float], stays: list[_Stay]) -> None:
        """Gather each as early as there is room, and not before one that is needed earlier; takes the room."""
        left = {stay.stage: 0 for stay in stays}
        for stay in stays:
            for op in range(stay.first, stay.until):
                room[op] -= gathered_bytes[stay.stage]
        earliest = 0
        for stay in stays:
            stay.before = stay.first
            while stay.before > max(earliest, left[stay.stage]) and room[stay.before - 1] >= gathered_bytes[stay.stage]:
                stay.before -= 1
                room[stay.before] -= gathered_bytes[stay.stage]
            earliest, left[stay.stage] = stay.before, stay.until
