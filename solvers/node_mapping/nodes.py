"""Which node takes which place, for a person: links that are nearly alike are taken as equal, and a move must shorten the step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from schedc.solvers.node_mapping.exact import assign
from schedc.solvers.node_mapping.replanned import assign_and_plan, slowest_problem
from schedc.solvers.node_mapping.value import Timer, alike

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule
    from schedc.solvers.common.base import Limits
    from schedc.solvers.node_mapping.exact import Assigned
    from schedc.solvers.node_mapping.value import AssignedStep, Replicated


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
