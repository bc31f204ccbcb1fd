"""A layout with a schedule, timed by the simulator and within memory: what every method over layouts gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.lower.problem import problem_of
from schedc.verify.layout import verify_layout

if TYPE_CHECKING:
    from schedc.ir.layout import Layout
    from schedc.ir.schedule import Schedule
    from schedc.ir.workload import Workload
    from schedc.solvers.common.base import Construct

__all__ = ["LaidOut", "laid_out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOut:
    """A layout and a schedule of the problem that it makes."""

    name: str
    """What made it, for people."""
    layout: Layout
    schedule: Schedule
    objective_ns: int
    """By the simulator."""


def laid_out(workload: Workload, layout: Layout, construct: Construct, name: str) -> LaidOut | None:
    """The schedule that a method makes in this layout; None: the layout is unsound, or there is none, or none within memory."""
    if verify_layout(workload, layout):
        return None
    problem = problem_of(workload, layout)
    try:
        schedule = construct(problem)
    except Unsupported:
        return None
    peaks = zip(peak_bytes(problem, schedule), problem.memory_limit_bytes, strict=True)
    if any(limit is not None and peak > limit for peak, limit in peaks):
        return None
    objective_ns = simulate(problem, schedule).objective_ns(problem.objective)
    return LaidOut(name=name, layout=layout, schedule=schedule, objective_ns=objective_ns)
