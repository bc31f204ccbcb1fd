"""Local search over orders for many conditions at once: from some schedules, single ops are moved while the mean end falls.

A Problem under each of several conditions and some Schedules of whole blocks go in, the best Schedule comes out. One order of ops
serves all conditions; the mean of its ends counts, or a percentile.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from schedc.solvers.common.fusing import fusing_saves_time
from schedc.solvers.common.interruption import NOTICE_S, Interruption
from schedc.solvers.kernel.climb import stop_flag
from schedc.solvers.kernel.problem_arrays import problem_arrays_of
from schedc.solvers.kernel.sampled_orders import Sampled, sampled_climber
from schedc.solvers.search.polish import EXCHANGES, REACH, durations_by_visit_ns, packed_orders, unpacked_schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

CLIMBS = 2
"""Searches beside each other in one round."""
ROUND_OPS = 15_000_000
"""About this many ops are timed by each search in one round, where none of its orders is given up early."""


@dataclass(frozen=True, slots=True)
class FoundSampled:
    """The best schedule of a local search over samples."""

    schedule: Schedule
    value_ns: float
    """By the kernel's clock."""
    cut_short: bool
    """Whether the clock or an interruption ended it."""
    values_ns: tuple[float, ...]
    """Of the schedules that it began with."""


def polish_sampled_schedules(
    problems: Sequence[Problem],
    weights: Sequence[float],
    starts: Sequence[Schedule],
    *,
    percentile: float = 0.0,
    least_ns: Sequence[int],
    evaluations: int = 0,
    rounds: int = 20,
    seed: int = 0,
    time_s: float | None = None,
    good_enough_ns: float = 0.0,
    interruption: Interruption | None = None,
) -> FoundSampled:
    """The best schedule found from these.

    Args:
        problems: one problem under each of the conditions; any placement, any memory limits.
        weights: of the conditions, above 0.
        starts: schedules of whole blocks, the best first; each keeps the memory limits.
        percentile: from 0 to 1, what share of the weight ends by the value; 0: the mean counts.
        least_ns: for each condition, a lower bound on the end.
        evaluations: changes per search and round; 0: by size.
        rounds: at most this many; the heat falls with them.
        seed: of the random changes.
        time_s: end after this many seconds.
        good_enough_ns: end when this value is reached.
        interruption: what listens to signals, if something does; one ends the search, and what it has found counts.

    Raises:
        ValueError: a schedule has blocks that are cut.
    """
    problem = problems[0]
    facts, exchanges = problem_arrays_of(problem), EXCHANGES if any(map(fusing_saves_time, problems)) else 0
    sampled = sampled_of(problems, weights, least_ns, percentile)
    packed = [packed_orders(problem, facts, start, exchanges=bool(exchanges)) for start in starts]
    ops = int(packed[0].lengths.sum()) * len(problems)
    evaluations = evaluations or min(40_000, max(200, ROUND_OPS // ops))
    deadline_s = None if time_s is None else time.perf_counter() + time_s
    climbers = [sampled_climber(facts, sampled, REACH, exchanges) for _ in range(CLIMBS)]
    cut_short = False
    with ThreadPoolExecutor(CLIMBS) as threads, stop_flag() as stop:
        first = [climbers[0].climb(each, 0, 0, 0.0, stop) for each in packed]
        ranking = sorted(range(len(packed)), key=first.__getitem__)
        pool = [packed[ranking[number % len(ranking)]].copy() for number in range(CLIMBS)]
        best, best_ns = packed[ranking[0]], first[ranking[0]]
        for done_rounds in range(rounds):
            if best_ns <= good_enough_ns:
                break
            heat = 2e-4 * (1 - (done_rounds + 1) / rounds)
            jobs = [
                threads.submit(climber.climb, each, evaluations, seed * 7919 + done_rounds * CLIMBS + at, heat, stop)
                for at, (climber, each) in enumerate(zip(climbers, pool, strict=True))
            ]
            cut_short = _wait(jobs, partial(stop.fill, True), interruption, deadline_s)
            values = [job.result() for job in jobs]
            for value_ns, each in zip(values, pool, strict=True):
                if value_ns < best_ns:
                    best, best_ns = each.copy(), value_ns
            if cut_short:
                break
            if 2 * done_rounds >= rounds:  # both go on from the best in the second half
                pool = [best.copy() for _ in range(CLIMBS)]
    return FoundSampled(unpacked_schedule(problem, best), float(best_ns), cut_short, tuple(map(float, first)))


def _wait(jobs: list[Future[float]], stop: Callable[[], None], interruption: Interruption | None, deadline_s: float | None) -> bool:
    """Wait for the climbs; returns whether they were stopped: by a signal, which leaves a mark and raises nothing, or the clock."""
    stopped = False
    while wait(jobs, timeout=NOTICE_S).not_done:
        late = deadline_s is not None and time.perf_counter() >= deadline_s
        if late or (interruption is not None and interruption.requested):
            stopped = True
            stop()
    return stopped


def sampled_of(problems: Sequence[Problem], weights: Sequence[float], least_ns: Sequence[int], percentile: float) -> Sampled:
    """What differs between the problems, for the kernel; arguments as of `polish_sampled_schedules`."""
    each = [problem_arrays_of(problem) for problem in problems]
    durations_ns = [durations_by_visit_ns(problem) for problem in problems]
    if all(np.array_equal(duration_ns, durations_ns[0]) for duration_ns in durations_ns):
        durations_ns = durations_ns[:1]
    shares = np.array(weights, np.float64) / sum(weights)
    rest_ns = np.append(np.cumsum((shares * np.array(least_ns, np.float64))[::-1])[::-1], 0.0)
    return Sampled(
        occupancy=np.stack([facts.occupancy for facts in each]),
        latency=np.stack([facts.latency for facts in each]),
        duration=np.stack(durations_ns),
        share=shares,
        percentile=percentile,
        rest_ns=rest_ns,
        ends_ns=np.zeros(len(problems), np.int64),
    )
