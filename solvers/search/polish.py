"""Local search over orders: from a schedule, single ops are moved within their ranks as long as nothing gets worse.

A Problem and a Schedule of whole blocks go in, a better Schedule or the same comes out. Where a fused backward takes less time than
its halves, single backwards are fused and split, too. Each change is timed by a compiled pass over all ops, so tens of thousands of
them are tried in a second. It finishes what a rule or a template leaves undone.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from schedc.ir.index import tables_of
from schedc.ir.ops import Kind, Op
from schedc.ir.schedule import Schedule
from schedc.solvers.common.fusing import fusing_saves_time
from schedc.solvers.common.interruption import wait_for
from schedc.solvers.kernel.climb import stop_flag
from schedc.solvers.kernel.order_evaluator import OrderClimber, Orders, polish
from schedc.solvers.kernel.problem_arrays import ProblemArrays, microbatches_by_stage, problem_arrays_of
from schedc.solvers.search.local import Found

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from schedc.ir.problem import Problem

CLIMBS = 2
"""Searches beside each other in one round; each next round starts from the best of them."""
REACH = 10
"""How far an op may be moved."""
EXCHANGES = 4
"""Where it can pay, one in this many changes fuses or splits a backward."""


def polish_schedule(
    problem: Problem,
    schedule: Schedule,
    *,
    evaluations: int = 0,
    rounds: int = 20,
    seed: int = 0,
    time_s: float | None = None,
    good_enough_ns: int = 0,
) -> Found:
    """The best schedule found from this one.

    Args:
        problem: any placement, any memory limits.
        schedule: of whole blocks; fused and split backwards may be mixed, but only where fusing can pay does it change which.
        evaluations: changes per search and round; 0: as many as time about ten million ops.
        rounds: at most this many; the heat falls with them.
        seed: of the random changes.
        time_s: end after the round in which this many seconds have passed.
        good_enough_ns: end when this objective is reached.

    Raises:
        ValueError: the schedule has blocks that are cut.
    """
    facts = problem_arrays_of(problem)
    exchanges = EXCHANGES if fusing_saves_time(problem) else 0
    orders = packed_orders(problem, facts, schedule, exchanges=bool(exchanges))
    evaluations = evaluations or min(40_000, max(200, 10_000_000 // int(orders.lengths.sum())))
    climbers = [OrderClimber(polish, (facts, durations_by_visit_ns(problem)), REACH, exchanges) for _ in range(CLIMBS)]
    begun, cut_short, ended_by = time.perf_counter(), False, None
    with ThreadPoolExecutor(CLIMBS) as threads, stop_flag() as stop:
        best_ns = climbers[0].climb(orders, 0, 0, 0.0, stop)
        for done_rounds in range(rounds):
            heat = 2e-4 * (1 - done_rounds / rounds)
            tries = [orders.copy() for _ in range(CLIMBS)]
            jobs = [
                threads.submit(climber.climb, each, evaluations, seed * 7919 + done_rounds * CLIMBS + at, heat, stop)
                for at, (climber, each) in enumerate(zip(climbers, tries, strict=True))
            ]
            ended_by = wait_for(jobs, partial(stop.fill, True))
            values = [job.result() for job in jobs]
            best_ns = min(values)
            orders = tries[values.index(best_ns)]
            if ended_by is not None or best_ns <= good_enough_ns:
                break
            if time_s is not None and time.perf_counter() - begun > time_s and done_rounds + 1 < rounds:
                cut_short = True
                break
    return Found(unpacked_schedule(problem, orders), int(best_ns), cut_short, ended_by)


def packed_orders(problem: Problem, facts: ProblemArrays, schedule: Schedule, *, exchanges: bool) -> Orders:
    """The schedule's orders as codes; with `exchanges` there is room to split every backward.

    Raises:
        ValueError: the schedule has blocks that are cut.
    """
    stages, most = len(problem.stages), int(facts.count.max())
    number = [{microbatch: at for at, microbatch in enumerate(each)} for each in microbatches_by_stage(problem)]
    lengths = np.array([len(order) for order in schedule.orders], np.int64)
    width = lengths if not exchanges else 3 * np.bincount(facts.stage_rank, facts.count, problem.ranks).astype(np.int64)
    orders = Orders(np.zeros((problem.ranks, int(width.max())), np.int64), lengths)
    for rank, order in enumerate(schedule.orders):
        for at, op in enumerate(order):
            if op.part >= 0:
                raise ValueError(f"{op} cannot be moved as a whole block")
            orders.codes[rank, at] = (op.kind * stages + op.stage) * most + number[op.stage][op.microbatch]
    return orders


def durations_by_visit_ns(problem: Problem) -> NDArray[np.int64]:
    """[kind, stage, number of the microbatch on its stage]; only the first of the last where microbatches are alike."""
    visits, by_microbatch = microbatches_by_stage(problem), tables_of(problem).duration_ns
    if (by_microbatch == by_microbatch[:, :, :1]).all():
        return by_microbatch[:, :, :1].copy()
    duration_ns = np.zeros((len(Kind), len(visits), max(map(len, visits))), np.int64)
    for stage, each in enumerate(visits):
        duration_ns[:, stage, : len(each)] = by_microbatch[:, stage, each]
    return duration_ns


def unpacked_schedule(problem: Problem, orders: Orders) -> Schedule:
    """The schedule of the codes."""
    visits = microbatches_by_stage(problem)
    kinds, stages, most = tuple(Kind), len(visits), max(map(len, visits))

    def op(code: int) -> Op:
        block, n = divmod(code, most)
        kind, stage = divmod(block, stages)
        return Op(kinds[kind], stage, visits[stage][n])

    rows = zip(orders.codes.tolist(), orders.lengths.tolist(), strict=True)
    return Schedule(orders=tuple(tuple(op(code) for code in order[:length]) for order, length in rows))
