"""Local search over orders: from a schedule, single ops are moved within their ranks as long as nothing gets worse.

A Problem and Schedules of whole blocks go in, a better Schedule or the best of them comes out. Where a fused backward takes less
time than its halves, backwards are fused and split, too. Each stage runs alike microbatches in one order (`numbering`). Each change
is timed by a compiled pass over all ops, so tens of thousands of them are tried in a second. It finishes what rules and
templates leave undone. Which of their schedules leads furthest is known only afterwards: where BW is cheaper, a schedule of BW
alone is often the worst to start from, and ends as the best.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, wait
from dataclasses import replace
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from schedc.analysis.simulation.memory import exceeded_limit
from schedc.ir import BLOCKS, Kind, Problem, Schedule
from schedc.ir.index import tables_of
from schedc.solvers.common.incumbent import mixture_of
from schedc.solvers.common.interruption import NOTICE_S, Interruption
from schedc.solvers.common.method import LocalSearch, fusing_saves_time
from schedc.solvers.kernel.climb import stop_flag
from schedc.solvers.kernel.joints import values_wait
from schedc.solvers.kernel.numbering import numbering_of, unnumbered
from schedc.solvers.kernel.order_climb import OrderClimber
from schedc.solvers.kernel.order_evaluator import (
    Orders,
    ProblemArrays,
    Sampled,
    problem_arrays_of,
    unsampled,
)
from schedc.solvers.kernel.tables import KINDS, NEVER as STRANDED, ops_of
from schedc.solvers.search.rounds import Found, Rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from schedc.solvers.common.base import Climbing, Limits
    from schedc.solvers.common.incumbent import Incumbent

CLIMBS = 2
"""Searches beside each other in one round."""
STARTS = 9
"""At most this many start the first round; then the best of each of two mixtures of backwards goes on, at last the best of all."""
REACH = 10
"""How far an op may be moved."""
EXCHANGES = 4
"""Where it can pay, one in this many changes fuses or splits backwards."""
FOLLOWS = 2
"""Where microbatches are alike, one in this many changes may be made on other ranks, too (`order_changes`)."""
HEAT, ALIKE_HEAT = 2e-4, 6e-4
"""How much worse orders may be that a climb goes on from, at its beginning, as a share of the objective. The second is for alike
microbatches."""
WARMTHS = 0.5, 1.7
"""The heat of the first and of the second search is multiplied by these: which is better differs from problem to problem."""
ALONE = 0.8
"""For this share of the rounds each search goes on by itself; then both from the best."""
LEAST_CHANGES, TIMED_OPS = 200, 10_000_000
"""Each search tries at least the first number of changes in a round, and as many as time about the second number of ops."""
ROUNDS_PER_S = 4
"""Where a clock ends it, a search plans at most these rounds for a second, of large problems fewer: one cut short is still hot."""
ROUND_OPS = 15_000_000
"""About this many ops are timed for several conditions by each search in one round, where none of its orders is given up early."""


class Polish(LocalSearch, frozen=True):
    """Local search over the orders of the best schedule of whole blocks: single ops are changed as long as nothing gets worse.

    Where nothing is gained by fusing, every backward is split.
    """

    anew: bool = False
    """Start from what other methods found, not from what `polish` found before."""
    name, place, graphs, slices = "polish", 230, True, True

    @classmethod
    def misfit(cls, problem: Problem) -> str:
        """As of any; and the kernel knows one way of a stage's microbatches."""
        if len(set(chain.from_iterable(problem.paths))) < sum(map(len, problem.paths)):
            return f"{cls.name} needs stages with one path each; here paths share some"
        return super().misfit(problem)

    def improve(self, incumbent: Incumbent, limits: Limits) -> None:
        """Offer the best schedule of many changes."""
        problem, saves_time = incumbent.problem, fusing_saves_time(incumbent.problem)
        most = STARTS if saves_time else 1  # where all are split, other starts cost more than they find
        starts = incumbent.starts(most, besides=self.name if self.anew else "")
        if problem.split_backward and not saves_time:
            starts = [_split(start) for start in starts]
        climbing = self.climbing(incumbent, limits)
        if climbing.time_s is not None and not climbing.evaluations:
            fitting = ROUNDS_PER_S * climbing.time_s / max(1.0, LEAST_CHANGES * problem.num_ops / TIMED_OPS) - len(starts) // CLIMBS
            incumbent.cut_short |= fitting < climbing.rounds
            climbing = replace(climbing, rounds=min(climbing.rounds, max(1, ceil(fitting))))
        found = polish_schedule(problem, starts, climbing)
        incumbent.offer_valid(found.schedule, self.name)
        incumbent.cut_short |= found.cut_short
        if found.ended_by is not None:
            raise found.ended_by


def polish_schedule(problem: Problem, starts: Sequence[Schedule], climbing: Climbing) -> Found:
    """The best schedule found from these.

    Each starts a climb of the first round, the first one two. Then two go on, of unlike mixtures of backwards where there are such:
    each as one annealing, from where its last round has ended, the one warmer than the other. At last both go on from the best.

    Args:
        problem: any placement, any memory limits.
        starts: of whole blocks, within memory, the best first; fused and split backwards may be mixed, but only where fusing can
            pay does it change which.
        climbing: changes per search and round are, by default, as many as time about ten million ops; the heat falls with rounds.

    Raises:
        ValueError: a schedule has blocks that are cut.
    """
    facts = problem_arrays_of(problem)
    exchanges = EXCHANGES if fusing_saves_time(problem) else 0
    starts = starts[0], *starts
    pool = [packed_orders(problem, facts, start, exchanges=bool(exchanges)) for start in starts]
    mixtures = [mixture_of(start) for start in starts]
    if not exchanges or len(set(mixtures)) == 1:
        mixtures = [str(at) for at in range(len(starts))]
    evaluations = climbing.evaluations or min(40_000, max(LEAST_CHANGES, TIMED_OPS // int(pool[0].lengths.sum())))
    alone, numbering = unsampled(durations_ns_of(problem)), numbering_of(problem)
    are_alike, waits = numbering.members.size > 0, values_wait(problem)
    ranges = REACH, exchanges, FOLLOWS if are_alike else 0
    heat = ALIKE_HEAT if are_alike else HEAT
    warmths = [heat * WARMTHS[at % CLIMBS] for at in range(len(pool))]
    climbers = [OrderClimber(facts, alone, numbering, ranges, warmth, warmth / climbing.rounds) for warmth in warmths]
    rounds = Rounds(climbing=climbing, evaluations=evaluations, heat=1.0)
    best, best_ns = pool[0].copy(), int(STRANDED)

    def exceeds(orders: Orders) -> bool:
        return waits and exceeded_limit(problem, unpacked_schedule(problem, orders)) is not None

    for number, values in enumerate(rounds.run(climbers, pool)):
        leaders: dict[str, Orders] = {}  # after the first round: where the best climb of each mixture has come to
        for at in sorted(range(len(pool)), key=values.__getitem__):
            if values[at] < best_ns and not exceeds(pool[at]):
                best, best_ns = pool[at].copy(), int(values[at])
            leaders.setdefault(mixtures[at], climbers[at].reached)
        pool[:] = list(leaders.values())[:CLIMBS] if number == 0 else [climber.reached for climber in climbers]
        if number + 1 == int(ALONE * climbing.rounds) or len(pool) < CLIMBS:
            pool[:] = [best] * CLIMBS
        pool[:] = [(best if exceeds(orders) else orders).copy() for orders in pool]
        del climbers[CLIMBS:]
    return Found(unpacked_schedule(problem, best), best_ns, rounds.cut_short, rounds.ended_by)


def polish_sampled_schedules(
    problems: Sequence[Problem],
    weights: Sequence[float],
    starts: Sequence[Schedule],
    climbing: Climbing,
    *,
    percentile: float = 0.0,
    least_ns: Sequence[int],
    interruption: Interruption | None = None,
) -> Found:
    """The best schedule found from these for many conditions at once.

    One order of ops serves all conditions; the mean of its ends counts, or a percentile. The second half of the rounds starts from
    the best.

    Args:
        problems: one problem under each of the conditions; any placement, any memory limits.
        weights: of the conditions, above 0.
        starts: schedules of whole blocks, the best first; each keeps the memory limits.
        climbing: changes per search and round are by size, by default; the heat falls with rounds, and a round ends with the time.
        percentile: from 0 to 1, what share of the weight ends by the value; 0: the mean counts.
        least_ns: for each condition, a lower bound on the end.
        interruption: what listens to signals, if something does; one ends the search, and what it has found counts.

    Raises:
        ValueError: a schedule has blocks that are cut.
    """
    problem = problems[0]
    facts, exchanges = problem_arrays_of(problem), EXCHANGES if any(map(fusing_saves_time, problems)) else 0
    sampled = sampled_of(problems, weights, least_ns, percentile)
    packed = [packed_orders(problem, facts, start, exchanges=bool(exchanges)) for start in starts]
    ops = int(packed[0].lengths.sum()) * len(problems)
    evaluations = climbing.evaluations or min(40_000, max(200, ROUND_OPS // ops))
    deadline_s = None if climbing.time_s is None else time.perf_counter() + climbing.time_s

    def wait_in_time(jobs: Sequence[Future[float]], stop: Callable[[], None]) -> BaseException | None:
        """A signal leaves a mark and raises nothing."""
        ended_by: BaseException | None = None
        while wait(jobs, timeout=NOTICE_S).not_done:
            if interruption is not None and interruption.requested:
                ended_by = KeyboardInterrupt()
            elif deadline_s is not None and time.perf_counter() >= deadline_s:
                ended_by = TimeoutError()
            if ended_by is not None:
                stop()
        return ended_by

    numbering = unnumbered(len(problem.stages))
    climbers = [OrderClimber(facts, sampled, numbering, (REACH, exchanges, 0)) for _ in range(CLIMBS)]
    with stop_flag() as stop:
        first = [climbers[0].climb(each, 0, 0, 0.0, stop) for each in packed]
    ranking = sorted(range(len(packed)), key=first.__getitem__)
    pool = [packed[ranking[number % len(ranking)]].copy() for number in range(CLIMBS)]
    best, best_ns = packed[ranking[0]], first[ranking[0]]
    in_round = replace(climbing, time_s=None)
    rounds = Rounds(climbing=in_round, evaluations=evaluations, heat=HEAT, cools_first=True, wait=wait_in_time)
    for number, values in enumerate(rounds.run(climbers, pool) if best_ns > climbing.good_enough_ns else ()):
        for value_ns, each in zip(values, pool, strict=True):
            if value_ns < best_ns:
                best, best_ns = each.copy(), value_ns
        if 2 * number >= climbing.rounds:
            pool[:] = [best.copy() for _ in range(CLIMBS)]
    return Found(unpacked_schedule(problem, best), best_ns, isinstance(rounds.ended_by, TimeoutError), starts_ns=tuple(first))


def packed_orders(problem: Problem, facts: ProblemArrays, schedule: Schedule, *, exchanges: bool) -> Orders:
    """The schedule's orders as codes; with `exchanges` there is room to split every backward.

    Raises:
        ValueError: the schedule has blocks that are cut.
    """
    stages = len(problem.stages)
    lengths = np.array([len(order) for order in schedule.orders], np.int64)
    width = lengths if not exchanges else 3 * np.bincount(facts.stage_rank, facts.count, problem.ranks).astype(np.int64)
    orders = Orders(np.zeros((problem.ranks, int(width.max())), np.int64), lengths)
    for rank, order in enumerate(schedule.orders):
        for at, op in enumerate(order):
            if op.part >= 0:
                raise ValueError(f"{op} cannot be moved as a whole block")
            orders.codes[rank, at] = (op.microbatch * stages + op.stage) * KINDS + op.kind
    return orders


def durations_ns_of(problem: Problem) -> NDArray[np.int64]:
    """[kind, stage, microbatch]; only the first of the last where microbatches are alike."""
    duration_ns = tables_of(problem).duration_ns
    return duration_ns[:, :, :1].copy() if (duration_ns == duration_ns[:, :, :1]).all() else duration_ns


def unpacked_schedule(problem: Problem, orders: Orders) -> Schedule:
    """The schedule of the codes."""
    rows = zip(orders.codes.tolist(), orders.lengths.tolist(), strict=True)
    return Schedule(orders=tuple(ops_of(codes[:length], len(problem.stages)) for codes, length in rows))


def sampled_of(problems: Sequence[Problem], weights: Sequence[float], least_ns: Sequence[int], percentile: float) -> Sampled:
    """What differs between the problems, for the kernel; arguments as of `polish_sampled_schedules`."""
    each = [problem_arrays_of(problem) for problem in problems]
    durations_ns = [durations_ns_of(problem) for problem in problems]
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


def _split(schedule: Schedule) -> Schedule:
    """Each fused backward as B and W, one after the other."""
    halves = {kind: (Kind.B, Kind.W) if kind is Kind.BW else (kind,) for kind in BLOCKS}
    return Schedule(
        orders=tuple(tuple(op._replace(kind=half) for op in order for half in halves[op.kind]) for order in schedule.orders)
    )
