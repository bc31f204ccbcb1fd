"""Of a plan whose layout was chosen: how much shorter a schedule of its own layout could be, beside those of all layouts."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from schedc.analysis.bounds.lower_bounds import Bound, bounds_in_time
from schedc.analysis.gap import relative_gap
from schedc.ir.plan import Plan, Scope

SECONDS = 1.0
"""Warm-up and idle gaps, which take long, are bounded for no longer."""
MOST_OPS = 100_000
"""Of larger problems even the other bounds take seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLayout:
    """What is known of the schedules of one layout."""

    bound: Bound
    """No schedule of the plan's own problem has a smaller objective."""
    gap: float
    """(objective − bound) / objective."""
    of_whole_blocks: bool
    """Whether the bound is a solver's over all layouts, which speaks of schedules of whole blocks."""


def own_layout(plan: Plan) -> OwnLayout | None:
    """The larger of two bounds: the analytic ones of the plan's problem, as far as time allows, and the one over all layouts.

    It assumes that the certificate's bound holds for every layout that was open, of which the plan's is one. None where there is
    nothing to add: no layout was open, the plan is proven over all, it is large, or it is better than a bound, so breaks a rule.
    """
    claims, problem = plan.certificate, plan.problem
    if claims.scope is not Scope.LAYOUT or claims.gap <= 0 or problem.num_ops > MOST_OPS or claims.objective != problem.objective:
        return None
    end_s = perf_counter() + SECONDS
    bound = max(bounds_in_time(problem, lambda: perf_counter() >= end_s), key=lambda each: each.value_ns)
    if bound.value_ns > claims.objective_ns:
        return None
    of_all = bound.value_ns < claims.lower_bound_ns
    if of_all:
        bound = Bound(name=claims.bound, value_ns=claims.lower_bound_ns, detail="over all layouts")
    gap = relative_gap(claims.objective_ns, bound.value_ns, bound.name)
    return OwnLayout(bound=bound, gap=gap, of_whole_blocks=of_all and bool(claims.solver_log_sha256))
