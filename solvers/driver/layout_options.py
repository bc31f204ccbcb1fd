"""A layout that may be handed to a method, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schedc.analysis.bounds.clock import Until, never
from schedc.analysis.bounds.lower_bounds import best_bound, bounds_in_time, cheap_bound_ns
from schedc.analysis.bounds.residency import rank_without_room
from schedc.lower.problem import problem_of
from schedc.verify.layout import verify_layout
from schedc.verify.problem import verify_problem

if TYPE_CHECKING:
    from schedc.ir.layout import Layout
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule
    from schedc.ir.workload import Workload

SMALL_OPS = 1000
"""Up to this many compute ops all bounds together take no time that counts, some 0.1 s."""
BOUNDS_S_PER_OP2 = 5e-8
"""All bounds of a larger layout take about this, times the square of its compute ops."""
BOUNDS_SHARE = 0.1
"""Of the time or work that a method has for a layout, all its bounds may take this share."""


@dataclass(slots=True, kw_only=True)
class Option:
    """A layout, and what is known of it."""

    title: str
    """For people; of a layout with several names, the first: that of the balanced partition, if it is balanced."""
    layout: Layout
    problem: Problem
    bound_ns: int
    """Of this layout alone; of a large one at first the best of the bounds that take little time."""
    is_bounded: bool
    """Whether it is the best of all bounds."""
    objective_ns: int | None = None
    """Of the best schedule known; None: there is none."""
    best: dict[bool, tuple[Schedule, str, int]] = field(default_factory=dict)
    """By whether it cuts blocks, the best schedule that a method has made, with the method's name and its objective."""
    seconds: float = 0.0
    """What methods have spent on it."""
    row: int | None = None
    """Its place among the candidates, once a method has worked on it."""
    settled: bool = False
    """Whether nothing better is to be expected of the method."""

    def tighten(self, slice_: float | None, until: Until) -> None:
        """Take the best of all bounds, if they take a small share of a slice of seconds or units of work; None: of any.

        Args:
            slice_: what a method is given for the layout.
            until: of those that take long, as many count as are known when it says that the time is up.
        """
        taken = BOUNDS_S_PER_OP2 * self.problem.num_ops**2
        if not self.is_bounded and (slice_ is None or taken <= BOUNDS_SHARE * slice_):
            bound_ns = max(each.value_ns for each in bounds_in_time(self.problem, until))
            self.bound_ns, self.is_bounded = max(self.bound_ns, bound_ns), True

    @property
    def known(self) -> tuple[tuple[Schedule, str], ...]:
        """What a method begins with that has worked on it before."""
        return tuple((schedule, found_by) for schedule, found_by, _ in self.best.values())

    def keep(self, schedule: Schedule, found_by: str, objective_ns: int) -> None:
        """Keep what a method made, if it is the best of its kind."""
        cuts = bool(schedule.parts)
        if cuts not in self.best or objective_ns < self.best[cuts][2]:
            self.best[cuts] = schedule, found_by, objective_ns
        self.may_take(objective_ns)

    def may_take(self, objective_ns: int) -> None:
        """A schedule with this objective is known."""
        if self.objective_ns is None or objective_ns < self.objective_ns:
            self.objective_ns = objective_ns


def option_of(workload: Workload, title: str, layout: Layout, until: Until = never) -> Option | None:
    """The layout as an option; None: it is unsound, or a rank has no room. Bounds that take long are left out if the time is up."""
    if verify_layout(workload, layout):
        return None
    problem = problem_of(workload, layout)
    if verify_problem(problem) or rank_without_room(problem):
        return None
    is_small = problem.num_ops <= SMALL_OPS and not until()
    bound_ns = best_bound(problem).value_ns if is_small else cheap_bound_ns(problem, until)
    return Option(title=title, layout=layout, problem=problem, bound_ns=bound_ns, is_bounded=is_small)
