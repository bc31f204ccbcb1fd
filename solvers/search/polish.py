"""Local search over orders: from a schedule, single ops are moved within their ranks as long as nothing gets worse.

A Problem and a Schedule of whole blocks go in, a better Schedule or the same comes out. Each move is timed by a compiled pass
over all ops, so tens of thousands of them are tried in a second. It finishes what a rule or a template leaves undone.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from schedc.ir.ops import Kind, Op
from schedc.ir.schedule import Schedule
from schedc.solvers.common.interruption import wait_for
from schedc.solvers.kernel.facts import facts_of, microbatches_by_stage
from schedc.solvers.kernel.order_evaluator import OrderClimber
from schedc.solvers.kernel.rule_kernel import stop_flag
from schedc.solvers.search.local import Found

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from schedc.ir.problem import Problem

__all__ = ["polish_schedule"]

CLIMBS = 2
"""Searches beside each other in one round; each next round starts from the best of them."""
REACH = 10
"""How far an op may be moved."""


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
        schedule: of whole blocks, split or fused throughout as the problem says.
        evaluations: moves per search and round; 0: as many as time about ten million ops.
        rounds: at most this many; the heat falls with them.
        seed: of the random moves.
        time_s: end after the round in which this many seconds have passed.
        good_enough_ns: end when this objective is reached.

    Raises:
        ValueError: the schedule has blocks that are cut, or fused where the problem splits.
    """
    facts = facts_of(problem)
    stages, most = len(problem.stages), int(facts.count.max())
    visits = microbatches_by_stage(problem)
    number = [{microbatch: at for at, microbatch in enumerate(each)} for each in visits]
    rows = {Kind.F: 0, Kind.B: 1, Kind.W: 2} if problem.split_backward else {Kind.F: 0, Kind.BW: 1}
    lengths = np.array([len(order) for order in schedule.orders], np.int64)
    orders = np.zeros((problem.ranks, int(lengths.max())), np.int64)
    for rank, order in enumerate(schedule.orders):
        for at, op in enumerate(order):
            if op.part >= 0 or op.kind not in rows:
                raise ValueError(f"{op} cannot be moved as a whole block of this problem")
            orders[rank, at] = (rows[op.kind] * stages + op.stage) * most + number[op.stage][op.microbatch]
    evaluations = evaluations or min(40_000, max(200, 10_000_000 // int(lengths.sum())))
    climbers = [OrderClimber(facts, lengths, REACH) for _ in range(CLIMBS)]
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
    kinds = {row: kind for kind, row in rows.items()}
    return Found(_schedule(orders, lengths, kinds, visits, most), best_ns, cut_short, ended_by)


def _schedule(
    orders: NDArray[np.int64], lengths: NDArray[np.int64], kinds: dict[int, Kind], visits: list[list[int]], most: int
) -> Schedule:
    stages = len(visits)

    def op(code: int) -> Op:
        block, n = divmod(code, most)
        row, stage = divmod(block, stages)
        return Op(kinds[row], stage, visits[stage][n])

    rows = zip(orders.tolist(), lengths.tolist(), strict=True)
    return Schedule(orders=tuple(tuple(op(code) for code in order[:length]) for order, length in rows))
