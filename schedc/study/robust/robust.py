"""A robust plan: one order of ops for links that change, with the least mean (or percentile) of the makespan over their states.

A Problem and Scenarios go in; a verified plan comes out, with what it takes in each state and a lower bound for any single order.
The plan carries the costs of the mean conditions, and its certificate speaks of those.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from schedc import __version__
from schedc.analysis.bounds.clock import Clock
from schedc.analysis.bounds.lower_bounds import bounds_in_time, simple_bound
from schedc.analysis.simulation.simulate import simulate
from schedc.compile.certify import BOUNDS_SHARE, certify
from schedc.compile.driver import Compiled, compile_problem
from schedc.compiled.compiler import compile_ahead
from schedc.errors import Defect, Unsupported
from schedc.ir import MadeBy, Problem, Schedule
from schedc.lower.problem import checked_under, problem_under
from schedc.solvers.common.base import Climbing, SearchSettings
from schedc.solvers.common.incumbent import Ended
from schedc.solvers.heuristics.rule_table import RuleTable, schedules_of_table
from schedc.solvers.kernel.order_climb import polish_kernel
from schedc.solvers.search.polish import polish_sampled_schedules
from schedc.study.robust.scenarios import MEAN, Criterion, Scenarios, clustered, shifted

if TYPE_CHECKING:
    from collections.abc import Sequence


SEARCHED = {0.0: 0.2, 0.5: 0.1, 1.0: 0.1, 1.5: 0.1}
"""For the mean latencies plus this many standard deviations, the method is run within this share of the limit. The rest is for the
climbs."""
SHIFTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""The rule table makes plans for the mean plus this many."""
MEDOIDS = 4
"""It makes plans for this many of the states, too."""
TABLE_OPS = 50_000_000
"""Of each table all rules count, not only the best for its conditions, until about this many ops have been timed."""
MOST_RULES = 60
"""Of one table."""
ROUNDS = 48
WORK_PER_ROUND = 0.5
"""A round of the climbs counts for this much of a deterministic limit."""
MOST_BOUNDED_OPS = 5000
"""Up to this many ops a state's bound is the best one; of larger problems, the simple one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOutcome:
    """What one order comes to."""

    as_planned_ns: int
    """The objective at the costs that the problem says."""
    mean_ns: int
    """Under the mean conditions."""
    ends_ns: tuple[int, ...]
    """In each state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Robust:
    """A robust plan, and what it is worth."""

    compiled: Compiled
    """The plan, with the costs of the mean conditions; the candidates are those of the search for these."""
    states: Scenarios
    aim: Criterion
    value_ns: float
    """What the aim makes of the plan's makespans in the states."""
    bound_ns: float
    """No single order has a smaller value."""
    robust: OrderOutcome
    for_mean: OrderOutcome
    """The plan that is made for the mean conditions."""
    as_planned: OrderOutcome
    """A plan that is made for the costs that the problem says, by the rule table."""
    candidates: tuple[tuple[str, float], ...]
    """Orders that were made before the climbs: for what, and the value; the climbs move whole blocks, so those that cut some count
    as they are."""

    @property
    def gap(self) -> float:
        """(value − bound) / value."""
        return (self.value_ns - self.bound_ns) / self.value_ns if self.value_ns else 0.0


def ends_of(problems: Sequence[Problem], schedule: Schedule) -> tuple[int, ...]:
    """The objective of the schedule in each of the problems, by the simulator."""
    return tuple(simulate(problem, schedule).objective_ns(problem.objective) for problem in problems)


def compile_robust(
    problem: Problem,
    states: Scenarios,
    aim: Criterion = MEAN,
    settings: SearchSettings | None = None,
    *,
    job_sha256: str = "",
    rounds: int = ROUNDS,
    evaluations: int = 0,
) -> Robust:
    """The order with the least mean, or percentile, of the objective over the states that is found.

    Candidates are the best plans for the mean conditions, for slower ones, and for some of the states; the search then moves single
    ops of the best of them, each order timed in every state.

    Args:
        problem: what must be done, as planned.
        states: what links may cost.
        aim: what is minimized.
        settings: the method of the searches for single conditions, and the limits of all of it; `report` is called with each
            better schedule for the mean conditions, `on_method` with the name of what begins. None: `auto` without limits.
        job_sha256: of the job file, for the plan.
        rounds: of the climbs, at most.
        evaluations: changes per climb and round; 0: by size.

    Raises:
        Unsupported: weights are sharded within the step.
        InvalidInput: under one of the states the problem contradicts itself, or as `compile_problem`.
        Infeasible, NoPlanFound, Defect: as `compile_problem`.
    """
    begun = time.perf_counter()
    if problem.is_sharded:
        raise Unsupported(f"{problem.name}: orders for links that change are sought for whole weights; leave out [data_parallel]")
    settings = settings or SearchSettings()
    limits, on_method, interruption = settings.limits, settings.on_method, settings.interruption
    problems = [checked_under(problem, each, "in one of the states of its links") for each in states.conditions]
    compile_ahead(polish_kernel(problem))
    mean_problem = problem_under(problem, shifted(problem, states, 0.0))
    exact: list[Compiled] = []
    candidates: dict[str, Schedule] = {}
    for deviations, share in SEARCHED.items():
        if exact and interruption.requested:
            break
        name = f"mean + {deviations:g} deviations" if deviations else "mean"
        on_method(f"a plan for the {name}")
        part = replace(
            limits,
            time_s=None if limits.time_s is None else share * limits.time_s,
            deterministic=None if limits.deterministic is None else share * limits.deterministic,
        )
        under = problem_under(problem, shifted(problem, states, deviations))
        made = compile_problem(under, replace(settings, limits=part))
        exact.append(made)
        candidates[name] = made.plan.schedule()
    for_mean = exact[0]
    on_method("the rule table")
    candidates |= _of_tables(problem, states)
    on_method("climbs over all states")
    clock_s = limits.clock_s
    clock = Clock(inf if clock_s is None else BOUNDS_SHARE * clock_s)
    least_ns = [  # the best bound that is known when the time is up
        max(bound.value_ns for bound in bounds_in_time(each, clock))
        if problem.num_ops <= MOST_BOUNDED_OPS
        else simple_bound(each).value_ns
        for each in problems
    ]
    bound_ns = aim.of(least_ns, states.weights)  # no order is below the bound in any state, so none is below their mean
    left_s = None if clock_s is None else clock_s - (time.perf_counter() - begun)
    if limits.deterministic is not None:
        rounds = min(rounds, int((1 - sum(SEARCHED.values())) * limits.deterministic / WORK_PER_ROUND))
    whole = {name: schedule for name, schedule in candidates.items() if not schedule.parts}
    cut = {name: ends_of(problems, schedule) for name, schedule in candidates.items() if schedule.parts}
    climbing = Climbing(
        evaluations=evaluations,
        rounds=0 if interruption.requested or (left_s is not None and left_s <= 0) else rounds,
        seed=limits.seed,
        time_s=left_s,
        good_enough_ns=bound_ns / (1 - limits.gap),
    )
    found = polish_sampled_schedules(
        problems,
        states.weights,
        list(whole.values()),
        climbing,
        percentile=0.0 if aim.percentile is None else aim.percentile / 100,
        least_ns=least_ns,
        interruption=interruption,
    )
    mean_schedule = for_mean.plan.schedule()
    mean_ends_ns = ends_of(problems, mean_schedule)
    timed = [(mean_schedule, mean_ends_ns), (found.schedule, ends_of(problems, found.schedule))]
    timed += [(candidates[name], ends_ns) for name, ends_ns in cut.items()]
    best, ends_ns = min(timed, key=lambda each: aim.of(each[1], states.weights))
    value_ns = aim.of(ends_ns, states.weights)
    if bound_ns > value_ns * (1 + 1e-9):
        raise Defect(
            f"{problem.name}: the lower bound of {bound_ns:.0f} ns is above the robust plan's {aim.text}, {value_ns:.0f} ns"
        )
    cut_short = found.cut_short or clock.has_cut or interruption.requested
    cut_short |= not all(each.plan.made_by.reproducible for each in exact)
    made_by = MadeBy(
        schedc=__version__,
        method="robust" if aim.percentile is None else f"robust{{percentile={aim.percentile:g}}}",
        seed=limits.seed,
        job_sha256=job_sha256,
        reproducible=not cut_short,
    )
    compiled = replace(
        for_mean,
        plan=certify(mean_problem, best, made_by, limits=limits),
        seconds=time.perf_counter() - begun,
        failures=tuple(failure for each in exact for failure in each.failures),
        ended=Ended.INTERRUPTED if interruption.requested else Ended.OUT_OF_TIME if found.cut_short else Ended.EXHAUSTED,
        solver_log=(),
    )
    planned = candidates["as planned"]
    return Robust(
        compiled=compiled,
        states=states,
        aim=aim,
        value_ns=value_ns,
        bound_ns=bound_ns,
        robust=_outcome(problem, mean_problem, best, ends_ns),
        for_mean=_outcome(problem, mean_problem, mean_schedule, mean_ends_ns),
        as_planned=_outcome(problem, mean_problem, planned, ends_of(problems, planned)),
        candidates=(
            *zip(whole, found.starts_ns, strict=True),
            *((name, aim.of(ends_ns, states.weights)) for name, ends_ns in cut.items()),
        ),
    )


def _of_tables(problem: Problem, states: Scenarios) -> dict[str, Schedule]:
    """Schedules of the rule table for several conditions, by name; `as planned` is the best for the job's costs."""
    named = [(f"mean + {shift:g} deviations", shifted(problem, states, shift)) for shift in SHIFTS]
    few = clustered(problem, states, MEDOIDS)
    named += [(f"state {number}", each) for number, each in enumerate(few.conditions, start=1)]
    timed_ops = len(named) * len(states.conditions) * problem.num_ops
    rules = min(MOST_RULES, TABLE_OPS // max(1, timed_ops))
    found = {"as planned": RuleTable()(problem)}
    for name, conditions in named:
        under = problem_under(problem, conditions)
        found[f"{name}, by the rule table"] = RuleTable()(under)
        for number, schedule in enumerate(schedules_of_table(under, rules) if rules else ()):
            found[f"{name}, by rule {number} of the table"] = schedule
    first: dict[Schedule, str] = {}
    for name, schedule in found.items():
        first.setdefault(schedule, name)
    return {name: schedule for schedule, name in first.items()}


def _outcome(problem: Problem, mean_problem: Problem, schedule: Schedule, ends_ns: tuple[int, ...]) -> OrderOutcome:
    as_planned_ns, mean_ns = ends_of((problem, mean_problem), schedule)
    return OrderOutcome(as_planned_ns=as_planned_ns, mean_ns=mean_ns, ends_ns=ends_ns)
