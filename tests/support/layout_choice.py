"""The compiler's choice among the layouts that a job leaves open, for benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    """A layout, and what its best schedule takes."""

    layout: Layout
    objective_ns: int


def chosen_layout(workload: Workload, open_layout: OpenLayout, limits: Limits) -> Chosen:
    """The best layout found in the time given, and the objective of its plan.

    Raises:
        NoPlanFound: there is none.
    """
    from dataclasses import replace

    assert limits.time_s is not None
    climb = LayoutClimb(workload, open_layout, seed=limits.seed)
    climb.run(seconds=SEARCH * limits.time_s)
    found = []
    for done in climb.finished(4)[:4]:
        found.append(Chosen(layout=done.layout, objective_ns=done.objective_ns))
    own = replace(limits, time_s=(1 - SEARCH) * limits.time_s / TRIED)
    for layout in climb.layouts[:TRIED]:
        certificate = compile_problem(problem_of(workload, layout), limits=own).plan.certificate
        ns = certificate.stage_span_ns if certificate.objective == "stage-span" else certificate.makespan_ns
        found.append(Chosen(layout=layout, objective_ns=ns))
    if not found:
        raise NoPlanFound(f"{workload.name}: no layout found")
    return min(found, key=lambda each: each.objective_ns)
