"""The driver: Problem → bounds → method → Schedule → verified → Plan → verified.

`compile_problem` is the compiler behind `schedc compile`: whatever method made the schedule, the same simulator times it
and the same verifiers accept it, and no plan leaves that its own verifier refuses.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from schedc import __version__
from schedc.analysis.bounds.clock import Clock
from schedc.analysis.bounds.lower_bounds import bounds_in_time, lower_bounds
from schedc.analysis.bounds.residency import minimum_limit_bytes
from schedc.analysis.gap import relative_gap
from schedc.analysis.simulation.engines import Transfers, simulate_engine
from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import CheckFailed, Defect, Infeasible, InvalidInput, NoPlanFound
from schedc.formats.plan.plan_file import plan_json
from schedc.ir.index import tables_of
from schedc.ir.plan import BoundName, Certificate, MadeBy, Plan, RankPlan, Scope
from schedc.lower.plan import lower
from schedc.solvers.common.base import NO_LIMITS, Limits
from schedc.solvers.common.incumbent import Improvement, Incumbent
from schedc.solvers.driver.portfolio import Candidate, Ended, solve, try_methods
from schedc.units import format_bytes
from schedc.verify.job import check_pipeline
from schedc.verify.plan.checks import verify_plan
from schedc.verify.problem import verify_problem
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from schedc.analysis.bounds.lower_bounds import Bound
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.layout import Layout
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule
    from schedc.solvers.common.failure import Failure
    from schedc.solvers.common.interruption import Interruption
    from schedc.verify.violation import Violation

BOUNDS_SHARE, LEAST_BOUNDS_S = 0.2, 1.0
"""Bounds before the search may take this share of the time limit, or this long if that is more; then those known count."""
CHECKS_S_PER_OP, CHECKS_S_PER_RANK = 40e-6, 1.5e-3
"""What checking and writing the plan after it takes."""
MOST_BOUNDED_OPS = 5000
"""Up to this many compute ops a plan whose bound is one over layouts is held against those of its own problem, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A verified plan, and how it came to be."""

    plan: Plan
    seconds: float
    candidates: tuple[Candidate, ...]
    history: tuple[Improvement, ...]
    solver_log: tuple[str, ...]
    """What a solver's bound rests on; the certificate has its digest."""
    failures: tuple[Failure, ...]
    """Of the methods that ended with an exception of their own, which are defects of schedc. The plan does not rest on them."""
    ended: Ended
    """Why the work ended."""
    layout: Layout | None = None
    """The layout that was chosen; None: it was given."""
    layouts: int = 1
    """How many layouts were evaluated."""
    chosen: str = ""
    """Where a layout was chosen, the candidate that has it."""


def compile_problem(
    problem: Problem,
    *,
    method: str = "auto",
    limits: Limits = NO_LIMITS,
    job_sha256: str = "",
    report: Callable[[Improvement], None] = lambda _: None,
    on_method: Callable[[str], None] = lambda _: None,
    interruption: Interruption | None = None,
) -> Compiled:
    """The best plan that the method finds.

    The time limit is for all of it: what checking and writing the plan will take is kept back from the search. Where that is more
    than the limit, the methods that make a schedule at once still get a second, and the plan is late.

    Args:
        problem: what must be done.
        method: `auto`, or a method's name with options in braces.
        limits: when a search ends, and its seed.
        job_sha256: of the job file, for the plan.
        report: is called with each better schedule or bound at once.
        on_method: is called with the name of each method when it begins, if there are several.
        interruption: what listens to signals, if something does. An interruption ends the search, not the checks of what it found.

    Raises:
        InvalidInput: the problem contradicts itself, the method's name or options are wrong.
        Infeasible: a rank's memory limit is below what one microbatch needs.
        NoPlanFound: no method found a schedule within the memory limits.
        Defect: a method's schedule, or the plan made of it, breaks a rule.
    """
    begun = time.perf_counter()
    violations = verify_problem(problem)
    if violations:
        raise InvalidInput(f"{problem.name}: {_first_of(violations)}")
    check_feasible(problem)
    bounds, bounds_cut = bounds_within(problem, limits)
    bound = max(bounds, key=lambda each: each.value_ns)
    with defects_named(problem.name, method):
        outcome = solve(
            problem,
            method,
            _for_the_search(problem, limits, time.perf_counter() - begun),
            bound_ns=bound.value_ns,
            bound_by=bound.name,
            report=report,
            on_method=on_method,
            interruption=interruption,
        )
    best = outcome.incumbent
    if best.schedule is None:
        reasons = "; ".join(f"{entry.method}: {entry.why_not}" for entry in outcome.candidates)
        in_time = " in the time given" if outcome.ended == Ended.OUT_OF_TIME else ""
        raise NoPlanFound(f"{problem.name}: no plan found{in_time}: {reasons}")
    made_by = MadeBy(
        schedc=__version__,
        method=best.found_by,
        seed=limits.seed,
        job_sha256=job_sha256,
        reproducible=not (best.cut_short or bounds_cut),
    )
    plan = certify(problem, best.schedule, made_by, proven=best if best.solver_log else None, bounds=bounds)
    return Compiled(
        plan=plan,
        seconds=time.perf_counter() - begun,
        candidates=outcome.candidates,
        history=tuple(best.history),
        solver_log=best.solver_log,
        failures=outcome.failures,
        ended=outcome.ended,
    )


@contextmanager
def defects_named(name: str, method: str) -> Iterator[None]:
    """A defect of a method says on what, and that the simulator refuses a method's schedule is one.

    Raises:
        Defect: within, there was one.
    """
    try:
        yield
    except Defect as error:
        raise Defect(f"{name}: {error}", error.plan_json) from error
    except CheckFailed as error:  # the simulator refused what a method made
        raise Defect(f"{name}: a schedule of {method} cannot run: {error}") from error


def time_methods(problem: Problem, methods: Sequence[str]) -> tuple[Candidate, ...]:
    """What each method makes of the problem, without a plan.

    Raises:
        InvalidInput: the problem contradicts itself, or a method's name or options are wrong.
    """
    violations = verify_problem(problem)
    if violations:
        raise InvalidInput(f"{problem.name}: {_first_of(violations)}")
    candidates: list[Candidate] = []
    incumbent = Incumbent(problem=problem, tables=tables_of(problem), bound_ns=0, bound_by=BoundName.WORK, report=lambda _: None)
    try_methods(incumbent, methods, candidates)
    for candidate in candidates:
        if candidate.failure is not None:
            raise candidate.failure.exception
    return tuple(candidates)


class ProvenBound(Protocol):
    """A bound that is known of a problem beside its analytic ones."""

    @property
    def bound_ns(self) -> int:
        """The bound on the objective."""

    @property
    def bound_by(self) -> BoundName:
        """Where it comes from."""

    @property
    def solver_log(self) -> tuple[str, ...]:
        """Where a solver proved it, what it rests on."""


def certify(
    problem: Problem,
    schedule: Schedule,
    made_by: MadeBy,
    *,
    proven: ProvenBound | None = None,
    scope: Scope = Scope.SCHEDULE,
    bounds: Sequence[Bound] = (),
    limits: Limits = NO_LIMITS,
) -> Plan:
    """The plan of a schedule, with its certificate, after both verifiers accepted it.

    Args:
        problem: what the ops cost.
        schedule: the schedule.
        made_by: for the plan.
        proven: a bound that takes the place of the analytic ones; it has the scope.
        scope: for which layouts the bound holds.
        bounds: the analytic bounds of the problem, where the caller has them; none: they are computed.
        limits: where they are computed, for how long (`bounds_within`); a plan whose bound a clock cut is not reproducible.

    Raises:
        Defect: the bound is above the schedule's objective, or a verifier refuses the schedule or the plan.
    """
    violations = verify_schedule(problem, schedule)
    if violations:
        message = f"{problem.name}: the schedule of {made_by.method} breaks a rule: {_first_of(violations)}"
        raise Defect(message, plan_json(_only_orders(problem, schedule, made_by)))
    timeline = simulate(problem, schedule)
    digest = ""
    # A bound over layouts is none of these; of a large problem they take longer than all else.
    with_bounds = scope is Scope.SCHEDULE or problem.num_ops <= MOST_BOUNDED_OPS
    if with_bounds and not bounds:
        bounds, cut = bounds_within(problem, limits)
        if cut and proven is None:
            made_by = dataclasses.replace(made_by, reproducible=False)
    if proven is None:
        bound = max(bounds, key=lambda each: each.value_ns)
        bound_ns, bound_by = bound.value_ns, bound.name
    else:
        bound_ns, bound_by = proven.bound_ns, proven.bound_by
        if proven.solver_log:
            digest = hashlib.sha256("\n".join(proven.solver_log).encode()).hexdigest()
    objective_ns = timeline.objective_ns(problem.objective)
    try:
        gap = relative_gap(objective_ns, bound_ns, bound_by)
    except Defect as error:
        raise Defect(f"{problem.name}: {error}", plan_json(_only_orders(problem, schedule, made_by))) from error
    certificate = Certificate(
        makespan_ns=timeline.makespan_ns,
        lower_bound_ns=bound_ns,
        gap=gap,
        bound=bound_by,
        solver_log_sha256=digest,
        bubble_ratio=timeline.bubble_ratio,
        peak_activation_bytes=peak_bytes(problem, schedule),
        stage_span_ns=timeline.stage_span_ns,
        objective=problem.objective,
        scope=scope,
    )
    plan = lower(problem, schedule, timeline, certificate=certificate, made_by=made_by)
    violations = check_plan(plan, with_bounds=with_bounds, known=bounds)
    if violations:
        raise Defect(f"{problem.name}: the plan of {made_by.method} breaks a rule: {_first_of(violations)}", plan_json(plan))
    return plan


def _only_orders(problem: Problem, schedule: Schedule, made_by: MadeBy) -> Plan:
    """A schedule that cannot be lowered as a plan without channels and times, to be looked at."""
    nothing = Certificate(
        makespan_ns=0, lower_bound_ns=0, gap=0.0, bound=BoundName.WORK, bubble_ratio=0.0, peak_activation_bytes=(0,) * problem.ranks
    )
    ranks = tuple(RankPlan(rank=rank, compute=order) for rank, order in enumerate(schedule.orders))
    return Plan(problem=problem, ranks=ranks, parts=schedule.parts, certificate=nothing, made_by=made_by)


def check_plan(plan: Plan, *, with_bounds: bool = True, known: Sequence[Bound] = ()) -> tuple[Violation, ...]:
    """Every rule that the plan breaks; with the bounds of its problem computed again, or its certificate's bound believed.

    `known`: these are the problem's bounds; none: they are computed.
    """
    problem_violations = verify_problem(plan.problem)
    if problem_violations:
        return problem_violations
    bounds = {bound.name: bound.value_ns for bound in known or lower_bounds(plan.problem)} if with_bounds else None
    return verify_plan(plan, bounds=bounds)


def time_plan(plan: Plan, problem: Problem | None = None, *, transfers: Transfers = Transfers.DECOUPLED) -> Timeline:
    """The plan's timeline, under its own costs or those of another problem with the same pipeline.

    Args:
        plan: whose orders are run.
        problem: the other problem; None: the plan's own.
        transfers: how transfers go beside compute.

    Raises:
        CheckFailed: the other problem has another pipeline, the plan's orders break a rule, or the ranks wait for each other in a
            cycle where transfers block.
    """
    violations: tuple[Violation, ...] = ()
    if problem is not None:
        violations = check_pipeline(plan, problem)
    costs = problem or plan.problem
    violations = violations or verify_problem(costs)
    if not violations:
        # Timing a plan that needs too much is fine, and one whose microbatches enter in another order.
        unlimited = dataclasses.replace(costs, memory_limit_bytes=(None,) * costs.ranks, in_order=False)
        violations = verify_schedule(unlimited, plan.schedule())
    if violations:
        raise CheckFailed(f"{plan.name}: the plan cannot be timed: {_first_of(violations)}")
    try:
        return simulate_engine(costs, plan.schedule(), transfers)
    except CheckFailed as error:
        raise CheckFailed(f"{plan.name}: the plan cannot be timed: {error}") from error


def bounds_within(problem: Problem, limits: Limits) -> tuple[tuple[Bound, ...], bool]:
    """All bounds; where a clock limits the work, those that are known after a share of it, and whether that left some out.

    Each is true all the same: one that is cut is lower.
    """
    if limits.time_s is None or limits.deterministic is not None:
        return lower_bounds(problem), False
    clock = Clock(max(BOUNDS_SHARE * limits.time_s, LEAST_BOUNDS_S))
    return bounds_in_time(problem, clock), clock.has_cut


def checks_s(problem: Problem) -> float:
    """What checking and writing the plan takes."""
    return problem.num_ops * CHECKS_S_PER_OP + problem.ranks * CHECKS_S_PER_RANK


def _for_the_search(problem: Problem, limits: Limits, spent_s: float) -> Limits:
    """What the limits leave for the search."""
    if limits.time_s is None:
        return limits
    return dataclasses.replace(limits, time_s=max(0.0, limits.time_s - spent_s - checks_s(problem)))


def check_feasible(problem: Problem) -> None:
    """Refuse a memory limit below what one microbatch needs.

    Raises:
        Infeasible: names the rank, its limit and the smallest that may suffice.
    """
    for rank, (limit, needed) in enumerate(zip(problem.memory_limit_bytes, minimum_limit_bytes(problem), strict=True)):
        if limit is not None and limit < needed:
            recomputes = any(problem.stages[stage].recompute for stage in problem.stages_on(rank))
            besides = " with its recomputation" if recomputes else ""
            raise Infeasible(
                f"{problem.name}: no schedule exists: rank {rank} may hold {format_bytes(limit)} of activations, but one microbatch"
                f" alone needs {format_bytes(needed)} there{besides}, the smallest limit that may suffice"
            )


def _first_of(violations: tuple[Violation, ...]) -> str:
    more = len(violations) - 1
    return f"{violations[0]}" + (f" (and {more} more)" if more else "")
