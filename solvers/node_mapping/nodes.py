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
from schedc.ir import MessageCost, Problem, Schedule
from schedc.solvers.heuristics.rule_table import RuleTable
from schedc.solvers.node_mapping.exact import Assigned, assign
from schedc.solvers.node_mapping.value import AssignedStep, Replicated, Timer, alike, costs_between, under

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.solvers.common.base import Limits

MOST_SCHEDULES = 12
"""The exact search is run for at most this many schedules."""


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

    The limits are of each exact search. Links that are nearly equal count as equal, unless `exact_links`; with `keep_orders`
    nothing is planned anew.

    Raises:
        InvalidInput: as `assign`.
    """
    sought = given if exact_links else alike(given)
    assigned, schedule = (assign(sought, limits), given.schedule) if keep_orders else assign_and_plan(sought, limits)
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
    problem, costs = timer.given.problem, []
    for each in zip(*(timer.costs_of(node_of, replica) for replica in range(timer.given.replicas)), strict=True):
        # The most of everything, which no message exceeds on any of these links.
        outright = any(cost.transfer_ns is not None for cost in each)
        bandwidths = [cost.bytes_per_second for cost in each if cost.bytes_per_second is not None]
        slowest = MessageCost(
            latency_ns=max(cost.latency_ns for cost in each),
            transfer_ns=max(cost.occupancy_ns(_largest_bytes(problem)) for cost in each) if outright else None,
            bytes_per_second=None if outright else min(bandwidths, default=None),
        )
        costs.append(slowest)
    return under(problem, costs)


def assign_and_plan(given: Replicated, limits: Limits) -> tuple[Assigned, Schedule]:
    """The best assignment found, under the schedule that it was sought with, and what its pipelines run: that, or a better one.

    It begins with the schedule that is given; the limits are of each exact search.

    Raises:
        InvalidInput: as `assign`.
    """
    best: tuple[int, int, Assigned, Schedule] | None = None
    for schedule in _schedules(given):
        assigned = assign(replace(given, schedule=schedule), limits)
        step_ns, problem = assigned.after.step_ns, slowest_problem(Timer(given), assigned.node_of)
        planned = RuleTable()(problem)
        if exceeded_limit(problem, planned) is None:
            planned_ns = Timer(replace(given, schedule=planned)).step(assigned.node_of).step_ns
            if planned_ns < step_ns:
                step_ns, schedule = planned_ns, planned
        if best is None or (step_ns, len(assigned.moved)) < best[:2]:
            best = step_ns, len(assigned.moved), assigned, schedule
    assert best is not None
    return best[2:]


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
                schedule = RuleTable()(problem)
                if schedule not in found and exceeded_limit(problem, schedule) is None:
                    found.append(schedule)
    return found


def _largest_bytes(problem: Problem) -> int:
    """The size of the largest message."""
    return max(max(stage.message_bytes, stage.gradient_message_bytes) for stage in problem.stages)
