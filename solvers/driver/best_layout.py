"""The best layout with its schedule so far, and the bound over layouts, while several methods work on one workload.

Methods offer layouts with schedules that the simulator has timed; the history of improvements is what `compile --json` prints.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schedc.analysis.gap import check_bound, relative_gap
from schedc.ir.plan import BoundName
from schedc.solvers.common.incumbent import Improvement

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.solvers.common.interruption import Interruption
    from schedc.solvers.layout.scheduled_layout import ScheduledLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutsProgress:
    """What is known at some moment of a search over layouts."""

    layouts: int
    """How many were evaluated."""
    objective_ns: int | None
    """The least objective seen; None: there is none yet."""
    lower_bound_ns: int
    """Over all layouts."""


@dataclass(slots=True, kw_only=True)
class BestLayout:
    """What is known about the layouts of one workload; changes as methods make offers."""

    bound_ns: int
    """Over all layouts, at first the analytic one."""
    report: Callable[[Improvement], None]
    interruption: Interruption
    """Waits while what is known changes."""
    begun: float = field(default_factory=time.perf_counter)
    best: ScheduledLayout | None = None
    found_by: str = ""
    """The method that made the best schedule."""
    title: str = ""
    """In which of the candidates."""
    bound_by: BoundName = BoundName.LAYOUTS
    solver_log: tuple[str, ...] = ()
    """What a solver's bound rests on."""
    cut_short: bool = False
    """Whether a clock, an interruption or racing threads had a part in what was found."""
    work: float = 0.0
    """What was spent of a deterministic limit."""
    layouts: int = 0
    """How many were evaluated."""
    history: list[Improvement] = field(default_factory=list)
    _analytic_ns: int = field(init=False)

    def __post_init__(self) -> None:
        """Keep the analytic bound, for where a solver's does not hold."""
        self._analytic_ns = self.bound_ns

    @property
    def seconds(self) -> float:
        """Since the work began."""
        return time.perf_counter() - self.begun

    @property
    def gap(self) -> float:
        """(objective − bound) / objective; 1 while there is no schedule."""
        return 1.0 if self.best is None else relative_gap(self.best.objective_ns, self.bound_ns, self.bound_by)

    def offer(self, found: ScheduledLayout, found_by: str, title: str) -> None:
        """Take it if it is the best so far; of equal ones, a schedule that cuts no block, for which a solver's bound speaks.

        Args:
            found: within memory.
            found_by: the method that made the schedule.
            title: of the candidate, for people.

        Raises:
            Defect: it is better than the bound, which is dropped if a solver proved it.
        """
        with self.interruption.deferred():
            best = self.best
            is_better = best is None or (found.objective_ns, bool(found.schedule.parts)) < (
                best.objective_ns,
                bool(best.schedule.parts),
            )
            if not is_better:
                return
            self.best, self.found_by, self.title = found, found_by, title
            bound_ns, bound_by = self.bound_ns, self.bound_by
            if found.schedule.parts or bound_ns > found.objective_ns:
                self._drop_solver_bound()
            check_bound(self.bound_ns, found.objective_ns, self.bound_by)
            self._note(found_by)
            if not found.schedule.parts:
                check_bound(bound_ns, found.objective_ns, bound_by)

    def raise_bound(self, bound_ns: int, solver_log: tuple[str, ...]) -> None:
        """Take the bound over layouts that a solver proved for schedules of whole blocks, while the best schedule is one.

        Raises:
            Defect: the best schedule, one of whole blocks, is better than the bound, which is not taken.
        """
        with self.interruption.deferred():
            if self.best is None or self.best.schedule.parts:
                return
            check_bound(bound_ns, self.best.objective_ns, BoundName.CPSAT)
            if bound_ns > self.bound_ns:
                self.bound_ns, self.bound_by, self.solver_log = bound_ns, BoundName.CPSAT, solver_log
                self._note(BoundName.CPSAT)

    def _drop_solver_bound(self) -> None:
        self.bound_ns, self.bound_by, self.solver_log = self._analytic_ns, BoundName.LAYOUTS, ()

    def _note(self, found_by: str) -> None:
        assert self.best is not None
        improvement = Improvement(
            seconds=self.seconds,
            makespan_ns=self.best.makespan_ns,
            objective=self.best.problem.objective,
            objective_ns=self.best.objective_ns,
            lower_bound_ns=self.bound_ns,
            found_by=found_by,
        )
        self.history.append(improvement)
        self.report(improvement)
