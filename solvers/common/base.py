"""What every method has in common: a constructive one makes a Schedule of a Problem, a search improves an incumbent.

A constructive method is a pure function `construct(problem, options) -> Schedule`; it raises `schedc.errors.Unsupported` where
it does not exist for the problem's numbers. Nobody trusts what a method thinks of its own result: the simulator times it and the
verifier accepts it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from schedc.analysis.gap import check_bound

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

    Construct: TypeAlias = Callable[[Problem], Schedule]
    """A constructive method; raises `Unsupported` where it does not exist for the problem's numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a search ends, and what its random numbers start from."""

    time_s: float | None = None
    """Wall-clock seconds; a result that they cut short is marked as not reproducible."""
    gap: float = 0.0
    """Good enough: a search ends when (objective − bound) / objective is no more."""
    seed: int = 0
    workers: int = 8
    """Search threads of a solver; more of them than cores still pays, since each searches in another way."""
    deterministic: float | None = None
    """A limit in units that do not depend on the machine, about seconds; the result is then the same everywhere."""

    @property
    def clock_s(self) -> float | None:
        """The seconds after which a clock ends the search; None: none does."""
        return self.time_s if self.deterministic is None else None


NO_LIMITS = Limits()
"""No limits, seed 0."""


class SolverStatus(StrEnum):
    """How a solver ended, in CP-SAT's words."""

    OPTIMAL = "OPTIMAL"
    FEASIBLE = "FEASIBLE"
    INFEASIBLE = "INFEASIBLE"
    UNKNOWN = "UNKNOWN"

    @property
    def is_final(self) -> bool:
        """Whether the question is settled, so that no clock and no race of threads had a part in it."""
        return self in (SolverStatus.OPTIMAL, SolverStatus.INFEASIBLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """What a solver found: the best schedule known, and the bound that it proved, which is not above that schedule's objective."""

    schedule: Schedule
    objective_ns: int
    lower_bound_ns: int
    status: SolverStatus
    log: tuple[str, ...] = ()
    """What the bound rests on, line by line: solver, version, parameters, model, status. Nothing in it depends on a clock."""
    work: float = field(default=0.0, compare=False)
    """What the solver spent, in the units of a deterministic limit."""
    ended_by: BaseException | None = None
    """The interruption that ended the solver, to be raised once the result is kept."""

    def __post_init__(self) -> None:
        """Refuse a bound that the schedule refutes."""
        check_bound(self.lower_bound_ns, self.objective_ns, f"status {self.status}")
