"""Schedule → verified → Plan with its certificate → verified: no plan leaves that its own verifier refuses."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING

from schedc.analysis.bounds.clock import Clock
from schedc.analysis.bounds.lower_bounds import Bound, bounds_in_time, lower_bounds
from schedc.analysis.gap import relative_gap
from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.period import steady_state
from schedc.analysis.simulation.simulate import simulate
from schedc.analysis.simulation.versions import versions_of
from schedc.errors import Defect, InvalidInput
from schedc.formats.plan.plan_file import plan_json
from schedc.ir import BoundName, Certificate, MadeBy, Plan, Problem, RankPlan, Schedule, Scope
from schedc.lower.plan import lower
from schedc.lower.run import run_of
from schedc.solvers.common.base import NO_LIMITS, Limits
from schedc.units import MAX_QUANTITY, format_duration_ns
from schedc.verify.plan.checks import verify_plan
from schedc.verify.problem import verify_problem
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.analysis.simulation.timeline import Timeline
    from schedc.solvers.common.incumbent import BestKnown
    from schedc.verify.violation import Violation

BOUNDS_SHARE, LEAST_BOUNDS_S = 0.2, 1.0
"""Bounds before the search may take this share of the time limit, or this long if that is more; then those known count."""
MOST_BOUNDED_OPS = 5000
"""Up to this many compute ops a plan whose bound is one over layouts is held against those of its own problem, too."""


def certify(
    problem: Problem,
    schedule: Schedule,
    made_by: MadeBy,
    *,
    proven: BestKnown | None = None,
    scope: Scope = Scope.SCHEDULE,
    bounds: Sequence[Bound] = (),
    limits: Limits = NO_LIMITS,
    timeline: Timeline | None = None,
) -> Plan:
    """The plan of a schedule, with its certificate, after both verifiers accepted it.

    Args:
        problem: what the ops cost.
        schedule: the schedule.
        made_by: for the plan.
        proven: whose bound takes the place of the analytic ones; it has the scope.
        scope: for which layouts the bound holds.
        bounds: the analytic bounds of the problem, where the caller has them; none: they are computed.
        limits: where they are computed, for how long (`bounds_within`); a plan whose bound a clock cut is not reproducible.
        timeline: the schedule's, where the caller has it; the schedule is then verified with the plan, and not before it, too.

    Raises:
        InvalidInput: a period is longer than a file of a plan can say.
        Defect: the bound is above the schedule's objective, or a verifier refuses the schedule or the plan.
    """
    is_period = problem.updates is not None and problem.updates.is_period
    if timeline is None:
        violations = verify_schedule(problem, schedule)
        if violations:
            message = f"{problem.name}: the schedule of {made_by.method} breaks a rule: {first_of(violations)}"
            raise Defect(message, plan_json(_only_orders(problem, schedule, made_by)))
        timeline = None if is_period else simulate(problem, schedule)
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
    if timeline is None:
        makespan_ns = span_ns = objective_ns = steady_state(problem, schedule).period_ns
        if makespan_ns > MAX_QUANTITY:  # no plan file holds it
            found, most = format_duration_ns(makespan_ns), format_duration_ns(MAX_QUANTITY)
            raise InvalidInput(f"{problem.name}: found a period of {found}, expected at most {most}; shorten work or updates")
        busy_ns = sum(schedule.duration_ns(problem, op) for order in schedule.orders for op in order)
        bubble_ratio = 1 - busy_ns / (problem.ranks * makespan_ns) if makespan_ns else 0.0
    else:
        makespan_ns, span_ns, bubble_ratio = timeline.makespan_ns, timeline.stage_span_ns, timeline.bubble_ratio
        objective_ns = timeline.objective_ns(problem.objective)
    held = versions_of(problem, schedule) if problem.updates is not None else None
    try:
        gap = relative_gap(objective_ns, bound_ns, bound_by)
    except Defect as error:
        raise Defect(f"{problem.name}: {error}", plan_json(_only_orders(problem, schedule, made_by))) from error
    certificate = Certificate(
        makespan_ns=makespan_ns,
        lower_bound_ns=bound_ns,
        gap=gap,
        bound=bound_by,
        solver_log_sha256=digest,
        bubble_ratio=bubble_ratio,
        peak_activation_bytes=peak_bytes(problem, schedule),
        stage_span_ns=span_ns,
        objective=problem.objective,
        scope=scope,
        delays=held.delays if held is not None else (),
        versions=held.versions if held is not None else (),
    )
    plan = lower(problem, schedule, timeline, certificate=certificate, made_by=made_by)
    if is_period:  # a run has channels, which a period does not
        run = run_of(plan, 2)
        if violations := check_plan(run, with_bounds=False):
            message = f"{problem.name}: a run of the plan of {made_by.method} breaks a rule: {first_of(violations)}"
            raise Defect(message, plan_json(plan))
    violations = check_plan(plan, with_bounds=with_bounds, known=bounds)
    if violations:
        raise Defect(f"{problem.name}: the plan of {made_by.method} breaks a rule: {first_of(violations)}", plan_json(plan))
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


def bounds_within(problem: Problem, limits: Limits) -> tuple[tuple[Bound, ...], bool]:
    """All bounds; where a clock limits the work, those that are known after a share of it, and whether that left some out.

    Each is true all the same: one that is cut is lower.
    """
    if limits.clock_s is None:
        return lower_bounds(problem), False
    clock = Clock(max(BOUNDS_SHARE * limits.clock_s, LEAST_BOUNDS_S))
    return bounds_in_time(problem, clock), clock.has_cut


def first_of(violations: tuple[Violation, ...]) -> str:
    """The first violation, and how many more there are."""
    more = len(violations) - 1
    return f"{violations[0]}" + (f" (and {more} more)" if more else "")
