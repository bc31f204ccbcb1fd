"""Local search over the rule of a list scheduler, not over the order: caps, priorities, a look-ahead, fusing.

A Problem goes in, the best Schedule of many rules comes out (design notes: search over the rule, not over the order). Rules are
climbed in rounds of a fixed number of evaluations, several climbs beside each other; a round's results do not depend on the clock,
only how many rounds there are may.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from schedc.solvers.common.interruption import wait_for
from schedc.solvers.kernel.climb import Climber, PackedRule, climbing_scheduler, stop_flag
from schedc.solvers.kernel.patience import policies
from schedc.solvers.kernel.scheduler_state import count_by_stage, depth_by_stage
from schedc.solvers.kernel.tables import NEVER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

CLIMBS = 8
"""Rules that are climbed beside each other in one round; the best of them starts the next round's half."""
POLICIES = (0, 5, 0, 3)
"""Which of `policies` the climbs start from, in turn, where it mixes: none fused, all but the last, where little waits."""


@dataclass(frozen=True, slots=True)
class Found:
    """The best schedule of a local search."""

    schedule: Schedule
    end_ns: int
    """Its objective by the kernel's clock, which serves shared trunks in the order of starts."""
    cut_short: bool
    """Whether the clock ended it."""
    ended_by: BaseException | None = None
    """The interruption that ended it, to be raised once the schedule is kept."""


def local_search(
    problem: Problem,
    *,
    evaluations: int = 0,
    rounds: int = 20,
    seed: int = 0,
    time_s: float | None = None,
    good_enough_ns: int = 0,
) -> Found:
    """The best schedule found. Climbs keep no reserves, unless all of them strand themselves on memory; with them none does.

    Args:
        problem: any placement, any memory limits.
        evaluations: rules tried per climb and round; 0: as many as place about a million ops, 20 to 1,500.
        rounds: at most this many.
        seed: of the random changes.
        time_s: end after the round in which this many seconds have passed.
        good_enough_ns: end when this objective is reached; the end by the kernel's clock, which knows no shared trunks' ties.

    Raises:
        Unsupported: a rank's memory limit does not hold one microbatch.
    """
    scheduler = climbing_scheduler(problem)
    counts = count_by_stage(scheduler)
    evaluations = evaluations or min(1500, max(20, 1_000_000 // (3 * len(scheduler.blocks))))
    climbers = [Climber(scheduler) for _ in range(CLIMBS)]
    generator = np.random.default_rng(seed)
    start = policies(problem, scheduler)
    pool = [
        _first_rule(problem, counts, number, generator, start[POLICIES[number % 4] % len(start)].copy()) for number in range(CLIMBS)
    ]
    values = [NEVER] * CLIMBS
    begun, cut_short, ended_by = time.perf_counter(), False, None
    with ThreadPoolExecutor(2) as threads, stop_flag() as stop:
        for done_rounds in range(rounds):
            heat = 0.01 * (1 - done_rounds / rounds)
            jobs = [
                threads.submit(climber.climb, rule, evaluations, seed * 7919 + done_rounds * CLIMBS + number, heat, stop)
                for number, (climber, rule) in enumerate(zip(climbers, pool, strict=True))
            ]
            ended_by = wait_for(jobs, partial(stop.fill, True))
            values = [job.result() for job in jobs]
            if ended_by is not None or min(values) <= good_enough_ns:
                break
            if min(values) >= NEVER:
                scheduler = climbing_scheduler(problem, reserves=True)
                climbers = [Climber(scheduler) for _ in range(CLIMBS)]
            if time_s is not None and time.perf_counter() - begun > time_s and done_rounds + 1 < rounds:
                cut_short = True
                break
            ranking = sorted(range(CLIMBS), key=values.__getitem__)
            for loser, winner in zip(ranking[CLIMBS // 2 :], ranking[: CLIMBS // 2], strict=True):
                pool[loser] = PackedRule(*(each.copy() for each in pool[winner]))
    best = min(range(CLIMBS), key=values.__getitem__)
    end_ns = climbers[best].run(pool[best])
    if end_ns >= NEVER and ended_by is not None:
        raise ended_by
    return Found(climbers[best].schedule(), end_ns, cut_short, ended_by)


def _first_rule(
    problem: Problem, counts: list[int], number: int, generator: np.random.Generator, patience_ns: NDArray[np.int64]
) -> PackedRule:
    """B before F before W, later stages first; in-flight caps from 1F1B's up to all; no, one or two W held back."""
    depth = np.array(depth_by_stage(problem), np.int64)
    longest = int(depth.max()) + 1
    cap = np.minimum(np.maximum(counts, 1), np.maximum(1, (longest - depth) * (1 + number % 4) // (1 + number // 4)))
    priority = np.zeros((3, len(counts)), np.int64)
    priority[0] = 100 - depth
    priority[1] = depth - longest
    priority[2] = 300
    lag = np.full(len(counts), number % 3, np.int64)
    priority += generator.integers(-3, 4, size=priority.shape)
    return PackedRule(cap, lag, priority.ravel(), np.zeros(1, np.int64), patience_ns)
