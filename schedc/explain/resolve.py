"""Problems solved again from a known schedule, so that what a change gains is the change's and not the search's.

The unchanged problem is searched first, with the limits of every search here, until such a search finds nothing better: what it
ends with is the *base*. Each changed problem is searched from the base. So the same search finds nothing on the unchanged problem.
Where a change only helps, the base is a schedule of the changed problem, and the result is no worse than the base in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.analysis.bounds.lower_bounds import best_bound, minimum_limit_bytes
from schedc.solvers.common.base import Limits
from schedc.solvers.driver.portfolio import Ended, solve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule
    from schedc.solvers.common.interruption import Interruption

__all__ = ["Resolved", "Solver"]

MOST_ROUNDS = 4
"""The unchanged problem is searched at most this many times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What is known of a problem."""

    objective_ns: int
    """Of the best schedule found."""
    lower_bound_ns: int
    schedule: Schedule

    @property
    def is_optimal(self) -> bool:
        """Whether no schedule is better."""
        return self.objective_ns == self.lower_bound_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Solver:
    """The searches of one explanation, all with the same limits."""

    limits: Limits
    interruption: Interruption

    def settle(self, problem: Problem, schedule: Schedule) -> Resolved:
        """The base: the best schedule of the unchanged problem, from which another search finds nothing better."""
        base = self.improved(problem, (schedule, *self._at_once(problem)))
        for _ in range(MOST_ROUNDS):
            if base.is_optimal:
                break
            again = self.improved(problem, (base.schedule,))
            if again.objective_ns == base.objective_ns:
                break
            base = again
        return base

    def improved(self, problem: Problem, known: Sequence[Schedule]) -> Resolved:
        """The best schedule of a problem that a search from known ones finds; they keep its memory limits."""
        found = self._solve(problem, tuple((schedule, "known") for schedule in known))
        if found is None:
            raise ValueError("a search from no schedule")
        return found

    def anew(self, problem: Problem, known: Sequence[Schedule] = ()) -> Resolved | None:
        """The same, and first the methods that make a schedule at once; None: there is no schedule within memory."""
        starts = (*known, *self._at_once(problem))
        return self.improved(problem, starts) if starts else None

    def at_once(self, problem: Problem, known: Sequence[Schedule]) -> Resolved:
        """The best of known schedules and of the methods that make one at once: without a search."""
        starts = tuple((schedule, "known") for schedule in (*known, *self._at_once(problem)))
        found = self._solve(problem, starts, Limits(gap=1.0))
        if found is None:
            raise ValueError("the best of no schedule")
        return found

    def _at_once(self, problem: Problem) -> tuple[Schedule, ...]:
        """The best schedule of the methods that make one at once; none where each breaks a memory limit."""
        needed = minimum_limit_bytes(problem)
        if any(limit is not None and limit < least for limit, least in zip(problem.memory_limit_bytes, needed, strict=True)):
            return ()
        found = self._solve(problem, (), Limits(gap=1.0))  # any schedule is good enough, so nothing is searched
        return () if found is None else (found.schedule,)

    def _solve(self, problem: Problem, known: Sequence[tuple[Schedule, str]], limits: Limits | None = None) -> Resolved | None:
        bound = best_bound(problem)
        outcome = solve(
            problem,
            "auto",
            limits or self.limits,
            bound_ns=bound.value_ns,
            bound_by=bound.name,
            report=lambda _: None,
            interruption=self.interruption,
            known=known,
        )
        incumbent = outcome.incumbent
        self.interruption.requested |= outcome.ended is Ended.INTERRUPTED  # also where nothing listens
        if incumbent.schedule is None:
            return None
        return Resolved(objective_ns=incumbent.objective_ns, lower_bound_ns=incumbent.bound_ns, schedule=incumbent.schedule)
