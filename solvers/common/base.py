"""What methods take and give beside the problem: what is asked of a search, limits, how to climb, and what a solver found."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from schedc.analysis.gap import check_bound, relative_gap
from schedc.errors import Defect
from schedc.ir import Objective, Problem, Schedule
from schedc.solvers.common.interruption import Interruption

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.models.blocks import Blocks

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

    @property
    def least(self) -> float:
        """The work, or the seconds of a clock; infinite without a limit."""
        return next((each for each in (self.deterministic, self.time_s) if each is not None), inf)

    def left(self, begun_s: float, work: float) -> Limits:
        """What is left of the time since `begun_s`, by `time.perf_counter`, and behind this much work; not below 0."""
        time_s = None if self.time_s is None else max(0.0, self.time_s - (time.perf_counter() - begun_s))
        deterministic = None if self.deterministic is None else max(0.0, self.deterministic - work)
        return replace(self, time_s=time_s, deterministic=deterministic)

    def part(self, share: float, least: float = 0.0) -> Limits:
        """This share of the time and of the work, but `least` of each where that is more and as much is there."""
        whole = self.time_s, self.deterministic
        time_s, work = (None if each is None else min(each, max(share * each, least)) for each in whole)
        return replace(self, time_s=time_s, deterministic=work)


NO_LIMITS = Limits()
"""No limits, seed 0."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Climbing:
    """How a local search climbs. A round's results do not depend on the clock, only how many rounds there are may."""

    evaluations: int = 0
    """Tries per climb and round; 0: as many as suit the problem's size."""
    rounds: int = 20
    """At most this many."""
    seed: int = 0
    """Of the random changes."""
    time_s: float | None = None
    """End after the round, or the climb in it, in which this many seconds have passed."""
    good_enough_ns: float = 0
    """End when this objective is reached, by the kernel's clock, which knows no shared trunks' ties."""


class SolverStatus(StrEnum):
    """How a solver ended, in CP-SAT's words, and one more."""

    OPTIMAL = "OPTIMAL"
    RELAXED = "RELAXED"
    """The model is solved, and its bound is proven; but every schedule known takes longer than the model says, or does not fit: the
    model leaves something out, or its grid is coarser than the durations."""
    FEASIBLE = "FEASIBLE"
    INFEASIBLE = "INFEASIBLE"
    UNKNOWN = "UNKNOWN"

    @property
    def is_final(self) -> bool:
        """Whether the question is settled, so that no clock and no race of threads had a part in it."""
        return self not in (SolverStatus.FEASIBLE, SolverStatus.UNKNOWN)

    def of_schedule(self, model_ns: float, best_ns: int) -> SolverStatus:
        """What it says of the best schedule known, where the model's best takes `model_ns` by the model."""
        return SolverStatus.RELAXED if self is SolverStatus.OPTIMAL and model_ns < best_ns else self


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


def bound_of_none(blocks: Blocks, known: Schedule, known_ns: int, *, is_bound: bool, claimed_by: str) -> int:
    """The lower bound, in nanoseconds, that follows where a model has no schedule whose objective is at most the known one's.

    A formulation says which schedules it holds, and its limit is the objective of a schedule that is known. Where it holds that
    very schedule, "there is none" contradicts it. This is the one place that turns such an answer into a bound, for every
    formulation.

    Args:
        blocks: of the model.
        known: the schedule whose objective is the model's limit.
        known_ns: that objective.
        is_bound: whether bounds of the model hold for the problem, so that it has a solution for every schedule of such blocks.
        claimed_by: who says that there is none.

    Returns:
        The known objective, where the model speaks for the problem but not for the known schedule, which cuts its blocks in another
        way; 0 where it does not speak for the problem.

    Raises:
        Defect: the model has a solution for the known schedule.
    """
    if not is_bound:
        return 0
    if not known.parts or known.parts == blocks.parts:
        raise Defect(f"{claimed_by}: no schedule has an objective of {known_ns} ns or less, but one that has it is known")
    return known_ns
