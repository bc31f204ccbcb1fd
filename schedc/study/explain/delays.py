"""What delay each link tolerates: with the plan's orders, and solved again; beside PipeMorph's rule for neighbours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from schedc.analysis.attribution.slackness import Slackness, slackness_of
from schedc.analysis.attribution.tolerance import Tolerance
from schedc.analysis.bounds.clock import Until, never

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule
    from schedc.study.explain.resolve import Solver

ROUNDS = 3
"""How often the range between what is known to be tolerated and what is not is halved."""


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

    Args:
        problem: what the ops cost.
        schedule: of it.
        until: whether the time is up; pairs that come then are left out.
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

    Args:
        problem: unchanged.
        schedules: of it that are known; one of them is in time with `delay.allowed_ns`.
        solver: of the explanation.
        delay: of the link, with the plan's orders.
        target_ns: what the objective may be.
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
