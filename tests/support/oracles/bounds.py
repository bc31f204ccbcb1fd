"""One lower bound of a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.analysis.bounds.lower_bounds import Bound, lower_bounds

if TYPE_CHECKING:
    from schedc.ir.plan import BoundName
    from schedc.ir.problem import Problem


def bound_of(name: BoundName | str, problem: Problem) -> Bound:
    """The bound of that name."""
    return next(found for found in lower_bounds(problem) if found.name == name)
