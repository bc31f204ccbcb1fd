"""Search over which backwards of each stage are fused: a range of its microbatches; those before and after it are split.

A Problem goes in, better and better Schedules come out. The first backwards of a stage are split to send gradients early while
others wait for their first, the last ones to shorten the cool-down; between them, where ranks are busy, BW saves time. The list
scheduler makes the schedule of such ranges, and of how far each stage runs ahead with F and behind with W. Rules are climbed in
rounds of a fixed number of evaluations; a round's results do not depend on the clock, only how many rounds there are may.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from schedc.compiled.compiler import compiled
from schedc.errors import Unsupported
from schedc.ir import Problem, Schedule
from schedc.solvers.common.method import LocalSearch, fusing_saves_time
from schedc.solvers.common.microbatch_order import entering
from schedc.solvers.heuristics.greedy import GreedyRule
from schedc.solvers.kernel.joints import Room, values_wait
from schedc.solvers.kernel.list_scheduler import list_schedule_of, rule_kernel
from schedc.solvers.kernel.scheduler_state import count_by_stage, depth_by_stage, scheduler_of, set_rule
from schedc.solvers.kernel.tables import as_arrays, read_back
from schedc.solvers.search.rounds import climb_in_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from schedc.solvers.common.base import Climbing, Limits
    from schedc.solvers.common.incumbent import Incumbent

CLIMBS = 8
"""Rules that are climbed one after the other in each round; the best half of them starts the next round twice."""
PLACED_OPS = 200_000
"""A climb of a round places about this many ops."""
STEPS = (1, 1, 2, 4)
"""By how much a change changes a count."""
LOOK_AHEADS = (0.0, 0.25, 0.5, 0.75)
"""How long a rank may wait for an op that goes first, in units of the longest F."""


@dataclass(slots=True)
class Ranges:
    """A rule of the list scheduler. Every list has one entry per stage."""

    before: list[int]
    """This many of the first backwards are split."""
    after: list[int]
    """And of the last."""
    lag: list[int]
    """`Rule.weight_lag`."""
    cap: list[int]
    """`Rule.in_flight`."""
    look_ahead_ns: int
    alternate: int

    def copy(self) -> Ranges:
        """The same rule in lists of its own."""
        return replace(self, before=[*self.before], after=[*self.after], lag=[*self.lag], cap=[*self.cap])


class RangesEvaluator:
    """The list scheduler's compiled kernel at work on one problem."""

    def __init__(self, problem: Problem) -> None:
        """Waits until the kernel is compiled.

        Raises:
            Unsupported: a rank's memory limit does not hold one microbatch.
        """
        self._lists = scheduler_of(problem, room=Room(values_wait(problem)))
        set_rule(self._lists, problem, GreedyRule().rule(problem, 1))
        self._arrays, self._run = as_arrays(self._lists), compiled(rule_kernel(problem))
        (settings,) = self._lists.settings
        self._least_cap, self._most_cap = settings.slices, settings.most
        lanes = self._arrays.lanes
        self._stage = lanes["stage"].copy()
        lengths = lanes["last"] - lanes["first"]
        self._stage_at = np.repeat(self._stage, lengths)
        self._number = np.arange(len(self._stage_at)) - np.repeat(lanes["first"], lengths)
        self._left = np.repeat(lengths, lengths) - self._number

    def __call__(self, rule: Ranges) -> int:
        """The objective of the rule's schedule, which `schedule` makes then."""
        before, after = np.array(rule.before, np.int64), np.array(rule.after, np.int64)
        fused = (self._number >= before[self._stage_at]) & (self._left > after[self._stage_at])
        scheduler: Any = self._arrays
        scheduler.blocks["fused"] = fused
        cap = np.clip(np.array(rule.cap), self._least_cap, self._most_cap)
        scheduler.lanes["cap"], scheduler.lanes["lag"] = cap[self._stage], np.array(rule.lag)[self._stage]
        scheduler.settings["look_ahead_ns"], scheduler.settings["alternate"] = rule.look_ahead_ns, rule.alternate
        return int(self._run(*scheduler))

    def schedule(self) -> Schedule:
        """The schedule of the last call."""
        return list_schedule_of(read_back(self._lists, self._arrays)).schedule


class FusedRanges(LocalSearch, frozen=True):
    """Search over the range of microbatches whose backwards each stage fuses, and the rule of a list scheduler around it."""

    name, place, graphs, slices = "fused-ranges", 220, True, True

    def improve(self, incumbent: Incumbent, limits: Limits) -> None:
        """Offer better and better schedules, where fusing saves time."""
        if not fusing_saves_time(incumbent.problem):
            raise Unsupported("no backward that may be split takes less time fused")
        problem, named = entering(incumbent.problem, incumbent.whole)
        incumbent.cut_short |= search_fused_ranges(
            problem, self.climbing(incumbent, limits), lambda schedule: incumbent.offer_valid(named(schedule), self.name)
        )


def search_fused_ranges(problem: Problem, climbing: Climbing, on_schedule: Callable[[Schedule], None]) -> bool:
    """Climb from ranges that suit many problems; returns whether the clock ended it.

    Args:
        problem: one that splits backwards; any placement, any memory limits.
        climbing: how to climb; the clock is looked at after each climb.
        on_schedule: is called with each schedule that is better than all before it, when its climb has ended.

    Raises:
        Unsupported: a rank's memory limit does not hold one microbatch.
    """
    evaluate, random, begun = RangesEvaluator(problem), Random(climbing.seed), time.perf_counter()
    counts = count_by_stage(scheduler_of(problem))
    evaluations = climbing.evaluations or min(400, max(20, PLACED_OPS // problem.num_ops))
    longest_ns = max(max(stage.forward_ns) for stage in problem.stages)
    looks_ns = [int(share * longest_ns) for share in LOOK_AHEADS]
    starts = [(evaluate(rule), number, rule) for number, rule in enumerate(_starts(problem, counts))]
    pool = [(value, rule) for value, _, rule in sorted(starts)[:CLIMBS]]

    def climbed(start: tuple[int, Ranges], _round: int) -> tuple[int, Ranges]:
        value, rule = start
        for _ in range(evaluations):
            tried = _changed(rule, counts, looks_ns, random)
            reached = evaluate(tried)
            if reached <= value:
                value, rule = reached, tried
        return value, rule

    def offer(entry: tuple[int, Ranges]) -> None:
        evaluate(entry[1])
        on_schedule(evaluate.schedule())

    offer(pool[0])
    if pool[0][0] <= climbing.good_enough_ns:
        return False
    return climb_in_turn(pool, climbing, climbed, again=CLIMBS // 2, begun=begun, best_ns=pool[0][0], on_better=offer)


def _starts(problem: Problem, counts: list[int]) -> Iterator[Ranges]:
    """Ranges by the stages' depth, W that wait or do not, and as many activations as memory holds."""
    depth = depth_by_stage(problem)
    longest = max(depth) + 1
    cap = [max(1, count) for count in counts]
    waves = [_slots(problem, stage, count) for stage, count in enumerate(counts)]
    halves = [(at if 2 * at < longest else wave - 1) for at, wave in zip(depth, waves, strict=True)]
    nothing = [0] * len(depth)
    befores = (depth, [2 * at for at in depth], halves, [wave if at else 0 for at, wave in zip(depth, waves, strict=True)], nothing)
    afters = (depth, [longest - 1 - at if at else 0 for at in depth], [3 * at for at in depth], nothing)
    for before, after, lag, alternate in product(befores, afters, (nothing, depth, waves), (0, 1)):
        yield Ranges([*before], [*after], [*lag], cap, 0, alternate)


def _slots(problem: Problem, stage: int, count: int) -> int:
    """How many activations of the stage fit at once."""
    costs = problem.stages[stage]
    limit_bytes = problem.memory_limit_bytes[costs.rank]
    if limit_bytes is None or costs.activation_bytes == 0:
        return count
    return min(count, (limit_bytes - costs.recomputed_bytes) // costs.activation_bytes)


def _changed(rule: Ranges, counts: list[int], looks_ns: list[int], random: Random) -> Ranges:
    """The rule with one to three counts changed, of one stage or of some after each other."""
    tried = rule.copy()
    for _ in range(random.choice((1, 1, 2, 3))):
        what = random.randrange(10)
        first = random.randrange(len(counts))
        last = random.randrange(first, len(counts)) if random.randrange(3) == 0 else first
        step = random.choice(STEPS) * random.choice((-1, 1))
        for stage in range(first, last + 1):
            if what < 3:
                tried.before[stage] = max(0, min(counts[stage], tried.before[stage] + step))
            elif what < 6:
                tried.after[stage] = max(0, min(counts[stage], tried.after[stage] + step))
            elif what < 8:
                tried.lag[stage] = max(0, tried.lag[stage] + step)
            elif what < 9:
                tried.cap[stage] = max(1, min(counts[stage], tried.cap[stage] + step))
        if what == 9:
            tried.look_ahead_ns = random.choice(looks_ns)
            if random.randrange(3) == 0:
                tried.alternate = 1 - tried.alternate
    return tried
