"""The work on one workload whose layout is open: what its steps share (`layouts`, `layout_search`).

Steps change it: they add options and candidates, and offer layouts with schedules that the simulator has timed.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schedc.analysis.bounds.clock import Until, never
from schedc.analysis.bounds.lower_bounds import best_bound, bounds_in_time, cheap_bound_ns
from schedc.analysis.bounds.residency import rank_without_room
from schedc.ir import Layout, Objective, OpenLayout, Problem, Schedule, Workload
from schedc.lower.problem import problem_of
from schedc.solvers.common.base import LayoutsProgress
from schedc.solvers.common.incumbent import BestKnown, Candidate
from schedc.solvers.common.interruption import Ends, OutOfTime
from schedc.solvers.driver.registry import chooses_layout, is_constructive
from schedc.verify.layout import verify_layout
from schedc.verify.problem import verify_problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.errors import Unsupported
    from schedc.solvers.layout.layout_arrays import ScheduledLayout

LITTLE = 0.0001
"""A gain of less than this share is next to nothing."""
LEAST_S, S_PER_OP = 0.8, 1e-4
"""A method does nothing worth while with a layout in less time than this, and this for each compute op."""
SMALL_OPS = 1000
"""Up to this many compute ops all bounds together take no time that counts, some 0.1 s."""
BOUNDS_S_PER_OP2 = 5e-8
"""All bounds of a larger layout take about this, times the square of its compute ops."""
BOUNDS_SHARE = 0.1
"""Of the time or work that a method has for a layout, all its bounds may take this share."""


def ops_of_two_chunks(workload: Workload, open_layout: OpenLayout) -> int:
    """The compute ops of a layout with two stages on each rank, and the most slices that there may be."""
    return 3 * workload.microbatches * 2 * workload.ranks * (1 if open_layout.slices is None else open_layout.slices.most)


@dataclass(slots=True, kw_only=True)
class LayoutOption:
    """A layout that may be handed to a method, and what is known of it."""

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


@dataclass(slots=True, kw_only=True)
class LayoutWork(BestKnown):
    """What is to be done with the layouts of one workload, what is known of them, and what the limits leave."""

    workload: Workload
    open_layout: OpenLayout
    until: Until = never
    """Whether the time is up; then bounds that take long are left out, and an option says less of what it can be worth."""
    options: dict[tuple[object, ...], LayoutOption] = field(default_factory=dict)
    """The layouts that may be handed to a method, by what makes them different."""
    best: ScheduledLayout | None = None
    """The layout of the best schedule."""
    layouts: int = 0
    unsupported: list[Unsupported] = field(default_factory=list)
    """Why a search that is asked for by name does not work in some layout."""
    interrupted: bool = False
    exhausted: bool = False
    listed: bool = False
    """Whether the exact search has been through all layouts."""

    @property
    def objective(self) -> Objective:
        """The workload's."""
        return self.workload.objective

    @property
    def is_constructive(self) -> bool:
        """Whether the method makes a schedule at once."""
        return is_constructive(self.method) and not chooses_layout(self.method)

    @property
    def is_timed(self) -> bool:
        """Whether a clock ends the work."""
        return self.limits.clock_s is not None

    @property
    def left(self) -> float | None:
        """What the limits leave, in seconds or units of work; None: all."""
        if self.limits.deterministic is not None:
            return max(0.0, self.limits.deterministic - self.work)
        return None if self.limits.time_s is None else max(0.0, self.limits.time_s - self.seconds)

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be done."""
        if self.interruption.is_late or self.best is None:
            return self.interruption.is_late
        return self.interrupted or self.interruption.requested or self.gap <= self.limits.gap or self.left == 0

    @property
    def least(self) -> float:
        """What a method needs to do anything worth while with an option, in seconds or units of work."""
        return LEAST_S + S_PER_OP * self.ops_of_two_chunks

    @property
    def ops_of_two_chunks(self) -> int:
        """The compute ops of a layout with two stages on each rank."""
        return ops_of_two_chunks(self.workload, self.open_layout)

    def offer(self, found: ScheduledLayout, found_by: str, title: str) -> None:
        """Take what was found, which keeps memory, if it is the best so far; `title` names its candidate, for people.

        Raises:
            Defect: as of `take`.
        """
        with self.interruption.deferred():
            if self.would_take(found.schedule, found.objective_ns):
                self.best, self.title = found, title
            self.take(found.schedule, found.makespan_ns, found.objective_ns, found_by)

    def add(self, title: str, layout: Layout) -> LayoutOption | None:
        """The layout as an option, the known one if it is one already; None: it is unsound, or a rank has no room.

        Bounds that take long are left out if the time is up.
        """
        key = layout.rank_of_stage, layout.layers_of_stage, layout.recomputed, layout.split_head, layout.slices
        if key not in self.options:
            if verify_layout(self.workload, layout):
                return None
            problem = problem_of(self.workload, layout)
            if verify_problem(problem) or rank_without_room(problem):
                return None
            is_small = problem.num_ops <= SMALL_OPS and not self.until()
            bound_ns = best_bound(problem).value_ns if is_small else cheap_bound_ns(problem, self.until)
            self.options[key] = LayoutOption(title=title, layout=layout, problem=problem, bound_ns=bound_ns, is_bounded=is_small)
        return self.options[key]

    def tried(self, method: str, seconds: float, found: ScheduledLayout | None = None, why_not: str = "") -> None:
        """Keep what became of a method, or why it found nothing."""
        makespan_ns, objective_ns = (found.makespan_ns, found.objective_ns) if found else (None, None)
        row = Candidate(method=method, seconds=seconds, makespan_ns=makespan_ns, objective_ns=objective_ns, why_not=why_not)
        self.candidates.append(row)

    def hopeful(self) -> list[LayoutOption]:
        """The options that may be better than the best, the most promising first; last those that can be so by next to nothing."""
        best_ns = None if self.best is None else self.objective_ns
        left = [each for each in self.options.values() if not each.settled and (best_ns is None or each.bound_ns < best_ns)]

        def rank(option: LayoutOption) -> tuple[bool, bool, int]:
            gains_little = best_ns is not None and best_ns - option.bound_ns < LITTLE * best_ns
            return gains_little, option.objective_ns is None, option.objective_ns or option.bound_ns

        return sorted(left, key=rank)

    @contextmanager
    def region(self, share: float = 1.0) -> Iterator[None]:
        """Within, an interruption or the end of this share of the time ends the work, and what is behind goes on.

        An interruption waits for the first schedule. If either has come before it begins, what is within ends by its own limits.
        """
        ends: Ends = "time" if self.best is None else "both"
        begun = False
        try:
            left = self.left if self.is_timed else None
            with self.interruption.alarm(None if left is None else share * left), self.interruption.raising(at=ends):
                begun = True
                yield
        except OutOfTime:
            self.cut_short = True
        except KeyboardInterrupt:
            if self.best is None:
                raise
            self.interrupted = self.cut_short = True
        if not begun:
            yield

    def progress(self, objective_ns: int | None, layouts: int | None = None) -> None:
        """Report it, if it is new."""
        seen = [each for each in (objective_ns, None if self.best is None else self.objective_ns) if each is not None]
        evaluated = self.layouts if layouts is None else layouts
        known = LayoutsProgress(layouts=evaluated, objective_ns=min(seen, default=None), lower_bound_ns=self.bound_ns)
        self.settings.on_layouts(known)
