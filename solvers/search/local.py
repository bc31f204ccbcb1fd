"""Local search over the rule of a list scheduler, not over the order: caps, priorities, a look-ahead, fusing.

A Problem goes in, the best Schedule of many rules comes out (design notes: search over the rule, not over the order). Rules are
climbed in rounds of a fixed number of evaluations, several climbs beside each other; a round's results do not depend on the clock,
only how many rounds there are may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from schedc.analysis.simulation.memory import exceeded_limit
from schedc.errors import Unsupported
from schedc.ir import Problem
from schedc.solvers.common.fuse_backwards import fuse_backwards
from schedc.solvers.common.method import MIXED, LocalSearch, fusing_saves_time
from schedc.solvers.common.microbatch_order import entering
from schedc.solvers.kernel.climb import Climber, PackedRule, climbing_scheduler, policies
from schedc.solvers.kernel.joints import Room, values_wait
from schedc.solvers.kernel.scheduler_state import count_by_stage, depth_by_stage
from schedc.solvers.kernel.tables import NEVER
from schedc.solvers.search.rounds import Found, Rounds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from schedc.solvers.common.base import Climbing, Limits
    from schedc.solvers.common.incumbent import Incumbent

CLIMBS = 8
"""Rules that are climbed beside each other in one round; the best of them starts the next round's half."""
POLICIES = (0, 5, 0, 3)
"""Which of `policies` the climbs start from, in turn, where it mixes: none fused, all but the last, where little waits."""


class Local(LocalSearch, frozen=True):
    """Local search over the rule of a list scheduler, whose backwards are then fused where that pays."""

    name, place, graphs, slices = "local", 210, True, True

    def improve(self, incumbent: Incumbent, limits: Limits) -> None:
        """Offer the best schedule of many rules, and the same with backwards fused."""
        problem, named = entering(incumbent.problem, incumbent.whole)
        best = local_search(problem, self.climbing(incumbent, limits))
        schedule = named(best.schedule)
        incumbent.offer_valid(schedule, self.name)
        incumbent.cut_short |= best.cut_short
        if best.ended_by is not None:
            raise best.ended_by
        if fusing_saves_time(incumbent.problem):
            incumbent.offer_valid(fuse_backwards(incumbent.problem, schedule, tables=incumbent.tables), f"{self.name}{MIXED}")


def local_search(problem: Problem, climbing: Climbing) -> Found:
    """The best schedule found. Climbs keep no reserves, unless all of them strand themselves on memory; with them none does.

    And they keep no room for values of a graph that wait for others, unless the best of a round has too little for them.

    Args:
        problem: any placement, any memory limits.
        climbing: rules tried per climb and round are, by default, as many as place about a million ops, 20 to 1,500.

    Raises:
        Unsupported: a rank's memory limit does not hold one microbatch.
    """
    scheduler = climbing_scheduler(problem)
    counts = count_by_stage(scheduler)
    evaluations = climbing.evaluations or min(1500, max(20, 1_000_000 // (3 * len(scheduler.blocks))))
    climbers = [Climber(scheduler) for _ in range(CLIMBS)]
    generator = np.random.default_rng(climbing.seed)
    start = policies(problem, scheduler)
    pool = [
        _first_rule(problem, counts, number, generator, start[POLICIES[number % 4] % len(start)].copy()) for number in range(CLIMBS)
    ]
    rounds, best = Rounds(climbing=climbing, evaluations=evaluations, heat=0.01), 0
    waits, room, reserves = values_wait(problem), False, False
    for values in rounds.run(climbers, pool):
        ranking = sorted(range(CLIMBS), key=values.__getitem__)
        best = ranking[0]
        stranded = values[best] >= NEVER
        if rounds.ended_by is None and (stranded or (waits and not room and _exceeds(problem, climbers[best], pool[best]))):
            reserves, room = reserves or stranded, room or not stranded
            try:
                other = climbing_scheduler(problem, reserves=reserves, room=Room(room))
            except Unsupported:  # no room for all that may wait, so that what is found may be of no use
                room, waits = False, False
            else:
                climbers[:] = [Climber(other) for _ in range(CLIMBS)]
        for loser, winner in zip(ranking[CLIMBS // 2 :], ranking[: CLIMBS // 2], strict=True):
            pool[loser] = PackedRule(*(each.copy() for each in pool[winner]))
    end_ns = climbers[best].run(pool[best])
    if end_ns >= NEVER and rounds.ended_by is not None:
        raise rounds.ended_by
    return Found(climbers[best].schedule(), end_ns, rounds.cut_short, rounds.ended_by)


def _exceeds(problem: Problem, climber: Climber, rule: PackedRule) -> bool:
    """Whether values that wait have too little room in the rule's schedule."""
    climber.run(rule)
    return exceeded_limit(problem, climber.schedule()) is not None


def _first_rule(
    problem: Problem, counts: list[int], number: int, generator: np.random.Generator, patience_ns: NDArray[np.int64]
) -> PackedRule:
    """B before F before W, later stages first; in-flight caps from 1F1B's up to all; no, one or two W held back."""
    depth = np.array(depth_by_stage(problem), np.int64)
    longest = int(depth.max()) + 1
    in_flight = np.maximum(1, (longest - depth) * (1 + number % 4) // (1 + number // 4)) + max(0, len(problem.slices) - 1)
    cap = np.minimum(np.maximum(counts, 1), in_flight)
    priority = np.zeros((3, len(counts)), np.int64)
    priority[0] = 100 - depth
    priority[1] = depth - longest
    priority[2] = 300
    lag = np.full(len(counts), number % 3, np.int64)
    priority += generator.integers(-3, 4, size=priority.shape)
    return PackedRule(cap, lag, priority.ravel(), np.zeros(1, np.int64), patience_ns)
