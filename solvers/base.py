"""What every solver has in common: a constructive method takes a Problem and gives a Schedule, or says why it cannot.

A constructive method is a pure function `construct(problem, **options) -> Schedule`; it raises `schedc.errors.Unsupported` where
it does not exist for the problem's numbers. Nobody trusts what a method thinks of its own result: the simulator times it and the
verifier accepts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

__all__ = ["NO_LIMITS", "Construct", "Limits", "Solved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a search ends, and what its random numbers start from."""

    time_s: float | None = None
    """Wall-clock seconds; a result that they cut short is marked as not reproducible."""
    seed: int = 0


NO_LIMITS = Limits()
"""No limits, seed 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """What a solver found: the best schedule known, and the bound that it proved."""

    schedule: Schedule
    objective_ns: int
    lower_bound_ns: int
    status: str
    log_sha256: str = ""


class Construct(Protocol):
    """A constructive method."""

    def __call__(self, problem: Problem, /) -> Schedule:
        """The method's schedule for the problem.

        Raises:
            Unsupported: the method does not exist for the problem's numbers.
        """
        ...
