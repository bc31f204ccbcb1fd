"""What every solver has in common: a constructive method takes a Problem and gives a Schedule, or says why it cannot.

A constructive method is a pure function `construct(problem, **options) -> Schedule`; it raises `schedc.errors.Unsupported` where
it does not exist for the problem's numbers. Nobody trusts what a method thinks of its own result: the simulator times it and the
verifier accepts it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

__all__ = ["Construct"]


class Construct(Protocol):
    """A constructive method."""

    def __call__(self, problem: Problem, /) -> Schedule:
        """The method's schedule for the problem.

        Raises:
            Unsupported: the method does not exist for the problem's numbers.
        """
        ...
