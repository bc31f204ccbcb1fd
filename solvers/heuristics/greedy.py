"""Greedy sub-block scheduling (CrossPipe, section 4.2, CrossUDSub), for any placement: a Problem in, a Schedule out.

The list scheduler picks ranks by earliest possible start and ops by priority; W blocks are cut into sub-blocks, which fill gaps and
run when memory keeps F out. How far F may run ahead of B, and the like, is chosen by trying a few rules (`GreedyRule`) and keeping
the one whose schedule ends first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from schedc.ir.ops import Kind
from schedc.solvers.heuristics.warm_up_counts import round_trip_in_flight
from schedc.solvers.kernel.list_scheduler import ListSchedule, ListScheduler
from schedc.solvers.kernel.rule import Rule
from schedc.solvers.kernel.scheduler_state import depth_by_stage

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

CHOOSING_BLOCKS = 18_000
"""On larger problems, rules are compared on as many of the first microbatches as have this many blocks, and only in the two options
that decide most."""
ROUNDS = 3
"""Schedules that are made around the backwards which the times of the one before let be fused."""


Parts = Annotated[int, Meta(ge=1, le=256)]
"""Into how many equal parts a W may be cut; 1: blocks stay whole."""
Share = Annotated[float, Meta(ge=0, le=1_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyOptions:
    """Of `greedy`. What is "auto" is chosen: a few values are tried."""

    n_sub: Parts = 4
    in_flight: Annotated[int, Meta(ge=0, le=2**20)] | Literal["auto", "memory"] = "auto"
    """Cap on each stage's activations in flight: this many above what the stage's round trip needs; "memory": no cap."""
    alternate: bool | Literal["auto"] = "auto"
    """Whether a rank runs F before B after a B."""
    weight_lag: Share | Literal["auto"] = "auto"
    """How many W stages leave waiting (`GreedyRule.weight_lag`); ZB-H1 is 1, W as soon as possible 0."""
    look_ahead: Share | Literal["auto"] = "auto"
    """How long a rank may wait for an op of higher priority, in units of the longest F."""
    fused: Literal["none", "first", "steady", "all", "slack"] = "none"
    """Which backwards are fused, where the problem splits them (`GreedyRule.fused`); "slack": those that the times of the schedule
    give reason for, with the rest made anew around them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyRule:
    """One rule of the greedy method, in terms that fit any problem. B go before F, and F before W, except as said here."""

    in_flight: int | None = None
    """Cap on each stage's activations in flight: this many more than `round_trip_in_flight`; None: memory alone limits them."""
    whole_period: bool = False
    """Round trips are counted in periods of F + B + W, as in a steady state without gaps; else of F + B, as in warm-up."""
    weight_lag: float = 0.0
    """How many W a stage leaves waiting for later gaps, in shares of how many fewer microbatches its round trip holds than the
    longest one (ZB-H1: 1)."""
    alternate: bool = False
    """After a B, a rank runs F before B: the steady phase's interleaving in full blocks."""
    shallow_forward: bool = False
    """With several stages on a rank: F of the earlier stage go first, else of the later."""
    deep_backward: bool = False
    """With several stages on a rank: B of the later stage go first, else of the earlier."""
    look_ahead: float = 0.0
    """How long a rank may wait for an op of higher priority, in units of the longest F."""
    fused: Literal["none", "first", "steady", "all"] = "none"
    """Of a problem that splits backwards, those that are fused all the same: none, those of the first stages, which send no
    gradient, all but the last of each stage (1 for the first of a path, 2 for the next, and so on), or all."""

    def rule(self, problem: Problem, n_sub: int) -> Rule:
        """The list scheduler's rule for the problem."""
        count, depth = len(problem.stages), depth_by_stage(problem)
        trips = round_trip_in_flight(problem, whole_period=self.whole_period)
        fused = None if self.fused == "none" or not problem.split_backward else self._fused(problem, depth)
        return Rule(
            priority=tuple(
                (at if self.shallow_forward else count - at, -2 * count - (at if self.deep_backward else count - at), 2 * count)
                for at in depth
            ),
            in_flight=tuple(None if self.in_flight is None else trip + self.in_flight for trip in trips),
            weight_lag=tuple(int(self.weight_lag * (max(trips) - trip)) for trip in trips),
            look_ahead_ns=int(self.look_ahead * max(max(stage.forward_ns) for stage in problem.stages)),
            alternate=self.alternate,
            n_sub=n_sub,
            fused=fused,
        )

    def _fused(self, problem: Problem, depth: list[int]) -> tuple[tuple[bool, ...], ...]:
        left = [sum(stage in path for path in map(problem.path, range(problem.microbatches))) for stage in range(len(depth))]
        fused = [[False] * problem.microbatches for _ in depth]
        for stage, microbatch in problem.blocks():
            left[stage] -= 1
            fused[stage][microbatch] = {"first": depth[stage] == 0, "steady": left[stage] > depth[stage], "all": True}[self.fused]
        return tuple(map(tuple, fused))


def greedy(problem: Problem, options: GreedyOptions = GreedyOptions()) -> Schedule:
    """The greedy sub-block schedule of the problem. It never exceeds a memory limit, and never strands itself.

    What is "auto" is chosen: a few values are tried, one option after the other, each time keeping the best; on large problems with
    fewer microbatches and options.

    Args:
        problem: any placement, links and memory limits.
        options: into how many parts a W may be cut, and what is not to be chosen.

    Raises:
        Unsupported: a rank's memory limit does not hold one microbatch.
    """
    chosen = {name: getattr(options, name) for name in ("in_flight", "alternate", "weight_lag", "look_ahead")}
    given = {name: None if value == "memory" else value for name, value in chosen.items() if value != "auto"}
    by_slack = options.fused == "slack"
    rule, made = choose_rule(problem, options.n_sub, fused="none" if by_slack else options.fused, **given)
    return _by_slack(problem, rule.rule(problem, options.n_sub), made.schedule) if by_slack else made.schedule


def _by_slack(problem: Problem, rule: Rule, schedule: Schedule) -> Schedule:
    """The rule's schedules with those backwards fused that the schedule before has fused where that pays; the best of them."""
    # They import numpy, which greedy without them does not need.
    from schedc.analysis.simulation.simulate import simulate
    from schedc.solvers.common.fuse_backwards import fuse_backwards
    from schedc.solvers.common.fusing import fusing_saves_time

    scheduler = ListScheduler(problem, n_sub=rule.n_sub, rules=ROUNDS)
    current = fuse_backwards(problem, schedule)
    tried = [current]
    for _ in range(ROUNDS if fusing_saves_time(problem) else 0):
        fused = [[False] * problem.microbatches for _ in problem.stages]
        for op in (op for order in current.orders for op in order if op.kind is Kind.BW):
            fused[op.stage][op.microbatch] = True
        current = fuse_backwards(problem, scheduler(replace(rule, fused=tuple(map(tuple, fused)))).schedule)
        tried.append(current)
    return min(tried, key=lambda each: simulate(problem, each).objective_ns(problem.objective))


def choose_rule(problem: Problem, n_sub: int, **given: Any) -> tuple[GreedyRule, ListSchedule]:
    """The best of a few rules and what it makes of the problem; `greedy` without checks.

    Args:
        problem: any problem.
        n_sub: into how many equal parts a W may be cut.
        given: fields of `GreedyRule` that are not to be chosen.

    Raises:
        Unsupported: a rank's memory limit does not hold one microbatch.
    """
    trial = _first_microbatches(problem)
    made: dict[GreedyRule, ListSchedule] = {}
    list_schedule = ListScheduler(trial, n_sub=n_sub, rules=sum(map(len, _options(problem))))

    def reached_ns(rule: GreedyRule) -> int:
        if rule not in made:
            made[rule] = list_schedule(rule.rule(trial, n_sub))
        return made[rule].objective_ns(trial.objective)

    best = GreedyRule(**given)
    options = _options(problem) if trial is problem else _options(problem)[:2]
    for option in options:
        if option and not given.keys() & option[0].keys():
            best = min((best, *(replace(best, **values) for values in option)), key=reached_ns)
    if trial is problem and best in made:
        return best, made[best]
    scheduler = list_schedule if trial is problem else ListScheduler(problem, n_sub=n_sub)
    return best, scheduler(best.rule(problem, n_sub))


def _options(problem: Problem) -> list[tuple[dict[str, Any], ...]]:
    """What is tried beside the defaults of `GreedyRule`, option by option; what decides most comes first."""
    several = len(problem.stages) > problem.ranks
    chunks = tuple({"shallow_forward": f, "deep_backward": b} for f, b in ((False, True), (True, False), (True, True)))
    return [
        tuple({"in_flight": extra, "whole_period": whole} for whole in (False, True) for extra in (0, 1, 2)),
        ({"weight_lag": 0.5}, {"weight_lag": 1.0}) if problem.split_backward else (),
        ({"alternate": True},),
        chunks if several else (),
        ({"look_ahead": 0.25}, {"look_ahead": 0.5}),
    ]


def _first_microbatches(problem: Problem) -> Problem:
    """The problem with only as many microbatches as rules are compared on."""
    per_microbatch = 3 * max(map(len, problem.paths))
    count = max(2 * len(problem.paths), CHOOSING_BLOCKS // per_microbatch)
    if count >= problem.microbatches:
        return problem
    stages = tuple(
        replace(
            stage,
            forward_ns=stage.forward_ns[:count],
            backward_input_ns=stage.backward_input_ns[:count],
            backward_weight_ns=stage.backward_weight_ns[:count],
            backward_ns=stage.backward_ns[:count],
        )
        for stage in problem.stages
    )
    return replace(problem, microbatches=count, path_of=problem.path_of[:count], stages=stages)
