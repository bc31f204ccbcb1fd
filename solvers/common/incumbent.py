"""The best schedule so far and the best bound so far, while several methods work on one problem or on one workload's layouts.

Methods offer schedules and bounds; each schedule is timed by the simulator before it counts, so that no method's own word is
taken for it. The history of improvements is what `compile --json` prints and what is shown live.
"""

from __future__ import annotations

import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from schedc.analysis.gap import check_bound, relative_gap
from schedc.analysis.simulation.memory import exceeded_limit
from schedc.analysis.simulation.period import steady_state
from schedc.analysis.simulation.simulate import simulate
from schedc.analysis.simulation.versions import versions_of
from schedc.errors import CheckFailed, SchedcError, Unsupported
from schedc.ir import BoundName, Kind, Objective, Problem, Schedule
from schedc.ir.index import Tables, tables_of
from schedc.solvers.common.base import Improvement, SearchSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from schedc.solvers.common.base import Limits, Solved
    from schedc.solvers.common.interruption import Interruption


MANY_OPS = 50_000
"""Of problems with more compute ops only the best schedule is kept."""


class Ended(StrEnum):
    """Why the work on a problem ended."""

    PROVEN = "proven optimal"
    WITHIN_GAP = "within the gap asked for"
    OUT_OF_TIME = "out of time"
    OUT_OF_WORK = "the deterministic limit is used up"
    INTERRUPTED = "interrupted"
    EXHAUSTED = "nothing left to try"
    DONE = "the method is done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What one method made of the problem, or the reason why not; where a layout is chosen, what was made in one or several."""

    method: str
    seconds: float
    makespan_ns: int | None = None
    objective_ns: int | None = None
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How a method failed, with an exception of its own: a defect of schedc, which costs what that method does and no more.

    What other methods found stays, the failure is recorded beside it, and the driver tells it. Errors that say something of the
    problem or of what was asked for (`Unsupported`, `InvalidInput`) are no failures and go their way.
    """

    method: str
    error: str
    """The exception's type."""
    message: str
    place: str
    """Module and line that raised it, the innermost of schedc's own: `schedc.models.cpsat.model:57`."""
    exception: Exception = field(repr=False, compare=False)

    def __str__(self) -> str:
        """One line for people."""
        message = " ".join(self.message.split())
        return f"method {self.method} failed with {self.error} at {self.place}" + (f": {message}" if message else "")

    @classmethod
    def of(cls, method: str, exception: Exception) -> Failure:
        """What the method's exception says."""
        place = "an unknown place"
        for frame, line in traceback.walk_tb(exception.__traceback__):
            module = frame.f_globals.get("__name__", "")
            if module.startswith("schedc."):
                place = f"{module}:{line}"
        return cls(method=method, error=type(exception).__name__, message=str(exception), place=place, exception=exception)


@dataclass(slots=True, kw_only=True)
class BestKnown(ABC):
    """The best schedule and bound so far, and how they came to be; changes as methods make offers, also from a solver's threads."""

    bound_ns: int = 0
    """At first the best analytic bound."""
    bound_by: BoundName = BoundName.WORK
    settings: SearchSettings = field(default_factory=SearchSettings)
    begun: float = field(default_factory=time.perf_counter)
    schedule: Schedule | None = None
    objective_ns: int = 0
    makespan_ns: int = 0
    found_by: str = ""
    whole: Schedule | None = None
    """The best schedule that cuts no block: where the formulations start."""
    whole_ns: int = 0
    solver_log: tuple[str, ...] = ()
    """What a solver's bound rests on."""
    cut_short: bool = False
    """Whether a clock, an interruption or racing threads had a part in what was found, so that another run may end elsewhere."""
    work: float = 0.0
    """What the searches have spent of a deterministic limit."""
    history: list[Improvement] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    """What was tried, in that order."""
    failures: list[Failure] = field(default_factory=list)
    """Of methods that ended with an exception of their own."""
    ended: Ended = Ended.DONE
    """Why the work ended, once it has."""
    layouts: int = 1
    """How many were evaluated."""
    title: str = ""
    """Where a layout is chosen, of the candidate that has the best."""
    _analytic: tuple[int, BoundName] = field(init=False)
    _lock: threading.RLock = field(init=False, default_factory=threading.RLock)

    def __post_init__(self) -> None:
        """Keep the analytic bound, for where a solver's does not hold."""
        self._analytic = (self.bound_ns, self.bound_by)

    @property
    @abstractmethod
    def objective(self) -> Objective:
        """What is minimized."""

    @property
    def method(self) -> str:
        """The one that was asked for."""
        return self.settings.method

    @property
    def limits(self) -> Limits:
        """Of all the work."""
        return self.settings.limits

    @property
    def interruption(self) -> Interruption:
        """Waits while what is known changes."""
        return self.settings.interruption

    @property
    def seconds(self) -> float:
        """Since the work began."""
        return time.perf_counter() - self.begun

    @property
    def gap(self) -> float:
        """(objective − bound) / objective; 1 while there is no schedule.

        Raises:
            Defect: the bound, an analytic one, is above the objective.
        """
        return 1.0 if self.schedule is None else relative_gap(self.objective_ns, self.bound_ns, self.bound_by)

    def alarm(self, seconds: float | None) -> AbstractContextManager[None]:
        """Within, the time is up this long after the work began; None: never."""
        return self.interruption.alarm(None if seconds is None else max(0.0, seconds - self.seconds))

    def would_take(self, schedule: Schedule, objective_ns: int) -> bool:
        """Whether it is the best so far. Of equals, one that cuts no block is better: every solver's bound speaks for it."""
        best = (self.objective_ns, bool(self.schedule.parts)) if self.schedule is not None else None
        return best is None or (objective_ns, bool(schedule.parts)) < best

    def take(self, schedule: Schedule, makespan_ns: int, objective_ns: int, found_by: str) -> None:
        """Take a schedule, timed by the simulator and within memory, if it is the best so far.

        Where a solver's bound does not speak of it, as it cuts blocks, the analytic bound is back in its place.

        Raises:
            Defect: the schedule, which is taken, is better than the bound, which is dropped if a solver proved it.
        """
        with self.interruption.deferred(), self._lock:
            if not schedule.parts and (self.whole is None or objective_ns < self.whole_ns):
                self.whole, self.whole_ns = schedule, objective_ns
            if self.would_take(schedule, objective_ns):
                self.schedule, self.objective_ns, self.makespan_ns, self.found_by = schedule, objective_ns, makespan_ns, found_by
                if not self.bound_by.speaks_of(schedule.parts):
                    self.drop_solver_bound()
                bound_ns, bound_by = self.bound_ns, self.bound_by
                if bound_ns > objective_ns:
                    self.drop_solver_bound()
                check_bound(self.bound_ns, objective_ns, self.bound_by)
                self._note(found_by)
                check_bound(bound_ns, objective_ns, bound_by)

    def raise_bound(self, bound_ns: int, bound_by: BoundName, solver_log: tuple[str, ...]) -> None:
        """Take a solver's lower bound if it is better than the one known, or the same with the log that it had not yet.

        It is taken only while it speaks of the best schedule (`BoundName.speaks_of`).

        Raises:
            Defect: a schedule that it speaks of is known that is better than the bound, which is not taken.
        """
        with self.interruption.deferred(), self._lock:
            if self.whole is not None:
                check_bound(bound_ns, self.whole_ns, bound_by)
            if self.schedule is None or not bound_by.speaks_of(self.schedule.parts):
                return
            check_bound(bound_ns, self.objective_ns, bound_by)
            if bound_ns == self.bound_ns and bound_by == self.bound_by:
                self.solver_log = solver_log or self.solver_log
            if bound_ns > self.bound_ns:
                self.bound_ns, self.bound_by, self.solver_log = bound_ns, bound_by, solver_log
                self._note(bound_by)

    def drop_solver_bound(self) -> None:
        """Go back to the analytic bound."""
        with self.interruption.deferred(), self._lock:
            self.bound_ns, self.bound_by = self._analytic
            self.solver_log = ()

    def end(self, otherwise: Ended, *, interrupted: bool) -> None:
        """Say why the work ended: by a proof, within the gap, interrupted, or else as given."""
        if self.schedule is not None and self.gap <= self.limits.gap:
            self.ended = Ended.PROVEN if self.gap == 0 else Ended.WITHIN_GAP
        else:
            self.ended = Ended.INTERRUPTED if interrupted or self.interruption.requested else otherwise

    def fails(self, method: str, work: Callable[[], None]) -> bool:
        """Let the method work; whether it failed, which is kept.

        After a failure no bound is trusted but the analytic one, and the run does not count as reproducible.

        Raises:
            SchedcError: the method is not for this problem, or what was asked for is wrong.
        """
        try:
            work()
        except Exception as error:
            if isinstance(error, SchedcError) and not isinstance(error, CheckFailed):
                raise
            self.failures.append(Failure.of(method, error))
            self.drop_solver_bound()
            self.cut_short = True
            return True
        return False

    def _note(self, found_by: str) -> None:
        improvement = Improvement(
            seconds=self.seconds,
            makespan_ns=self.makespan_ns,
            objective=self.objective,
            objective_ns=self.objective_ns,
            lower_bound_ns=self.bound_ns,
            found_by=found_by,
        )
        self.history.append(improvement)
        self.settings.report(improvement)


Family: TypeAlias = tuple[str, str]
"""Of schedules: who made them, a method without options, and their `mixture_of`."""


def mixture_of(schedule: Schedule) -> str:
    """Of the backwards: `fused`, `split`, or `mixed`."""
    kinds = {op.kind for order in schedule.orders for op in order}
    return "split" if Kind.BW not in kinds else "mixed" if Kind.B in kinds else "fused"


@dataclass(slots=True, kw_only=True)
class Incumbent(BestKnown):
    """What is known about one problem."""

    problem: Problem
    tables: Tables = field(init=False)
    families: dict[Family, tuple[int, Schedule]] = field(default_factory=dict)
    """The best schedule of whole blocks of each family, with its objective: what is worse may still lead further. None
    of problems of more than `MANY_OPS`, where they would take much memory."""

    def __post_init__(self) -> None:
        """Look up the problem's tables once."""
        BestKnown.__post_init__(self)  # `super()` without arguments does not work in a class with slots
        self.tables = tables_of(self.problem)

    @property
    def objective(self) -> Objective:
        """The problem's."""
        return self.problem.objective

    @property
    def start(self) -> Schedule:
        """The best schedule of whole blocks, where searches start.

        Raises:
            Unsupported: there is none.
        """
        if self.whole is None:
            raise Unsupported("no schedule of whole blocks is known to start from")
        return self.whole

    def starts(self, most: int, besides: str = "") -> list[Schedule]:
        """Up to `most` schedules of whole blocks: the best; the best of each mixture; their second best; and so on.

        Where other methods than `besides` found any, only theirs.
        """
        mixtures, turns = Counter[str](), list[tuple[int, int, Schedule]]()
        for (name, mixture), (objective_ns, schedule) in sorted(self.families.items(), key=lambda each: each[1][0]):
            if name != besides:
                turns.append((mixtures[mixture], objective_ns, schedule))
                mixtures[mixture] += 1
        found = [] if besides and turns else [self.start]
        for _, _, schedule in sorted(turns, key=lambda each: each[:2]):
            if len(found) < most and schedule not in found:
                found.append(schedule)
        return found

    def would_take(self, schedule: Schedule, objective_ns: int) -> bool:
        """As of any; of equal periods one whose stages have less delay together is better."""
        if BestKnown.would_take(self, schedule, objective_ns):
            return True
        updates = self.problem.updates
        if self.schedule is None or updates is None or not updates.is_period or objective_ns != self.objective_ns:
            return False
        return sum(versions_of(self.problem, schedule).delays) < sum(versions_of(self.problem, self.schedule).delays)

    def offer(self, schedule: Schedule, found_by: str) -> tuple[int, int]:
        """Take the schedule if it is the best so far; it must keep the memory limits. Returns its makespan and objective.

        Raises:
            Defect: as of `take`.
        """
        updates = self.problem.updates
        if updates is not None and updates.is_period:
            makespan_ns = objective_ns = steady_state(self.problem, schedule).period_ns
        else:
            timeline = simulate(self.problem, schedule, tables=self.tables)
            makespan_ns, objective_ns = timeline.makespan_ns, timeline.objective_ns(self.problem.objective)
        if not schedule.parts and self.problem.num_ops <= MANY_OPS:
            family = (found_by.partition("{")[0].partition(" ")[0], mixture_of(schedule))
            if family not in self.families or objective_ns < self.families[family][0]:
                self.families[family] = objective_ns, schedule
        self.take(schedule, makespan_ns, objective_ns, found_by)
        return makespan_ns, objective_ns

    def take_solved(self, solved: Solved, name: BoundName, limits: Limits) -> None:
        """Take a solver's last word; an interruption that ended it then goes on.

        Raises:
            Defect: as of `take` and `raise_bound`.
        """
        self.work += solved.work
        self.offer_valid(solved.schedule, name)
        self.raise_bound(solved.lower_bound_ns, name, solved.log)
        if limits.deterministic is None and (not solved.status.is_final or self.found_by == name):
            self.cut_short = True  # threads raced for what was found, or a clock ended them
        if solved.ended_by is not None:
            raise solved.ended_by

    def offer_valid(self, schedule: Schedule, found_by: str) -> None:
        """Offer the schedule, unless it exceeds a memory limit: a search's relaxed model may have let it."""
        if exceeded_limit(self.problem, schedule) is None:
            self.offer(schedule, found_by)
