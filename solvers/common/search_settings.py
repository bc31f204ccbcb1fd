"""What is asked of a search: its method and limits, and who is told what while it works."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schedc.analysis.gap import relative_gap
from schedc.ir import Objective
from schedc.solvers.common.base import NO_LIMITS, Limits
from schedc.solvers.common.interruption import Interruption

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """One step of a compile's history: a better schedule or bound, and what was known then."""

    seconds: float
    makespan_ns: int
    objective: Objective
    """What is minimized: `makespan` or `stage-span`."""
    objective_ns: int
    """Of the best schedule; of this the lower bound speaks."""
    lower_bound_ns: int
    found_by: str

    @property
    def gap(self) -> float:
        """(objective − bound) / objective."""
        return relative_gap(self.objective_ns, self.lower_bound_ns, self.found_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutsProgress:
    """What is known at some moment of a search over layouts."""

    layouts: int
    """How many were evaluated."""
    objective_ns: int | None
    """The least objective seen; None: there is none yet."""
    lower_bound_ns: int
    """Over all layouts."""


def ignore(_: object, /) -> None:
    """Where nobody is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """By which method a plan is sought, until when, and who is told meanwhile."""

    method: str = "auto"
    """`auto`, or a method's name with options in braces."""
    limits: Limits = NO_LIMITS
    report: Callable[[Improvement], None] = ignore
    """Is called with each better schedule or bound at once."""
    on_method: Callable[[str], None] = ignore
    """Is called with the name of each method when it begins, if there are several."""
    on_layouts: Callable[[LayoutsProgress], None] = ignore
    """Is called now and then while layouts are sought."""
    interruption: Interruption = field(default_factory=Interruption)
    """What listens to signals, if something does. An interruption before there is any schedule waits for the first."""
