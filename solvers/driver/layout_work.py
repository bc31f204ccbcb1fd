"""The work on one workload whose layout is open: what its steps share (`layout_search`, `layout_trials`).

Steps take a `Work` and change it: they add options and candidates, and offer what they find to the best layout known.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schedc.solvers.common.interruption import OutOfTime
from schedc.solvers.driver.best_layout import LayoutsProgress
from schedc.solvers.driver.registry import LAYOUT_METHODS, SEARCHES, is_auto

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from schedc.errors import Unsupported
    from schedc.ir.layout import OpenLayout
    from schedc.ir.workload import Workload
    from schedc.solvers.common.base import Limits
    from schedc.solvers.common.failure import Failure
    from schedc.solvers.common.interruption import Ends
    from schedc.solvers.driver.best_layout import BestLayout
    from schedc.solvers.driver.layout_options import LayoutOptions, Option
    from schedc.solvers.driver.portfolio import Candidate

LEAST_OPS = 4000
"""A layout counts as at least this many ops."""
LEAST_S, S_PER_OP = 0.8, 1e-4
"""A method does nothing worth while with a layout in less time than this, and this for each compute op."""


@dataclass(slots=True, kw_only=True)
class Work:
    """What the steps share: what is to be done, what is known, and what the limits leave."""

    workload: Workload
    open_layout: OpenLayout
    method: str
    limits: Limits
    known: BestLayout
    options: LayoutOptions
    on_method: Callable[[str], None]
    on_layouts: Callable[[LayoutsProgress], None]
    candidates: list[Candidate] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    unsupported: list[Unsupported] = field(default_factory=list)
    """Why a search that is asked for by name does not work in some layout."""
    interrupted: bool = False
    exhausted: bool = False
    listed: bool = False
    """Whether the exact search has been through all layouts."""

    @property
    def is_constructive(self) -> bool:
        """Whether the method makes a schedule at once."""
        return not is_auto(self.method) and self.method.partition("{")[0] not in {*SEARCHES, *LAYOUT_METHODS}

    @property
    def is_timed(self) -> bool:
        """Whether a clock ends the work."""
        return self.limits.deterministic is None and self.limits.time_s is not None

    @property
    def left(self) -> float | None:
        """What the limits leave, in seconds or units of work; None: all."""
        if self.limits.deterministic is not None:
            return max(0.0, self.limits.deterministic - self.known.work)
        return None if self.limits.time_s is None else max(0.0, self.limits.time_s - self.known.seconds)

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be done."""
        if self.known.best is None:
            return self.known.interruption.is_late
        return (
            self.known.interruption.is_late
            or self.interrupted
            or self.known.interruption.requested
            or self.known.gap <= self.limits.gap
            or self.left == 0
        )

    def hopeful(self) -> list[Option]:
        """The options that may be better than the best, the most promising first."""
        return self.options.hopeful(None if self.known.best is None else self.known.best.objective_ns)

    @contextmanager
    def region(self, share: float = 1.0) -> Iterator[None]:
        """Within, an interruption or the end of this share of the time ends the work, and what is behind goes on.

        An interruption waits for the first schedule. If either has come before it begins, what is within ends by its own limits.
        """
        ends: Ends = "time" if self.known.best is None else "both"
        interruption = self.known.interruption
        begun = False
        try:
            left = self.left if self.is_timed else None
            with interruption.alarm(None if left is None else share * left), interruption.raising(at=ends):
                begun = True
                yield
        except OutOfTime:
            self.known.cut_short = True
        except KeyboardInterrupt:
            if self.known.best is None:
                raise
            self.interrupted = self.known.cut_short = True
        if not begun:
            yield

    def progress(self, objective_ns: int | None, layouts: int | None = None) -> None:
        """Report it, if it is new."""
        best_ns = None if self.known.best is None else self.known.best.objective_ns
        seen = [each for each in (objective_ns, best_ns) if each is not None]
        self.on_layouts(
            LayoutsProgress(
                layouts=self.known.layouts if layouts is None else layouts,
                objective_ns=min(seen, default=None),
                lower_bound_ns=self.known.bound_ns,
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
