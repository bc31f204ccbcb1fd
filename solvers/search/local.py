"""Local search over the rule of a list scheduler, not over the order: caps, priorities, a look-ahead, fusing, who enters when.

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
from schedc.solvers.common.method import LocalSearch
from schedc.solvers.common.microbatch_order import entry_order, known_orders, order_is_open, renamed
from schedc.solvers.kernel.climb import (
    CHANCES,
    EDGE,
    ENTER,
    MIXING_CHANCES,
    MOVES,
    Climber,
    PackedRule,
    climbing_scheduler,
    policies,
)
from schedc.solvers.kernel.entry import NO_ENTRY, entry_of
from schedc.solvers.kernel.joints import Room, values_wait
from schedc.solvers.kernel.scheduler_state import count_by_stage, depth_by_stage
from schedc.solvers.kernel.tables import NEVER
from schedc.solvers.search.rounds import Found, Rounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from schedc.solvers.common.base import Climbing, Limits
    from schedc.solvers.common.incumbent import Incumbent
    from schedc.solvers.kernel.tables import SchedulerState

CLIMBS = 8
"""Rules that are climbed beside each other in one round; the best of them starts the next round's half."""
HEAT, MIXING_HEAT = 0.01, 0.002
"""How much worse a rule may be that a climb goes on from, at its beginning, as a share of the objective; where backwards mix and
each rank has one stage. There 0.01 ends above the bounds that long pipelines reach with 0.002. Where ranks have several stages, of
7 held-out draws 0.01 makes 4 better and 1 worse, 0.002 makes 1 better and 3 worse than before the move `edge` (`ablation.py`)."""
POLICIES = (0, 5, 0, 3)
"""Which of `policies` the climbs start from, in turn, where it mixes: none fused, all but the last, where little waits."""


class Local(LocalSearch, frozen=True):
    """Local search over the rule of a list scheduler."""

    name, place, graphs, slices = "local", 210, True, True

    def improve(self, incumbent: Incumbent, limits: Limits) -> None:
        """Offer the best schedule of many rules."""
        problem = incumbent.problem
        orders = () if incumbent.whole is None or not order_is_open(problem) else (entry_order(problem, incumbent.whole),)
        best = local_search(problem, self.climbing(incumbent, limits), orders)
        incumbent.offer_valid(best.schedule, self.name)
        incumbent.cut_short |= best.cut_short
        if best.ended_by is not None:
            raise best.ended_by


def local_search(problem: Problem, climbing: Climbing, orders: Iterable[Sequence[int]] = ()) -> Found:
    """The best schedule found. Climbs keep no reserves, unless all of them strand themselves on memory; with them none does.

    And they keep no room for values of a graph that wait for others, unless the best of a round has too little for them.

    Args:
        problem: any placement, any memory limits.
        climbing: rules tried per climb and round are, by default, as many as place about a million ops, 20 to 1,500.
        orders: where the order is open, in which the microbatches may enter, beside known ones.

    Raises:
        Unsupported: a rank's memory limit does not hold one microbatch.
    """
    scheduler = climbing_scheduler(problem)
    evaluations = climbing.evaluations or min(1500, max(20, 1_000_000 // (3 * len(scheduler.blocks))))
    is_open, mixes = order_is_open(problem), scheduler.settings[0].mixes
    entry = entry_of(problem, scheduler) if is_open else NO_ENTRY
    climbers = [Climber(scheduler, entry=entry) for _ in range(CLIMBS)]
    known = (*orders, *known_orders(problem)) if is_open else ()
    pool = _starts(problem, scheduler, climbers[0], climbing.seed, known)
    heat, best = MIXING_HEAT if mixes and len(problem.stages) == problem.ranks else HEAT, 0
    rounds = Rounds(climbing=climbing, evaluations=evaluations, heat=heat, more=(chances_of(mixes=mixes, is_open=is_open),))
    waits, room, reserves = values_wait(problem), False, False
    if is_open and min(map(climbers[0].run, pool)) >= NEVER:  # in no order: a round without reserves would find little
        reserves, scheduler = True, climbing_scheduler(problem, reserves=True)
        climbers = [Climber(scheduler, entry=entry) for _ in range(CLIMBS)]
        pool = _starts(problem, scheduler, climbers[0], climbing.seed, known)
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
                climbers[:] = [Climber(other, entry=entry) for _ in range(CLIMBS)]
                if stranded:  # which start was the best could not be told
                    pool[:] = _starts(problem, other, climbers[0], climbing.seed, known)
                    continue
        for loser, winner in zip(ranking[CLIMBS // 2 :], ranking[: CLIMBS // 2], strict=True):
            pool[loser] = pool[winner].copy()
    end_ns = climbers[best].run(pool[best])
    if end_ns >= NEVER and rounds.ended_by is not None:
        raise rounds.ended_by
    schedule = climbers[best].schedule()
    if is_open:
        schedule = renamed(schedule, _order(problem, pool[best].enter))
    paid = dict(zip(MOVES, np.sum([climber.paid for climber in climbers], axis=0).tolist(), strict=True))
    return Found(schedule, end_ns, rounds.cut_short, rounds.ended_by, paid)


def chances_of(*, mixes: bool, is_open: bool) -> dict[int, int]:
    """The moves where backwards mix or not, and where the order of microbatches is open or not."""
    return (MIXING_CHANCES | {EDGE: 6} if mixes else CHANCES) | ({ENTER: 12} if is_open else {})


def _order(problem: Problem, enter: NDArray[np.int64]) -> list[int]:
    """The order, in which each slice of a microbatch has a place."""
    slices = len(problem.slices) or 1
    return [slices * microbatch + at for microbatch in enter.tolist() for at in range(slices)]


def _exceeds(problem: Problem, climber: Climber, rule: PackedRule) -> bool:
    """Whether values that wait have too little room in the rule's schedule."""
    climber.run(rule)
    return exceeded_limit(problem, climber.schedule()) is not None


def _starts(
    problem: Problem, scheduler: SchedulerState, climber: Climber, seed: int, orders: Sequence[Sequence[int]]
) -> list[PackedRule]:
    """Rules to climb from, each with that of the orders which is the best for it."""
    counts, generator = count_by_stage(scheduler), np.random.default_rng(seed)
    start = policies(problem, scheduler)
    pool = [
        _first_rule(problem, counts, number, generator, start[POLICIES[number % 4] % len(start)].copy()) for number in range(CLIMBS)
    ]
    slices = len(problem.slices) or 1
    enters = [np.array(order[::slices], np.int64) // slices for order in orders]
    return [min([rule._replace(enter=enter) for enter in enters] or [rule], key=climber.run).copy() for rule in pool]


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
