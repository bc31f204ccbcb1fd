"""A layout with a schedule, timed by the simulator and within memory: what every method over layouts gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.analysis.simulation.memory import exceeded_limit
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.lower.problem import problem_of
from schedc.verify.layout import verify_layout

if TYPE_CHECKING:
    from schedc.ir.layout import Layout
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule
    from schedc.ir.workload import Workload
    from schedc.solvers.common.base import Construct


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledLayout:
    """A layout and a schedule of the problem that it makes."""

    name: str
    """What made it, for people."""
    layout: Layout
    problem: Problem
    """The workload in this layout."""
    schedule: Schedule
    objective_ns: int
    """By the simulator, as is `makespan_ns`."""
    makespan_ns: int


def scheduled_layout(workload: Workload, layout: Layout, construct: Construct, name: str) -> ScheduledLayout | None:
    """The schedule that a method makes in this layout; None: the layout is unsound, or there is none, or none within memory."""
    try:
        return lay_out(workload, layout, construct, name)
    except Unsupported:
        return None


def lay_out(workload: Workload, layout: Layout, construct: Construct, name: str) -> ScheduledLayout:
    """The schedule that a method makes in this layout.

    Raises:
        Unsupported: the layout is unsound, or there is none, or none within memory.
    """
    violations = verify_layout(workload, layout)
    if violations:
        raise Unsupported(f"{violations[0].place}: {violations[0].message}")
    problem = problem_of(workload, layout)
    schedule = construct(problem)
    exceeded = exceeded_limit(problem, schedule)
    if exceeded is not None:
        raise Unsupported(f"exceeds the memory of rank {exceeded[0]}")
    return timed(name, layout, problem, schedule)


def timed(name: str, layout: Layout, problem: Problem, schedule: Schedule) -> ScheduledLayout:
    """A layout with its problem and a schedule within memory, timed by the simulator."""
    timeline = simulate(problem, schedule)
    return ScheduledLayout(
        name=name,
        layout=layout,
        problem=problem,
        schedule=schedule,
        objective_ns=timeline.objective_ns(problem.objective),
        makespan_ns=timeline.makespan_ns,
    )
