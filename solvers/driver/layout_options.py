"""The layouts that are handed to a method, what is known of each, and which of them may still be better than the best."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schedc.analysis.bounds.clock import never
from schedc.analysis.bounds.lower_bounds import best_bound, bounds_in_time, cheap_bound_ns
from schedc.analysis.bounds.residency import minimum_limit_bytes
from schedc.lower.problem import problem_of
from schedc.verify.layout import verify_layout
from schedc.verify.problem import verify_problem

if TYPE_CHECKING:
    from schedc.analysis.bounds.clock import Until
    from schedc.ir.layout import Layout
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule
    from schedc.ir.workload import Workload

LITTLE = 0.0001
"""A gain of less than this share is next to nothing."""
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


class LayoutOptions:
    """All of them."""

    def __init__(self, workload: Workload, until: Until = never) -> None:
        """There are none yet.

        Args:
            workload: what is laid out.
            until: whether the time is up; then bounds that take long are left out, and an option says less of what it can be worth.
        """
        self._workload = workload
        self.until = until
        self._all: dict[tuple[object, ...], Option] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._all)

    def add(self, title: str, layout: Layout) -> Option | None:
        """The layout as an option, the known one if it is one already; None: it is unsound, or a rank has no room."""
        key = layout.rank_of_stage, layout.layers_of_stage, layout.recomputed
        known = self._all.get(key)
        if known is not None:
            return known
        if verify_layout(self._workload, layout):
            return None
        problem = problem_of(self._workload, layout)
        needed = zip(problem.memory_limit_bytes, minimum_limit_bytes(problem), strict=True)
        if verify_problem(problem) or any(limit is not None and limit < least for limit, least in needed):
            return None
        is_small = problem.num_ops <= SMALL_OPS and not self.until()
        bound_ns = best_bound(problem).value_ns if is_small else cheap_bound_ns(problem, self.until)
        option = Option(title=title, layout=layout, problem=problem, bound_ns=bound_ns, is_bounded=is_small)
        self._all[key] = option
        return option

    def hopeful(self, best_ns: int | None) -> list[Option]:
        """Those that may be better than the best known, the most promising first; last those that can be so by next to nothing."""
        left = [each for each in self._all.values() if not each.settled and (best_ns is None or each.bound_ns < best_ns)]

        def rank(option: Option) -> tuple[bool, bool, int]:
            gains_little = best_ns is not None and best_ns - option.bound_ns < LITTLE * best_ns
            return gains_little, option.objective_ns is None, option.objective_ns or option.bound_ns

        return sorted(left, key=rank)
