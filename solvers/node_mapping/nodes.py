"""Which node takes which place, together with the orders that fit it: what a slow link costs depends on the orders there.

The exact search takes one schedule. Here it is run for several: the one that is given, and for each slow kind of link, at each pair
of ranks, the one that the rule table makes for it. The best is planned once more for the links that it has. All replicas run one
schedule, made for the slowest link that any of them has at each pair of ranks. For a person, links that are nearly alike are taken
as equal, and a move must shorten the step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from schedc.analysis.simulation.memory import exceeded_limit
from schedc.ir.costs import MessageCost
from schedc.solvers.heuristics.rule_table import rule_table
from schedc.solvers.node_mapping.exact import Assigned, assign
from schedc.solvers.node_mapping.value import AssignedStep, Replicated, Timer, alike, costs_between, under

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule
    from schedc.solvers.common.base import Limits

MOST_SCHEDULES = 12
"""The exact search is run for at most this many schedules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned:
    """An assignment and what its pipelines run."""

    assigned: Assigned
    """Under the schedule that it was sought with."""
    schedule: Schedule
    """What all replicas run."""
    step: AssignedStep
    """With this schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Who goes where, and what that is worth with the links as they were given."""

    node_of: tuple[int, ...]
    """Of each place, replica × ranks + rank, the node that takes it."""
    schedule: Schedule
    """What all replicas run."""
    problem: Problem
    """One pipeline, with the slowest link that any replica has at each pair of ranks."""
    before: AssignedStep
    """If every node stays and the orders too."""
    after: AssignedStep
    sought: Assigned
    """What the exact search says; its times are those of the links that it was given."""

    @property
    def moved(self) -> tuple[int, ...]:
        """The nodes that leave their place."""
        return tuple(sorted(node for place, node in enumerate(self.node_of) if node != place))


def assign_nodes(given: Replicated, limits: Limits, *, exact_links: bool = False, keep_orders: bool = False) -> Nodes:
    """The assignment to carry out.

    Args:
        given: what is assigned, and the schedule that runs.
        limits: of each exact search.
        exact_links: do not take links as equal that are nearly so.
        keep_orders: do not plan anew.

    Raises:
        InvalidInput: as `assign`.
    """
    sought = given if exact_links else alike(given)
    if keep_orders:
        assigned, schedule = assign(sought, limits), given.schedule
    else:
        planned = assign_and_plan(sought, limits)
        assigned, schedule = planned.assigned, planned.schedule
    stay = tuple(range(given.nodes))
    before = Timer(given).step(stay)
    timer = Timer(replace(given, schedule=schedule))
    node_of = min((stay, assigned.node_of), key=lambda each: timer.step(each).step_ns)
    after = timer.step(node_of)
    if after.step_ns > before.step_ns:  # the new orders are worse where links differ a little
        node_of, after, timer = stay, before, Timer(given)
    return Nodes(
        node_of=node_of,
        schedule=timer.given.schedule,
        problem=slowest_problem(timer, node_of),
        before=before,
        after=after,
        sought=assigned,
    )


def slowest_problem(timer: Timer, node_of: Sequence[int]) -> Problem:
    """The pipeline in which each link costs the most that it costs in any replica."""
    costs = zip(*(timer.costs_of(node_of, replica) for replica in range(timer.given.replicas)), strict=True)
    return under(timer.given.problem, [_slowest(each, _largest_bytes(timer.given.problem)) for each in costs])


def assign_and_plan(given: Replicated, limits: Limits, *, weights: Sequence[int] | None = None) -> Replanned:
    """The best assignment found, with its schedule.

    Args:
        given: what is assigned, and a schedule to begin with.
        limits: of each exact search.
        weights: of each node, as of `assign`.

    Raises:
        InvalidInput: as `assign`.
    """
    best: Replanned | None = None
    for schedule in _schedules(given):
        tried = replace(given, schedule=schedule)
        assigned = assign(tried, limits, weights=weights)
        timer = Timer(tried)
        problem = slowest_problem(timer, assigned.node_of)
        kept = Replanned(assigned=assigned, schedule=schedule, step=assigned.after)
        planned = rule_table(problem)
        if exceeded_limit(problem, planned) is None:
            step = Timer(replace(given, schedule=planned)).step(assigned.node_of)
            if step.step_ns < kept.step.step_ns:
                kept = replace(kept, schedule=planned, step=step)
        if best is None or (kept.step.step_ns, len(kept.assigned.moved)) < (best.step.step_ns, len(best.assigned.moved)):
            best = kept
    assert best is not None
    return best


def _schedules(given: Replicated) -> list[Schedule]:
    """The given one, and those for one slow link each; the slowest links first."""
    size_bytes = _largest_bytes(given.problem)
    fastest_first = sorted(
        dict.fromkeys(costs_between(given).values()), key=lambda cost: (cost.latency_ns, cost.occupancy_ns(size_bytes))
    )
    if not fastest_first:  # one node
        return [given.schedule]
    usual, slow = fastest_first[0], fastest_first[:0:-1]
    pairs = sorted({(min(link.source, link.destination), max(link.source, link.destination)) for link in given.problem.links})
    found = [given.schedule]
    for cost in slow:
        for pair in pairs:
            if len(found) < MOST_SCHEDULES:
                costs = [cost if {link.source, link.destination} == {*pair} else usual for link in given.problem.links]
                problem = under(given.problem, costs)
                schedule = rule_table(problem)
                if schedule not in found and exceeded_limit(problem, schedule) is None:
                    found.append(schedule)
    return found


def _slowest(costs: Sequence[MessageCost], size_bytes: int) -> MessageCost:
    """The most of everything, which no message of at most this size exceeds on any of these links."""
    bandwidths = [cost.bytes_per_second for cost in costs if cost.bytes_per_second is not None]
    outright = any(cost.transfer_ns is not None for cost in costs)
    return MessageCost(
        latency_ns=max(cost.latency_ns for cost in costs),
        transfer_ns=max(cost.occupancy_ns(size_bytes) for cost in costs) if outright else None,
        bytes_per_second=None if outright else min(bandwidths, default=None),
    )


def _largest_bytes(problem: Problem) -> int:
    """The size of the largest message."""
    return max(max(stage.message_bytes, stage.gradient_message_bytes) for stage in problem.stages)
