"""The least period by CP-SAT: one period after another is found feasible, or refuted.

A Problem whose steps overlap and a known period go in; a better one and a proven lower bound come out. The model is
`schedc.models.modulo`. Each period T is a question of its own: has any schedule this period? No is a proof that all periods are
T + 1 or more, as a schedule with period T also has all longer ones. What is asked in which order says `_settle`: two microbatches
alone, which raise the bound (`modulo_distance`), periods of few microbatches, schedules near the best, and which periods some ranks
refute alone (`modulo_parts`). What is just below the best known proves it. Of the least period that is found the delays are
minimized. Schedules are timed by `steady_state`; only the bound is CP-SAT's own word. A model grows with the pairs of a rank's ops.
To build it counts as work; none is built of a very long period, or where too little is left of a limit: what is known is kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from schedc.analysis.bounds.lower_bounds import cheap_bound_ns
from schedc.analysis.gap import check_bound
from schedc.analysis.simulation.period import steady_state
from schedc.analysis.simulation.versions import versions_of
from schedc.errors import Unsupported
from schedc.ir import Problem, Schedule, Versions
from schedc.models.modulo import minimize_delays, pairs_of
from schedc.solvers.common.base import Limits, Solved, SolverStatus
from schedc.solvers.common.method import Search
from schedc.solvers.exact.cpsat import improve_by
from schedc.solvers.exact.cpsat_solver import SOLVER
from schedc.solvers.exact.modulo_distance import ask_of_distances
from schedc.solvers.exact.modulo_parts import BUILDS, ask_of_parts, climb
from schedc.solvers.exact.modulo_questions import Known, ask, build, solve
from schedc.solvers.heuristics.steady import planned
from schedc.solvers.heuristics.steady_repeat import repeats
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.solvers.common.incumbent import Incumbent

FIRST_SHARE, SHARE = 0.12, 0.15
"""Of what is left of a limit, each of the first questions gets the first share, each later one the second."""
NARROW = 10_000
"""When the periods without an answer span less than the best over this, the one just below the best gets the rest of the limit."""
REPEATS, CLIMB, PARTS = 0.4, 0.5, 0.6
"""Once this much of a limit is spent, no step of few microbatches is planned; nothing is asked near the best; nothing is asked of
some ranks."""
REPEAT_SHARE = 0.08
"""Of what is left of a limit, a step of few microbatches gets this much."""
DELAYS_SHARE = 0.3
"""The least delays get this much of it, once the period is settled."""
MOST_PAIRS = 50_000
"""With more of them nothing is asked: a model would take five seconds and half a gigabyte, its search several times that."""


class Modulo(Search, frozen=True):
    """CP-SAT on the modulo schedule, from the best period known. Workers, seed and limits are the command's."""

    name, place = "modulo", 265
    steps_overlap = True

    def improve(self, incumbent: Incumbent, limits: Limits) -> None:
        """Offer shorter periods, and bounds."""
        improve_by(solve_modulo, self.name, incumbent, limits)


def solve_modulo(
    problem: Problem,
    incumbent: Schedule,
    *,
    limits: Limits,
    known_bound_ns: int = 1,
    on_schedule: Callable[[Schedule], None] = lambda _: None,
    on_bound: Callable[[int], None] = lambda _: None,
) -> Solved:
    """Find the least period, or prove that the known one is.

    Arguments are those of `solve_cpsat`: the problem is one step of a run without end, the incumbent a valid period. Only shorter
    ones, and those of less delay, are better. All questions share the limits.

    Raises:
        Unsupported: the problem's steps do not overlap.
        Defect: a bound is above a known period.
    """
    if problem.updates is None or not problem.updates.is_period:
        raise Unsupported("modulo finds periods; this job's steps do not overlap")
    first_ns = steady_state(problem, incumbent).period_ns
    check_bound(known_bound_ns, first_ns, "known before modulo")
    pairs = pairs_of(problem, range(problem.ranks))
    known = Known(problem, limits, incumbent, first_ns, max(1, known_bound_ns), on_schedule, on_bound)
    if pairs > MOST_PAIRS:
        known.log.append(f"{pairs} pairs of ops, of which no model is built")
    else:
        _settle(known)
        if not known.is_over and _fewer_delays(known):
            on_schedule(known.best)
    status = SolverStatus.OPTIMAL if known.best_ns == known.lower_ns else SolverStatus.FEASIBLE
    return Solved(
        schedule=known.best,
        objective_ns=known.best_ns,
        lower_bound_ns=known.lower_ns,
        status=status,
        log=(SOLVER, f"seed {limits.seed}", *known.log),
        work=known.work,
        ended_by=known.ended_by,
    )


def _settle(known: Known) -> None:
    """Ask until the period is proven, or the limits are spent.

    First come two microbatches alone, which are easy. Then the bound and what is just below the best, each for a small share of
    the limits; then periods of few microbatches, which are repeated (before the bound where models are large); then what is near
    the best, and what some ranks refute. Then again what is just below the best. Where that has no answer in its time, shorter
    periods are asked for, which are easier to refute: near it after one that was answered, in the middle after one that was not.
    At last it gets the rest.
    """
    ask_of_distances(known)
    is_large = known.build_s() > BUILDS * known.left.least
    if is_large:
        repeat(known)
    if known.lower_ns < known.best_ns - 1 and not known.is_over:
        ask(known, known.lower_ns, FIRST_SHARE)
    best_ns = 0
    while known.best_ns != best_ns and not known.is_proven and not known.is_over and known.spent < REPEATS:
        best_ns = known.best_ns
        ask(known, best_ns - 1, FIRST_SHARE)
    if not is_large:
        repeat(known)
    climb(known, CLIMB)
    ask_of_parts(known, PARTS)
    best_ns, hard_ns, near, share = 0, 0, 2, SHARE
    while not known.is_proven and not known.is_over and share == SHARE:
        if known.best_ns != best_ns:
            best_ns = known.best_ns
            period_ns = hard_ns = best_ns - 1
        elif hard_ns - known.lower_ns > best_ns // NARROW:
            period_ns = max(known.lower_ns, hard_ns - 1 - (hard_ns - known.lower_ns) // near)
        else:
            period_ns, share = known.best_ns - 1, 1.0
        lower_ns = known.lower_ns
        ask(known, period_ns, share)
        near = 8 if known.lower_ns > lower_ns or known.best_ns < best_ns else 2
        if near == 2 and known.best_ns == best_ns:
            hard_ns = min(hard_ns, period_ns)


def repeat(known: Known) -> None:
    """Where a step has several microbatches, plan one of fewer in the same way, and repeat it. What keeps the rules counts.

    In a repeated schedule each update runs as soon as it can. That may cost time, or take versions for which there is no room. So
    CP-SAT is asked for the same schedule with updates where they cost nothing. The period that it is asked for is what the schedule
    would have if updates took no time.
    """
    problem = known.problem

    def is_enough() -> bool:
        return known.is_proven or known.is_over or known.spent >= REPEATS

    def planned_short(short: Problem) -> Schedule:
        first = planned(short)
        if is_enough() or verify_schedule(short, first):  # where it has no room, bounds say nothing of it
            return first
        limits = known.part(REPEAT_SHARE, is_small=True)
        solved = solve_modulo(short, first, limits=limits, known_bound_ns=cheap_bound_ns(short))
        known.work += solved.work
        known.ended_by = known.ended_by or solved.ended_by
        return solved.schedule

    for schedule in repeats(problem, planned_short):
        if is_enough():
            break
        if not verify_schedule(problem, schedule):
            known.take(schedule)
        timeless = replace(problem, stages=tuple(replace(stage, update_ns=0) for stage in problem.stages))
        period_ns = max(known.lower_ns, steady_state(timeless, schedule).period_ns)
        if period_ns < known.best_ns and not is_enough():
            ask(known, period_ns, SHARE, like=schedule)


def _fewer_delays(known: Known) -> bool:
    """Whether a schedule of the same period is found whose stages have less delay together, which then is the best."""
    before = sum(versions_of(known.problem, known.best).delays)
    updates = known.problem.updates
    if before == 0 or updates is None or updates.versions is Versions.TWO_BUFFERED:
        return False
    built = build(known, known.best_ns, is_strict=True)
    minimize_delays(built)
    _, found = solve(known, built, DELAYS_SHARE)
    if found is None or steady_state(known.problem, found).period_ns > known.best_ns:
        return False
    if sum(versions_of(known.problem, found).delays) >= before:
        return False
    known.best = found
    return True
