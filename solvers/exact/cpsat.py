"""CP-SAT as a solver: a Problem and an incumbent in, a better schedule and a proven lower bound out.

The model is `schedc.models.cpsat`; this module runs it: search parameters, limits, seed, progress. CP-SAT's objective is never
trusted: schedules are timed by the simulator, and only the bound is CP-SAT's own word. It holds for schedules of whole blocks.
"""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, product
from typing import TYPE_CHECKING

from schedc.analysis.gap import check_bound
from schedc.analysis.simulation.memory import exceeded_limit
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Defect
from schedc.ir import BoundName, Objective, Problem, Schedule
from schedc.lower.sharding import with_collectives
from schedc.models.blocks import MOST_TICKS, NothingAtMost, blocks_of, grid_of
from schedc.models.cpsat.cut_weights import build_cut
from schedc.models.cpsat.extract import add_hint, schedule_of_cpsat
from schedc.models.cpsat.model import build
from schedc.models.start_windows import windows_of
from schedc.solvers.common.base import Limits, Solved, SolverStatus, bound_of_none
from schedc.solvers.common.interruption import wait_for
from schedc.solvers.common.method import Search, fusing_saves_time
from schedc.solvers.exact.cpsat_solver import LEAST_WORK, asked_of, digest_of, for_narrow, run, solver_of, work_of
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ortools.sat.python import cp_model

    from schedc.models.cpsat.variables import CpSatVariables
    from schedc.solvers.common.incumbent import Incumbent

MOST_CUT_PAIRS = 30_000
"""Where the whole ops of ranks make more pairs, there is no model of schedules that cut W: 65,536 take 11 to 17 s to build, and
nothing ends that in time but a command's alarm."""
NEAR, NEAR_WORK, WIDER_WORK = (128, 4, 32, 2, 8), 3.0, 0.1
"""A width is one of these parts of what is open, in turn: schedules are sought above the bound by no more. Each question has this
much work, and twice as much in the next round. In which width one soon shows differs. Behind a width that is refuted comes one
twice as wide, with the last share of the work."""
BESIDE, NEAR_TICKS = 2, 1 << 14
"""Two questions at once, as local searches climb; the grid has at most this many ticks where a width is the horizon over them or
more (a tick may be up to twice as long): in odd nanoseconds CP-SAT finds nothing."""


class CpSat(Search, frozen=True):
    """CP-SAT from the best schedule of whole blocks. Workers, seed and limits are the command's."""

    name, place, graphs, slices = "cpsat", 260, True, True
    near: bool = False
    """Whether it asks only for schedules little longer than the bound: windows are narrow there, and what there is soon shows."""

    def improve(self, incumbent: Incumbent, limits: Limits) -> None:
        """Offer better schedules and bounds; while the best one cuts W, half of the limits is for a bound of all that do."""
        if self.near:
            seek_near(incumbent, limits)
            return
        was_cut = _cuts_weights(incumbent)
        limits = limits.part(0.5) if was_cut else limits
        improve_by(solve_cpsat, self.name, incumbent, limits)
        if incumbent.schedule is None or not was_cut or incumbent.gap <= limits.gap:
            return
        if _cuts_weights(incumbent):
            solved = bound_cut_weights(incumbent.problem, incumbent.schedule, limits=limits, known_bound_ns=incumbent.bound_ns)
            incumbent.take_solved(solved, BoundName.CPSAT_CUT, limits)
        else:
            improve_by(solve_cpsat, self.name, incumbent, limits)


def _cuts_weights(incumbent: Incumbent) -> bool:
    """Whether the best schedule cuts W, in a way for which there is a bound."""
    parts = incumbent.schedule.parts if incumbent.schedule is not None else ()
    return bool(parts) and BoundName.CPSAT_CUT.speaks_of(parts) and may_cut_weights(incumbent.problem)


def seek_near(incumbent: Incumbent, limits: Limits) -> None:
    """Ask for schedules little longer than the bound, of one width after another, until the limits end or all is settled.

    Where BW is cheaper, of each width at first for one that fuses nothing: the model has half as many intervals. Several workers
    ask `BESIDE` questions at once; under a limit of work one, so that the result is the same each time.
    """
    questions = tuple(product(NEAR, (False, True) if fusing_saves_time(incumbent.problem) else (True,)))
    near = _Near(incumbent, limits, questions, incumbent.work)
    beside = min(BESIDE, limits.workers) if limits.deterministic is None else 1
    with ThreadPoolExecutor(beside) as threads:
        jobs = [threads.submit(near.seek) for _ in range(beside)]
        ended_by = wait_for(jobs, near.stop, together=True)
    incumbent.cut_short |= beside > 1  # the threads raced
    for job in jobs:
        job.result()
    if ended_by is not None:
        raise ended_by


@dataclass(slots=True)
class _Near:
    """What the threads of `seek_near` share."""

    incumbent: Incumbent
    limits: Limits
    questions: tuple[tuple[int, bool], ...]  # of a round: the part of what is open that is the width, and whether any may fuse
    worked: float  # of the incumbent, before the first question
    begun_s: float = field(default_factory=time.perf_counter)
    numbers: Iterator[int] = field(default_factory=count)
    unsettled: set[int] = field(default_factory=set)  # the numbers of the questions that are being asked, or stayed open
    solvers: set[cp_model.CpSolver] = field(default_factory=set)  # those that run, or wait for their model
    is_over: bool = False

    def seek(self) -> None:
        """Ask one question after another."""
        for number in self.numbers:
            if self.is_over or number > max(self.unsettled, default=-1) + len(self.questions):
                return  # a whole round is settled, with something left open: the model leaves something out
            self.unsettled.add(number)
            if self._settles(number):
                self.unsettled.remove(number)

    def _settles(self, number: int) -> bool:
        """Ask of one width until no schedule is found, and of wider ones while each is refuted; whether all answers were final."""
        known, (part, fuses) = self.incumbent, self.questions[number % len(self.questions)]
        most_work, wider, is_final = NEAR_WORK * 2 ** (number // len(self.questions)), 1, True
        may_round = known.problem.objective is Objective.MAKESPAN  # of a span a grid that rounds proves nothing
        while True:
            left = self.limits.left(self.begun_s, known.work - self.worked)
            if self.is_over or left.least <= 0 or known.gap <= left.gap:
                self.is_over = True
                return False
            known_ns, bound_ns = known.objective_ns, known.bound_ns
            below_ns = bound_ns + 1 + wider * (known_ns - bound_ns) // part
            work = most_work if wider == 1 else WIDER_WORK * most_work
            solver = for_narrow(replace(left, seed=left.seed + number), work, proves=fuses)
            rounds = may_round and known_ns < NEAR_TICKS * (below_ns - bound_ns)
            ticks = NEAR_TICKS if rounds else MOST_TICKS
            self.solvers.add(solver)
            solve = partial(solve_cpsat, below_ns=below_ns, most_ticks=ticks, fuses=fuses, solver=solver)
            status = improve_by(solve, CpSat.name, known, left)
            self.solvers.remove(solver)
            is_final &= status.is_final
            if known.objective_ns == known_ns and rounds and status is SolverStatus.RELAXED:
                may_round = False  # what there is on this grid takes longer in nanoseconds
            elif known.objective_ns == known_ns and fuses and status.is_final and known.bound_ns > bound_ns:
                wider = min(2 * wider, part // 2)
            elif known.objective_ns == known_ns and wider == 1:
                return is_final
            else:
                wider = 1

    def stop(self) -> None:
        """End soon; to be called until all have ended, as a search that has not begun does not stop."""
        self.is_over = True
        for solver in tuple(self.solvers):
            solver.stop_search()


def improve_by(solve: Callable[..., Solved], name: str, incumbent: Incumbent, limits: Limits) -> SolverStatus:
    """Let CP-SAT go on from the best schedule of whole blocks and the best bound; what it finds is taken at once."""
    solved = solve(
        incumbent.problem,
        incumbent.start,
        limits=limits,
        known_bound_ns=incumbent.bound_ns,
        on_schedule=lambda schedule: incumbent.offer_valid(schedule, name),
        on_bound=lambda bound_ns: incumbent.raise_bound(bound_ns, BoundName.CPSAT, ()),
    )
    incumbent.take_solved(solved, BoundName.CPSAT, limits)
    return solved.status


def solve_cpsat(
    problem: Problem,
    incumbent: Schedule,
    *,
    limits: Limits,
    known_bound_ns: int = 0,
    most_ticks: int = MOST_TICKS,
    below_ns: int | None = None,
    solver: cp_model.CpSolver | None = None,
    fuses: bool = True,
    on_schedule: Callable[[Schedule], None] = lambda _: None,
    on_bound: Callable[[int], None] = lambda _: None,
) -> Solved:
    """Improve the incumbent, or prove that nothing is better.

    Args:
        problem: what must be done.
        incumbent: a valid schedule of whole blocks; the search starts from it and looks only below its objective.
        limits: when to stop, and the seed.
        known_bound_ns: a lower bound that is known already; the search does not look below it.
        most_ticks: at most this many ticks up to the horizon.
        below_ns: only schedules with a smaller objective are sought, though the incumbent has a larger one; if there is none, that
            is proven. None: all that are as good as the incumbent.
        solver: the solver to use; None: one of `solver_of`.
        fuses: whether schedules are sought that fuse a backward, too; where not, nothing is said of bounds.
        on_schedule: is called with every better schedule.
        on_bound: is called with every better bound, in nanoseconds.

    Raises:
        Defect: a bound is above the incumbent's objective, CP-SAT says that there is no schedule as good, or the model is invalid.
    """
    timeline = simulate(problem, incumbent)
    best, best_ns = incumbent, timeline.objective_ns(problem.objective)
    check_bound(known_bound_ns, best_ns, "known before cpsat")
    grid = grid_of(problem, timeline.makespan_ns, most_ticks)
    blocks = blocks_of(problem, grid)
    # Rounding every duration down can shorten how late a rank begins more than how late it ends, and so lengthen its span.
    valid = grid.exact or problem.objective is Objective.MAKESPAN
    # With a rounded grid a schedule can take fewer ticks than its nanoseconds say, so nothing is said from below.
    floor = -(-known_bound_ns // grid.tick_ns) if grid.exact and valid else 0
    solver = solver or solver_of(limits)
    valid = valid and fuses and not solver.parameters.use_strong_propagation_in_disjunctive  # false bounds: see `for_narrow`
    is_below = below_ns is not None and below_ns <= best_ns  # the incumbent is none of what is sought
    most = grid.ticks(below_ns - 1 if is_below and below_ns is not None else best_ns)

    def bound_of_nothing_ns() -> int:
        if is_below:
            return (most + 1) * grid.tick_ns if valid else 0
        return bound_of_none(blocks, incumbent, best_ns, is_bound=valid, claimed_by="cpsat")

    try:
        variables = build(problem, blocks, windows_of(problem, blocks, most), floor, most)
    except NothingAtMost as reason:  # the incumbent does what the model's blocks cannot, and is better than all that they can
        ended, none_ns, log = SolverStatus.INFEASIBLE, bound_of_nothing_ns(), (str(reason),)
        return Solved(schedule=best, objective_ns=best_ns, lower_bound_ns=none_ns, status=ended, log=log, work=LEAST_WORK)
    if not fuses:
        for is_fused in variables.fused.values():
            variables.model.add(is_fused == 0)
    elif not is_below:
        add_hint(variables, incumbent, timeline, grid, best_ns)
    if valid:
        solver.best_bound_callback = lambda bound: on_bound(int(bound) * grid.tick_ns)
    status, ended_by = run(solver, variables.model, _listener(variables, problem, on_schedule))
    if status in (SolverStatus.OPTIMAL, SolverStatus.FEASIBLE):
        found = with_collectives(problem, schedule_of_cpsat(variables, problem, solver.value))
        if found is not None:
            found_ns = simulate(problem, found).objective_ns(problem.objective)
            if found_ns < best_ns and not verify_schedule(problem, found) and exceeded_limit(problem, found) is None:
                best, best_ns = found, found_ns
        status = status.of_schedule(int(solver.objective_value) * grid.tick_ns, best_ns)
    least = int(solver.best_objective_bound)
    bound_ns = bound_of_nothing_ns() if status is SolverStatus.INFEASIBLE else least * grid.tick_ns if valid else 0
    return Solved(
        schedule=best,
        objective_ns=best_ns,
        lower_bound_ns=bound_ns,
        status=status,
        log=(*asked_of(solver), digest_of(variables.model), f"status {status}, best bound {least} ticks"),
        work=work_of(solver),
        ended_by=ended_by,
    )


def may_cut_weights(problem: Problem) -> bool:
    """Whether there is a model of the schedules that cut W alone: of chains of few whole microbatches, for the makespan."""
    on_rank = Counter(problem.stages[stage].rank for stage, _ in problem.blocks())  # an F and a backward each
    is_small = sum((2 * count) ** 2 // 2 for count in on_rank.values()) <= MOST_CUT_PAIRS
    chain = is_small and not (problem.edges or problem.slices or problem.updates or problem.is_sharded)
    return chain and problem.objective is Objective.MAKESPAN and problem.split_backward and problem.cut_blocks


def bound_cut_weights(problem: Problem, known: Schedule, *, limits: Limits, known_bound_ns: int = 0) -> Solved:
    """A lower bound for all schedules whose F, B and BW are whole, however they cut W; the known one is kept.

    Args:
        problem: one of `may_cut_weights`.
        known: a valid schedule that cuts no other blocks.
        limits: when to stop, and the seed.
        known_bound_ns: a lower bound that is known already.

    Raises:
        Defect: the model has no schedule as good as the known one, or is invalid.
    """
    known_ns = simulate(problem, known).makespan_ns
    check_bound(known_bound_ns, known_ns, "known before cpsat")
    grid = grid_of(problem, known_ns)
    blocks, most = blocks_of(problem, grid), grid.ticks(known_ns)
    try:
        model = build_cut(problem, blocks, windows_of(problem, blocks, most), known_bound_ns // grid.tick_ns, most)
    except NothingAtMost as reason:
        raise Defect(f"cpsat: {reason}, but one of {known_ns} ns that cuts weight gradients is known") from reason
    solver = solver_of(limits)
    status, ended_by = run(solver, model)
    if status is SolverStatus.INFEASIBLE:
        raise Defect(f"cpsat: no schedule takes {known_ns} ns or less, but one that cuts weight gradients does")
    least = int(solver.best_objective_bound)
    answer = f"status {status}, at least {least} ticks of {grid.tick_ns} ns"
    return Solved(
        schedule=known,
        objective_ns=known_ns,
        lower_bound_ns=max(known_bound_ns, least * grid.tick_ns),
        status=status.of_schedule(least * grid.tick_ns, known_ns),
        log=(*asked_of(solver), "weight gradients cut wherever that is better", digest_of(model), answer),
        work=work_of(solver),
        ended_by=ended_by,
    )


def _listener(
    variables: CpSatVariables, problem: Problem, on_schedule: Callable[[Schedule], None]
) -> cp_model.CpSolverSolutionCallback:
    """What turns each solution of the solver into a schedule."""
    from ortools.sat.python import cp_model

    class Listener(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            found = with_collectives(problem, schedule_of_cpsat(variables, problem, self.value))
            if found is not None:
                on_schedule(found)

    return Listener()
