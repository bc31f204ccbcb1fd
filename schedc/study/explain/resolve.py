"""Problems solved again from a known schedule, so that what a change gains is the change's and not the search's.

The unchanged problem is searched first, with the limits of every search here, until such a search finds nothing better: what it
ends with is the *base*. Each changed problem is searched from the base. So the same search finds nothing on the unchanged problem.
Where a change only helps, the base is a schedule of the changed problem, and the result is no worse than the base in it.

What latency each link tolerates is found with the plan's orders, and solved again; beside it is PipeMorph's rule for neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from schedc.analysis.attribution.tolerance import Slackness, Tolerance, slackness_of
from schedc.analysis.bounds.clock import Clock, Until, never
from schedc.analysis.bounds.lower_bounds import Bound, bounds_in_time
from schedc.analysis.bounds.residency import rank_without_room
from schedc.ir import Problem, Schedule
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.common.incumbent import Ended
from schedc.solvers.common.interruption import Interruption, OutOfTime
from schedc.solvers.driver.portfolio import solve
from schedc.solvers.driver.sharded import solve_sharded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


MOST_ROUNDS = 4
"""The unchanged problem is searched at most this many times."""
SETTLE_SHARE, SEARCH_SHARE, BOUND_SHARE = 0.2, 0.5, 0.1
"""Of the time that is left, all searches of the unchanged problem may take this share, one of a changed problem, and a bound."""
ROUNDS = 3
"""How often the range between what is known to be tolerated and what is not is halved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What is known of a problem."""

    objective_ns: int
    """Of the best schedule found."""
    lower_bound_ns: int
    schedule: Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Solver:
    """The searches of one explanation, all with the same work and within one time."""

    work: float
    """The deterministic limit of each search: unless the time ends it, the result is the same on every machine."""
    clock: Clock
    interruption: Interruption
    on_work: Callable[[str], None] = lambda _: None
    """Is called with what is solved next."""
    not_tried: list[str] = field(default_factory=list)
    """What was not solved again, and why."""
    _bounds: dict[Problem, Bound] = field(init=False, repr=False, compare=False, default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether nothing more is begun."""
        return self.interruption.requested or self.clock()

    def bound(self, problem: Problem) -> Bound:
        """The best lower bound for which there is time."""
        if problem not in self._bounds:
            bounds = bounds_in_time(problem, Clock(BOUND_SHARE * self.clock.left_s))
            self._bounds[problem] = max(bounds, key=lambda bound: bound.value_ns)
        return self._bounds[problem]

    def settle(self, problem: Problem, schedule: Schedule) -> Resolved:
        """The base: the best schedule of the unchanged problem, from which another search finds nothing better."""
        clock = Clock(SETTLE_SHARE * self.clock.left_s)
        base = self.improved(problem, (schedule, *self._at_once(problem)), clock.left_s)
        for _ in range(MOST_ROUNDS):
            if base.objective_ns == base.lower_bound_ns or self.is_over or clock():
                break
            again = self.improved(problem, (base.schedule,), clock.left_s)
            if again.objective_ns == base.objective_ns:
                break
            base = again
        return base

    def improved(self, problem: Problem, known: Sequence[Schedule], time_s: float | None = None) -> Resolved:
        """The best schedule of a problem that a search from known ones finds; they keep its memory limits.

        `time_s`: of the search; None: a share of what is left.
        """
        time_s = SEARCH_SHARE * self.clock.left_s if time_s is None else time_s
        limits = Limits(deterministic=self.work, time_s=time_s)
        with self.interruption.within(time_s):  # a deterministic limit ends no search by the clock
            found = self._solve(problem, tuple((schedule, "known") for schedule in known), limits)
        if found is None:
            raise ValueError("a search from no schedule")
        return found

    def at_once(self, problem: Problem, known: Sequence[Schedule] = (), *, anew: bool = True) -> Resolved | None:
        """The best of known schedules and, if `anew`, of the methods that make one at once, unsearched; None: there is none."""
        starts = tuple((schedule, "known") for schedule in (*known, *(self._at_once(problem) if anew else ())))
        return self._solve(problem, starts, Limits(gap=1.0)) if starts else None

    def _at_once(self, problem: Problem) -> tuple[Schedule, ...]:
        """The best schedule of the methods that make one at once; none where each breaks a memory limit."""
        if rank_without_room(problem):
            return ()
        try:
            with self.interruption.within(self.clock.left_s):
                # Any schedule is good enough, so nothing is searched.
                found = self._solve(problem, (), Limits(gap=1.0, time_s=self.clock.left_s))
        except OutOfTime:
            return ()
        return () if found is None else (found.schedule,)

    def _solve(self, problem: Problem, known: Sequence[tuple[Schedule, str]], limits: Limits) -> Resolved | None:
        bound = self.bound(problem)
        settings = SearchSettings(limits=limits, interruption=self.interruption)
        by = solve_sharded if problem.is_sharded else solve
        incumbent = by(problem, settings, bound_ns=bound.value_ns, bound_by=bound.name, known=known)
        self.interruption.requested |= incumbent.ended is Ended.INTERRUPTED  # also where nothing listens
        if incumbent.schedule is None:
            return None
        return Resolved(objective_ns=incumbent.objective_ns, lower_bound_ns=incumbent.bound_ns, schedule=incumbent.schedule)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedDelay:
    """How much latency can be added to a link if the problem is solved again, by the methods that make a schedule at once."""

    tolerated_ns: int
    """With this a schedule was found that is in time."""
    impossible_ns: int
    """From this on there is none, by the lower bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkDelay:
    """What latency can be added to one link."""

    source: int
    destination: int
    slack_ns: int
    """How much later any one of its transfers could be, the others in time, so that the step is no longer."""
    free_ns: int
    """Added to all transfers, so that the step of the plan is no longer."""
    allowed_ns: int
    """The same so that it is longer by the allowed share at most."""
    resolved: ResolvedDelay | None = None
    """The same if the problem is solved again; None: it was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairDelay:
    """What delay two neighbours tolerate in both directions before it cascades."""

    rule: Slackness
    """By PipeMorph's Equation 1."""
    exact_ns: int | None
    """By simulation of the plan's orders: the largest delay that makes the step longer by one round trip of it, at most; None: any.
    The delay is a latency, the same both ways, in the place of what messages between the two take now."""


def pair_delays(problem: Problem, schedule: Schedule, until: Until = never) -> tuple[PairDelay, ...]:
    """PipeMorph's rule for each pair of neighbours, beside the simulator; empty where the rule does not apply.

    Pairs that come when the time is up are left out.
    """
    found: list[PairDelay] = []
    for rule in slackness_of(problem, schedule):
        if until():
            break
        ends = {rule.source, rule.destination}
        links = tuple(
            replace(each, latency_ns=0, transfer_ns=0, bytes_per_second=None) if {each.source, each.destination} == ends else each
            for each in problem.links
        )
        tolerance = Tolerance(replace(problem, links=links), schedule)
        found.append(PairDelay(rule=rule, exact_ns=tolerance.cascade_free_ns(rule.source, rule.destination)))
    return tuple(found)


def delayed(problem: Problem, link: tuple[int, int], extra_ns: int) -> Problem:
    """The problem with latency added to one link."""
    links = tuple(
        replace(each, latency_ns=each.latency_ns + extra_ns) if (each.source, each.destination) == link else each
        for each in problem.links
    )
    return replace(problem, links=links)


def resolved_delay(
    problem: Problem, schedules: Sequence[Schedule], solver: Solver, delay: LinkDelay, target_ns: int
) -> ResolvedDelay:
    """What latency can be added to the link if the problem is solved again, between what was found and what is impossible.

    `delay` is with the plan's orders. The objective may be at most `target_ns`, which one of the schedules keeps to with
    `delay.allowed_ns`.
    """
    link = (delay.source, delay.destination)
    low_ns, impossible_ns = delay.allowed_ns, target_ns + 1
    while impossible_ns - low_ns > 1 and not solver.is_over:  # bounds are cheap, and grow with the latency
        middle_ns = (low_ns + impossible_ns) // 2
        if solver.bound(delayed(problem, link, middle_ns)).value_ns > target_ns:
            impossible_ns = middle_ns
        else:
            low_ns = middle_ns
    tolerated_ns, late_ns, known = delay.allowed_ns, impossible_ns, tuple(schedules)
    for _ in range(ROUNDS):
        middle_ns = (tolerated_ns + late_ns) // 2
        if solver.is_over or middle_ns == tolerated_ns:
            break
        found = solver.at_once(delayed(problem, link, middle_ns), known)
        if found is not None and found.objective_ns <= target_ns:
            tolerated_ns, known = middle_ns, (*schedules, found.schedule)
        else:
            late_ns = middle_ns
    return ResolvedDelay(tolerated_ns=tolerated_ns, impossible_ns=impossible_ns)
