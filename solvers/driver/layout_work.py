"""The work on one workload whose layout is open: what its steps share (`layout_search`, `layout_trials`).

Steps change it: they add options and candidates, and offer layouts with schedules that the simulator has timed.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schedc.analysis.bounds.clock import Until, never
from schedc.solvers.common.incumbent import BestKnown, Candidate
from schedc.solvers.common.interruption import Ends, OutOfTime
from schedc.solvers.common.search_settings import LayoutsProgress
from schedc.solvers.driver.layout_options import Option, option_of
from schedc.solvers.driver.registry import LAYOUT_METHODS, is_constructive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.errors import Unsupported
    from schedc.ir.layout import Layout, OpenLayout
    from schedc.ir.problem import Objective
    from schedc.ir.workload import Workload
    from schedc.solvers.layout.scheduled_layout import ScheduledLayout

LITTLE = 0.0001
"""A gain of less than this share is next to nothing."""
LEAST_OPS = 4000
"""A layout counts as at least this many ops."""
LEAST_S, S_PER_OP = 0.8, 1e-4
"""A method does nothing worth while with a layout in less time than this, and this for each compute op."""


@dataclass(slots=True, kw_only=True)
class LayoutWork(BestKnown):
    """What is to be done with the layouts of one workload, what is known of them, and what the limits leave."""

    workload: Workload
    open_layout: OpenLayout
    until: Until = never
    """Whether the time is up; then bounds that take long are left out, and an option says less of what it can be worth."""
    options: dict[tuple[object, ...], Option] = field(default_factory=dict)
    """The layouts that may be handed to a method, by what makes them different."""
    best: ScheduledLayout | None = None
    """The layout of the best schedule."""
    title: str = ""
    """Of the candidate that has it."""
    layouts: int = 0
    """How many were evaluated."""
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
        return is_constructive(self.method) and self.method not in LAYOUT_METHODS

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
        if self.best is None:
            return self.interruption.is_late
        return (
            self.interruption.is_late
            or self.interrupted
            or self.interruption.requested
            or self.gap <= self.limits.gap
            or self.left == 0
        )

    def offer(self, found: ScheduledLayout, found_by: str, title: str) -> None:
        """Take it if it is the best so far.

        Args:
            found: within memory.
            found_by: the method that made the schedule.
            title: of the candidate, for people.

        Raises:
            Defect: as of `take`.
        """
        with self.interruption.deferred():
            if self.would_take(found.schedule, found.objective_ns):
                self.best, self.title = found, title
            self.take(found.schedule, found.makespan_ns, found.objective_ns, found_by)

    def add(self, title: str, layout: Layout) -> Option | None:
        """The layout as an option, the known one if it is one already; None: it is unsound, or a rank has no room."""
        key = layout.rank_of_stage, layout.layers_of_stage, layout.recomputed
        if key not in self.options:
            option = option_of(self.workload, title, layout, self.until)
            if option is not None:
                self.options[key] = option
        return self.options.get(key)

    def tried(self, method: str, seconds: float, found: ScheduledLayout | None = None, why_not: str = "") -> None:
        """Keep what became of a method, or why it found nothing."""
        makespan_ns, objective_ns = (found.makespan_ns, found.objective_ns) if found else (None, None)
        row = Candidate(method=method, seconds=seconds, makespan_ns=makespan_ns, objective_ns=objective_ns, why_not=why_not)
        self.candidates.append(row)

    def hopeful(self) -> list[Option]:
        """The options that may be better than the best, the most promising first; last those that can be so by next to nothing."""
        best_ns = None if self.best is None else self.objective_ns
        left = [each for each in self.options.values() if not each.settled and (best_ns is None or each.bound_ns < best_ns)]

        def rank(option: Option) -> tuple[bool, bool, int]:
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
        self.settings.on_layouts(
            LayoutsProgress(
                layouts=self.layouts if layouts is None else layouts,
                objective_ns=min(seen, default=None),
                lower_bound_ns=self.bound_ns,
            )
        )

    def ops_of_two_chunks(self) -> int:
        """The compute ops of a layout with two stages on each rank."""
        return 3 * self.workload.microbatches * 2 * self.workload.ranks

    def ops_of_a_layout(self) -> int:
        """About as many ops as are placed for one layout."""
        return max(LEAST_OPS, self.ops_of_two_chunks())

    def least(self) -> float:
        """What a method needs to do anything worth while with an option, in seconds or units of work."""
        return LEAST_S + S_PER_OP * self.ops_of_two_chunks()
