"""Large-neighbourhood search (Shaw 1998) over orders: CP-SAT orders the later part of the best schedule anew.

An incumbent goes in, better schedules come out, and no bounds. `polish` changes a few ops at a time; where links are busy, what
lies between two rhythms of microbatches is worse than both. CP-SAT finds the other one where the orders of the beginning are given,
by clauses alone, from no hint. The more is given, the sooner a question is settled.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from schedc.analysis.simulation.simulate import simulate
from schedc.ir import Kind, Schedule
from schedc.lower.sharding import with_collectives
from schedc.models.blocks import NothingAtMost, blocks_of, grid_of
from schedc.models.cpsat.extract import schedule_of_cpsat
from schedc.models.cpsat.model import build
from schedc.models.start_windows import windows_of
from schedc.solvers.common.base import SolverStatus
from schedc.solvers.common.interruption import wait_for
from schedc.solvers.common.method import Search
from schedc.solvers.exact.cpsat import run, solver_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortools.sat.python import cp_model

    from schedc.ir import Op, Problem
    from schedc.models.cpsat.variables import CpSatVariables
    from schedc.solvers.common.base import Limits
    from schedc.solvers.common.incumbent import Incumbent

GIVEN = (0.5, 0.4), (0.3, 0.25), (0.2, 0.15), (0.1, 0.0)
"""Shares of the makespan whose orders are given; those of a pair are asked beside each other. Not always is a question harder where
less is given: more better schedules may be left."""
WORK = 2.0
"""CP-SAT's deterministic time for one question."""
LEAST_GAIN = 5e-5
"""Schedules are sought that are better by this share, or by more."""
FRUITLESS = 2 * len(GIVEN)
"""After so many pairs of questions in a row that found nothing it ends."""


class Lns(Search, frozen=True):
    """Large-neighbourhood search: CP-SAT orders the later part of the best schedule of whole blocks anew, as much as it can settle.

    Two questions at a time, each by one worker.
    """

    name, place, graphs, slices = "lns", 255, True, True

    def improve(self, incumbent: Incumbent, limits: Limits) -> None:
        """Offer better schedules until the limits end, all is settled, or nothing comes of it."""
        at, fruitless, begun_s, spent = 0, 0, time.perf_counter(), 0.0
        for number in count():
            left = limits.left(begun_s, spent)
            if fruitless == FRUITLESS or incumbent.gap <= limits.gap:
                return
            if left.least <= 0:
                incumbent.cut_short |= left.clock_s is not None
                return
            work_before, before_ns = incumbent.work, incumbent.objective_ns
            models = [later_part(incumbent.problem, incumbent.start, given, incumbent.bound_ns) for given in GIVEN[at]]
            solvers = [_solver(replace(left, seed=limits.seed + len(models) * number + each)) for each in range(len(models))]
            status, is_better = self._ask(incumbent, models, solvers)[-1], incumbent.objective_ns < before_ns
            spent, fruitless = spent + incumbent.work - work_before, 0 if is_better else fruitless + 1
            if status.is_final and GIVEN[at] == GIVEN[-1]:
                return
            at = at if is_better and not status.is_final else (at + 1) % len(GIVEN)

    def _ask(
        self, incumbent: Incumbent, models: Sequence[CpSatVariables | None], solvers: Sequence[cp_model.CpSolver]
    ) -> list[SolverStatus]:
        """Ask all beside each other, and offer what they find."""

        def stop() -> None:
            for solver in solvers:
                solver.stop_search()

        with ThreadPoolExecutor(len(models)) as threads:
            asked = {
                number: threads.submit(run, solver, variables.model)
                for number, (solver, variables) in enumerate(zip(solvers, models, strict=True))
                if variables is not None
            }
            ended_by = wait_for(list(asked.values()), stop)
        statuses = [SolverStatus.INFEASIBLE] * len(models)
        for number, job in asked.items():
            solver, variables = solvers[number], models[number]
            statuses[number] = SolverStatus(solver.status_name(job.result()[0]))
            incumbent.work += solver.response_proto.deterministic_time
            if variables is not None and statuses[number] in (SolverStatus.OPTIMAL, SolverStatus.FEASIBLE):
                found = with_collectives(incumbent.problem, schedule_of_cpsat(variables, incumbent.problem, solver.value))
                if found is not None:
                    incumbent.offer_valid(found, self.name)
        if ended_by is not None:
            raise ended_by
        return statuses


def _solver(limits: Limits) -> cp_model.CpSolver:
    """CP-SAT as it finds such schedules soonest: one search with quick restarts, without linear relaxation."""
    from ortools.sat.python import cp_model

    work = WORK if limits.deterministic is None else min(WORK, limits.deterministic / 2)
    solver = solver_of(replace(limits, workers=1, gap=0.0, deterministic=work))
    parameters = solver.parameters
    parameters.interleave_search, parameters.linearization_level, parameters.new_linear_propagation = False, 0, False
    parameters.search_branching = cp_model.PORTFOLIO_WITH_QUICK_RESTART_SEARCH
    if limits.clock_s is not None:
        parameters.max_time_in_seconds = limits.clock_s
    return solver


def later_part(problem: Problem, schedule: Schedule, given: float, bound_ns: int) -> CpSatVariables | None:
    """The model of better schedules in which the ops of each rank that start in the first part of this one keep their order.

    Args:
        problem: what must be done.
        schedule: of whole blocks; what it fuses of the first part stays fused.
        given: the first part, as a share of the makespan.
        bound_ns: a lower bound on the objective.

    Returns:
        None: there are none, as the bound says or start windows.
    """
    timeline = simulate(problem, schedule)
    grid = grid_of(problem, timeline.makespan_ns)
    blocks = blocks_of(problem, grid)
    best_ns = timeline.objective_ns(problem.objective)
    most = grid.ticks(best_ns - max(grid.tick_ns, int(LEAST_GAIN * best_ns)))
    try:
        variables = build(problem, blocks, windows_of(problem, blocks, most), bound_ns // grid.tick_ns, most)
    except NothingAtMost:
        return None
    until_ns = given * timeline.makespan_ns
    for rank, order in enumerate(schedule.orders):
        before: Op | None = None
        for op, start_ns in zip(order, timeline.start_ns(rank), strict=True):
            backward = op._replace(kind=Kind.B)
            if start_ns >= until_ns:
                break
            if backward in variables.fused and op.kind in (Kind.B, Kind.BW):
                variables.model.add(variables.fused[backward] == (op.kind is Kind.BW))
            halves = [backward] if backward in variables.fused else [backward, op._replace(kind=Kind.W)]
            for each in [op] if op in variables.start else halves:  # BW that is no choice of the model is B, and then W
                if before is not None:
                    variables.add_after(variables.start[each], before)
                before = each
    return variables
