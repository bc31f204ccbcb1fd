"""CP-SAT as a solver: a Problem and an incumbent in, a better schedule and a proven lower bound out.

The model is `schedc.models.cpsat`; this module runs it: search parameters, limits, seed, progress. CP-SAT's objective is never
trusted: schedules are timed by the simulator, and only the bound is CP-SAT's own word. It holds for schedules of whole blocks.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.metadata import version
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
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortools.sat.python import cp_model

    from schedc.models.cpsat.variables import CpSatVariables
    from schedc.solvers.common.incumbent import Incumbent

LARGE = 1 << 27
"""With values above this the presolve's search for rows within rows is left out: it adds coefficients of Booleans in 32 bits, and
what it proves where that overflows is false (google/or-tools, issue 5293, of ortools 9.15)."""
MOST_AREA = 1 << 31
"""Where a resource's capacity times the horizon is more than this, the LP adds no cuts: rows of those for scheduling have such
areas as coefficients of times, and squares of them; where 64 bits overflow, ortools 9.15 ends the process, or a bound is false."""
NEIGHBOURHOOD, NEIGHBOURHOODS = 0.1, 50
"""A neighbourhood gets the first at most, CP-SAT's own limit, and of a limit of work one in the second at most: in odd nanoseconds
its search may come down one by one, of which CP-SAT counts a hundredth."""
MOST_CUT_PAIRS = 30_000
"""Where the whole ops of ranks make more pairs, there is no model of schedules that cut W: 65,536 take 11 to 17 s to build, and
nothing ends that in time but a command's alarm."""

NEAR_TICKS = 1 << 14
"""The grid of these questions is so coarse, where a width is a tick of it or more: in odd nanoseconds CP-SAT finds nothing."""
CONFLICTS, LEAST_WORK = 20_000, 1e-3
"""So many conflicts of one worker count as one unit of work, at least: in odd nanoseconds it may raise a start one tick at a time,
which CP-SAT hardly counts. And no question counts as less than the second."""
NEAR, NEAR_WORK, WIDER_WORK = (128, 4, 32, 2, 8), 3.0, 0.1
"""Near the bound: above it by one of these parts of what is open, in turn; so much work is for each, and twice as much in the next
round. In which of them a schedule soon shows differs: M70's loop link-0.25-2 has one 2 and 71 ticks above the bound, not 35. Behind
one that is refuted comes twice that width, with the last share of the work, until that is open."""

SOLVER = "solver CP-SAT, ortools {}"


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

    Where BW is cheaper, of each width at first for one that fuses nothing: the model has half as many intervals.
    """
    questions = tuple(product(NEAR, (False, True) if fusing_saves_time(incumbent.problem) else (True,)))
    begun_s, worked, work, at, wider, is_open = time.perf_counter(), incumbent.work, NEAR_WORK, 0, 1, False
    for number in count():
        left = limits.left(begun_s, max(incumbent.work - worked, number * LEAST_WORK))
        if incumbent.gap <= limits.gap or left.least <= 0:
            return
        known_ns, bound_ns, (part, fuses) = incumbent.objective_ns, incumbent.bound_ns, questions[at]
        below_ns = bound_ns + 1 + wider * (known_ns - bound_ns) // part
        most_ticks = NEAR_TICKS if known_ns < NEAR_TICKS * (below_ns - bound_ns) else MOST_TICKS
        make = partial(for_narrow, work=work if wider == 1 else WIDER_WORK * work)
        solve = partial(solve_cpsat, below_ns=below_ns, most_ticks=most_ticks, fuses=fuses, solver_by=make)
        is_final = improve_by(solve, CpSat.name, incumbent, replace(left, seed=limits.seed + number)).is_final
        if incumbent.objective_ns == known_ns and incumbent.bound_ns > bound_ns:
            wider = min(2 * wider, part // 2)
            continue
        is_open |= wider == 1 and not is_final
        at, wider = at + (wider == 1 and incumbent.objective_ns == known_ns), 1
        if at == len(questions):
            if not is_open:
                return  # the model leaves something out
            at, work, is_open = 0, 2 * work, False


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
    solver_by: Callable[[Limits], cp_model.CpSolver] | None = None,
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
        most_ticks: the grid is coarser where it would have more.
        below_ns: only schedules with a smaller objective are sought, though the incumbent has a larger one; if there is none, that
            is proven. None: all that are as good as the incumbent.
        solver_by: makes the solver; None: `solver_of`.
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
    valid = valid and (fuses or not blocks.fused)
    is_below = below_ns is not None and below_ns <= best_ns  # the incumbent is none of what is sought
    most = grid.ticks(below_ns - 1 if is_below and below_ns is not None else best_ns)

    def bound_of_nothing_ns() -> int:
        if is_below:
            return (most + 1) * grid.tick_ns if valid else 0
        return bound_of_none(blocks, incumbent, best_ns, is_bound=valid, claimed_by="cpsat")

    try:
        variables = build(problem, blocks, windows_of(problem, blocks, most), floor, most)
    except NothingAtMost as reason:  # the incumbent does what the model's blocks cannot, and is better than all that they can
        ended = SolverStatus.INFEASIBLE
        return Solved(schedule=best, objective_ns=best_ns, lower_bound_ns=bound_of_nothing_ns(), status=ended, log=(str(reason),))
    if not fuses:
        for is_fused in variables.fused.values():
            variables.model.add(is_fused == 0)
    elif not is_below:
        add_hint(variables, incumbent, timeline, grid, best_ns)
    solver = (solver_by or solver_of)(limits)
    if valid:
        solver.best_bound_callback = lambda bound: on_bound(int(bound) * grid.tick_ns)
    status, ended_by = run(solver, variables.model, _listener(variables, problem, on_schedule))
    name = solver.status_name(status)
    if name in (SolverStatus.OPTIMAL, SolverStatus.FEASIBLE):
        found = with_collectives(problem, schedule_of_cpsat(variables, problem, solver.value))
        if found is not None:
            found_ns = simulate(problem, found).objective_ns(problem.objective)
            if found_ns < best_ns and not verify_schedule(problem, found) and exceeded_limit(problem, found) is None:
                best, best_ns = found, found_ns
        name = SolverStatus(name).of_schedule(int(solver.objective_value) * grid.tick_ns, best_ns)
    if name == SolverStatus.INFEASIBLE:
        bound_ns = bound_of_nothing_ns()
    else:
        bound_ns = int(solver.best_objective_bound) * grid.tick_ns if valid else 0
    parameters = solver.parameters
    return Solved(
        schedule=best,
        objective_ns=best_ns,
        lower_bound_ns=bound_ns,
        status=SolverStatus(name),
        log=(
            SOLVER.format(version("ortools")),
            f"{parameters.num_workers} workers, seed {parameters.random_seed}, gap {parameters.relative_gap_limit}",
            digest_of(variables.model),
            f"status {name}, best bound {int(solver.best_objective_bound)} ticks",
        ),
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
    name = solver.status_name(status)
    if name == SolverStatus.INFEASIBLE:
        raise Defect(f"cpsat: no schedule takes {known_ns} ns or less, but one that cuts weight gradients does")
    least = int(solver.best_objective_bound)
    return Solved(
        schedule=known,
        objective_ns=known_ns,
        lower_bound_ns=max(known_bound_ns, least * grid.tick_ns),
        status=SolverStatus(name).of_schedule(least * grid.tick_ns, known_ns),
        log=(
            SOLVER.format(version("ortools")),
            f"{limits.workers} workers, seed {limits.seed}, gap {limits.gap}",
            "weight gradients cut wherever that is better",
            digest_of(model),
            f"status {name}, at least {least} ticks of {grid.tick_ns} ns",
        ),
        work=solver.response_proto.deterministic_time,
        ended_by=ended_by,
    )


def run(
    solver: cp_model.CpSolver, model: cp_model.CpModel, listener: cp_model.CpSolverSolutionCallback | None = None
) -> tuple[cp_model.CpSolverStatus, BaseException | None]:
    """Solve in a thread of its own, so that an interruption is noticed at once; the status, and the interruption that ended it.

    CP-SAT's own way with Ctrl-C leaves the default handler behind, and would kill the process the next time.

    Raises:
        Defect: the model is invalid.
    """
    from ortools.sat.python import cp_model

    solver.parameters.catch_sigint_signal = False
    horizon = max((max(variable.domain) for variable in model.proto.variables), default=0)  # its domain[-1] is 0, always
    capacity = max((each.cumulative.capacity.offset for each in model.proto.constraints if each.has_cumulative()), default=1)
    if max(horizon, capacity) > LARGE:  # demands may become coefficients, too: of the Booleans that say whether a block is fused
        solver.parameters.presolve_inclusion_work_limit = 0
    if capacity * horizon > MOST_AREA:
        solver.parameters.cut_level = 0
    with ThreadPoolExecutor(1) as thread:
        job = thread.submit(solver.solve, model, listener)
        ended_by = wait_for([job], solver.stop_search)
    status = job.result()
    if status == cp_model.MODEL_INVALID:
        raise Defect(f"CP-SAT says that the model is invalid: {model.validate()}")
    return status, ended_by


def solver_of(limits: Limits) -> cp_model.CpSolver:
    """CP-SAT with these limits, workers and seed."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = limits.workers
    parameters.random_seed = limits.seed
    parameters.relative_gap_limit = limits.gap
    if limits.deterministic is not None:
        parameters.max_deterministic_time = limits.deterministic
        parameters.interleave_search = True  # the workers take turns in a fixed order
        parameters.lns_initial_deterministic_limit = min(NEIGHBOURHOOD, limits.deterministic / NEIGHBOURHOODS)
    elif limits.time_s is not None:
        parameters.max_time_in_seconds = limits.time_s
    return solver


def one_worker(limits: Limits) -> cp_model.CpSolver:
    """CP-SAT with one search; the new propagation of linear rows (ortools 9.15) moves times on one by one, and counts no work."""
    solver = solver_of(replace(limits, workers=1))
    solver.parameters.interleave_search = solver.parameters.new_linear_propagation = False
    if limits.deterministic is not None:
        solver.parameters.max_number_of_conflicts = max(1, int(CONFLICTS * limits.deterministic))
    return solver


def work_of(solver: cp_model.CpSolver) -> float:
    """What it spent, in the units of a deterministic limit."""
    of_conflicts = solver.num_conflicts / CONFLICTS if solver.parameters.num_workers == 1 else 0.0
    return max(solver.response_proto.deterministic_time, of_conflicts)


def for_narrow(limits: Limits, work: float) -> cp_model.CpSolver:
    """For narrow windows, where the order of two ops follows from the others; no LP, and no more than this work."""
    solver = one_worker(replace(limits, deterministic=min(work, limits.deterministic or work)))
    if limits.clock_s is not None:
        solver.parameters.max_time_in_seconds = limits.clock_s
    solver.parameters.linearization_level, solver.parameters.use_strong_propagation_in_disjunctive = 0, True
    return solver


def asked_of(solver: cp_model.CpSolver) -> tuple[str, str]:
    """What a certificate says of who answered a question: the solver's version, its workers and its seed."""
    parameters = solver.parameters
    return SOLVER.format(version("ortools")), f"{parameters.num_workers} workers, seed {parameters.random_seed}"


def digest_of(model: cp_model.CpModel) -> str:
    """A model's size and digest: whoever builds the same model can check that it was this one."""
    digest = hashlib.sha256(str(model.proto).encode()).hexdigest()
    return f"model {len(model.proto.variables)} variables, {len(model.proto.constraints)} constraints, sha256 {digest}"


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
