"""The compiler's choice among the layouts that a job leaves open, for benchmarks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.compile import compile_problem
from schedc.errors import NoPlanFound
from schedc.lower.problem import problem_of
from schedc.solvers.layout.climb import LayoutClimb

if TYPE_CHECKING:
    from schedc.ir.layout import Layout, OpenLayout
    from schedc.ir.workload import Workload
    from schedc.solvers.common.base import Limits

__all__ = ["Chosen", "chosen_layout"]

SEARCH, TRIED = 0.5, 2
"""The search over layouts gets this share of the time; this many of the best layouts share the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A layout, what its best schedule takes, and a bound over all layouts."""

    layout: Layout
    makespan_ns: int
    lower_bound_ns: int


def chosen_layout(workload: Workload, open_layout: OpenLayout, limits: Limits) -> Chosen:
    """The best layout found in the time given, which the limits must have; the job minimizes the makespan.

    Raises:
        NoPlanFound: there is none.
    """
    assert limits.time_s is not None
    climb = LayoutClimb(workload, open_layout, seed=limits.seed)
    climb.run(seconds=SEARCH * limits.time_s)
    found = {done.layout: done.objective_ns for done in reversed(climb.finished())}
    own = replace(limits, time_s=(1 - SEARCH) * limits.time_s / TRIED)
    for layout in climb.layouts[:TRIED]:
        makespan_ns = compile_problem(problem_of(workload, layout), limits=own).plan.certificate.makespan_ns
        found[layout] = min(makespan_ns, found.get(layout, makespan_ns))
    if not found:
        raise NoPlanFound(f"{workload.name}: no layout with a schedule found")
    best = min(found, key=lambda layout: found[layout])
    bound_ns = layout_bound(workload, open_layout).value_ns
    return Chosen(layout=best, makespan_ns=found[best], lower_bound_ns=bound_ns or 0)
