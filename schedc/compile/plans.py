"""What is asked of a plan that exists: when everything happens, whether it is one of a job's, what of its own layout is known."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.analysis.bounds.lower_bounds import Bound, bounds_in_time
from schedc.analysis.gap import relative_gap
from schedc.analysis.simulation.engines import Transfers, simulate_engine
from schedc.analysis.simulation.online import not_before, simulate_online
from schedc.analysis.simulation.unroll import run_problem
from schedc.compile.certify import first_of
from schedc.errors import CheckFailed, Infeasible
from schedc.ir import BoundName, Conditions, LinkTrace, Plan, Problem, Schedule, Scope
from schedc.lower.problem import problem_of, problem_under
from schedc.verify.layout import verify_open_layout
from schedc.verify.problem import check_pipeline, verify_problem
from schedc.verify.schedule.checks import verify_schedule
from schedc.verify.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.analysis.simulation.timeline import Timeline
    from schedc.frontend.job import Job

OWN_BOUNDS_S = 1.0
"""Warm-up and idle gaps, which take long, are bounded for no longer."""
MOST_OWN_OPS = 100_000
"""Of larger problems even the other bounds take seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLayout:
    """What is known of the schedules of one layout."""

    bound: Bound
    """No schedule of the plan's own problem has a smaller objective."""
    gap: float
    """(objective − bound) / objective."""


def time_plan(plan: Plan, problem: Problem | None = None, *, transfers: Transfers = Transfers.DECOUPLED) -> Timeline:
    """The plan's timeline, under its own costs or those of another problem with the same pipeline.

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
        raise CheckFailed(f"{plan.name}: the plan cannot be timed: {first_of(violations)}")
    try:
        return simulate_engine(costs, plan.schedule(), transfers)
    except CheckFailed as error:
        raise CheckFailed(f"{plan.name}: the plan cannot be timed: {error}") from error


def simulated_runs(
    plans: Sequence[Plan], plan_of_run: Sequence[int], begun_ns: Sequence[int], links: LinkTrace | None, *, choose: bool
) -> list[int]:
    """What the simulator says of each run, under the costs of the first plan with the links that there were.

    `plan_of_run` has the place of each run's plan, `begun_ns` when it began on the clock of the link trace; None: links did not
    change.
    """
    problem = plans[0].problem
    planned = [not_before(plan.problem, plan.schedule()) if choose else None for plan in plans]
    unchanged: dict[tuple[int, str], int] = {}
    """By plan and conditions, what a run takes in which they do not change."""

    def takes_ns(number: int, entries: tuple[tuple[int, Conditions], ...]) -> int:
        later = [(time_ns, problem_under(problem, conditions)) for time_ns, conditions in entries]
        schedule: Schedule = plans[number].schedule()
        return simulate_online(problem, schedule, later, choose=choose, planned=planned[number]).timeline.makespan_ns

    found = []
    for number, begin_ns in zip(plan_of_run, begun_ns, strict=True):
        entries = () if links is None else links.since(begin_ns).entries
        key = number, repr(entries[:1])
        if key not in unchanged:
            unchanged[key] = takes_ns(number, entries[:1])
        constant = len(entries) < 2 or entries[1][0] >= unchanged[key]
        found.append(unchanged[key] if constant else takes_ns(number, entries))
    return found


def moved_ops(planned: Sequence[Sequence[Any]], ran: Sequence[Sequence[Any]]) -> int:
    """How many ops run at another place of their rank's order."""
    pairs = zip(planned, ran, strict=True)
    return sum(before != after for before_after in pairs for before, after in zip(*before_after, strict=True))


def problem_for(plan: Plan, job: Job) -> tuple[Problem | None, tuple[Violation, ...]]:
    """The problem that the job makes in the plan's layout where it leaves the layout open, else its own; for a run, as many steps.

    Returns:
        The problem, or None with the violations that keep the plan's layout from being one of the job's.
    """
    if job.open_layout is None:
        ours, theirs = plan.problem.updates, job.problem.updates
        if ours is not None and theirs is not None and not ours.is_period and ours.microbatches == theirs.microbatches:
            return run_problem(job.problem, plan.problem.microbatches // ours.microbatches), ()
        return job.problem, ()
    layout = plan.problem.layout
    if layout is None:
        return None, (Violation("origin", "origin", "the plan does not say which of the job's layers each stage has"),)
    violations = verify_open_layout(job.workload, job.open_layout, layout)
    return (None, violations) if violations else (problem_of(job.workload, layout), ())


def check_scope(plan: Plan, job: Job) -> tuple[Violation, ...]:
    """A bound over layouts is at most the one that is computed again over those that the job leaves open.

    One that a clock cut, or that an earlier version proved, may claim less.
    Where the job gives the layout (`compile --write-job` wrote it), it says nothing of the others, and nothing is checked.
    """
    claims = plan.certificate
    if claims.scope is not Scope.LAYOUT or job.open_layout is None:
        return ()
    try:
        bound_ns = layout_bound(job.workload, job.open_layout).value_ns
    except Infeasible:
        return (Violation("scope", "certificate.lower_bound_ns", "claims a bound, but no layout of the job has room"),)
    if bound_ns > claims.objective_ns:
        message = f"the plan's {claims.objective} of {claims.objective_ns} ns is below the bound over layouts of {bound_ns} ns"
        return (Violation("scope", "certificate", message),)
    if claims.bound is BoundName.LAYOUTS and claims.lower_bound_ns > bound_ns:
        message = f"claims {claims.lower_bound_ns} ns, but the bound over layouts is {bound_ns} ns"
        return (Violation("scope", "certificate.lower_bound_ns", message),)
    return ()


def own_layout(plan: Plan) -> OwnLayout | None:
    """The larger of two bounds: the analytic ones of the plan's problem, as far as time allows, and the one over all layouts.

    It assumes that the certificate's bound holds for every layout that was open, of which the plan's is one. None where there is
    nothing to add: no layout was open, the plan is proven over all, it is large, or it is better than a bound, so breaks a rule.
    """
    claims, problem = plan.certificate, plan.problem
    if (
        claims.scope is not Scope.LAYOUT
        or claims.gap <= 0
        or problem.num_ops > MOST_OWN_OPS
        or claims.objective != problem.objective
    ):
        return None
    end_s = perf_counter() + OWN_BOUNDS_S
    bound = max(bounds_in_time(problem, lambda: perf_counter() >= end_s), key=lambda each: each.value_ns)
    if bound.value_ns > claims.objective_ns:
        return None
    if bound.value_ns < claims.lower_bound_ns:
        bound = Bound(name=claims.bound, value_ns=claims.lower_bound_ns, detail="over all layouts")
    gap = relative_gap(claims.objective_ns, bound.value_ns, bound.name)
    return OwnLayout(bound=bound, gap=gap)
