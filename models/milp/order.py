"""Who goes first: the order variables of the tasks that share a rank, a link, a trunk or a collective resource.

Tasks of one resource go in. For each pair of them the model gets nothing where what needs what decides their order, a row where
their windows do, else a binary variable and the two rows of a disjunction, each with the least big-M that the windows allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import pulp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.ops import Kind, Op
    from schedc.models.milp.graph import Graph
    from schedc.models.milp.variables import Variables

__all__ = ["Task", "add_no_overlap", "add_work_cuts"]


@dataclass(frozen=True, slots=True)
class Task:
    """Something that occupies a resource. In ticks."""

    name: str
    start: pulp.LpVariable
    length: int
    earliest: int
    latest: int
    """The latest start."""
    after: Op | None
    """It starts when this op has ended, or is this op."""
    until: Op | None
    """This op starts when it has ended, or is it."""
    lane: tuple[Kind, int] | None = None
    """Transfers of one lane keep the order of their microbatches."""


def add_no_overlap(variables: Variables, tasks: Sequence[Task], graph: Graph) -> None:
    """One task at a time."""
    for a, b in combinations(tasks, 2):
        if _certainly_before(a, b, graph):
            _fix(variables, a, b)
        elif _certainly_before(b, a, graph):
            _fix(variables, b, a)
        else:
            _add_disjunction(variables, a, b)


def _certainly_before(a: Task, b: Task, graph: Graph) -> bool:
    if a.lane is not None and a.lane == b.lane and a.after is not None and b.after is not None:
        return a.after.microbatch < b.after.microbatch
    if a.until is None or b.after is None:
        return False
    return graph.follows(a.until, b.after) or (a.until == b.after and a.name != b.name)


def _fix(variables: Variables, a: Task, b: Task) -> None:
    variables.before[a.name, b.name] = 1
    variables.before[b.name, a.name] = 0


def _add_disjunction(variables: Variables, a: Task, b: Task) -> None:
    a_first = a.earliest + a.length <= b.latest
    b_first = b.earliest + b.length <= a.latest
    if not (a_first and b_first):
        if a_first or not b_first:
            _fix(variables, a, b)
            variables.model += b.start >= a.start + a.length
        if not a_first:
            _fix(variables, b, a)
            variables.model += a.start >= b.start + b.length
        return
    first = variables.model.add_variable(f"{a.name}_before_{b.name}", cat=pulp.LpBinary)
    variables.before[a.name, b.name] = first
    variables.before[b.name, a.name] = 1 - first
    variables.order[a.name, b.name] = first
    # At least 1, so that the variable is in a row where both tasks take no time and cannot move.
    variables.model += b.start >= a.start + a.length - max(1, a.latest + a.length - b.earliest) * (1 - first)
    variables.model += a.start >= b.start + b.length - max(1, b.latest + b.length - a.earliest) * first


def add_work_cuts(variables: Variables, tasks: Sequence[Task], tails: dict[str, int], origin: int | None) -> None:
    """A task starts when all that comes before it on its resource has been done; all that comes after it is done by the objective.

    Integer solutions satisfy both; without them the relaxation does not see what a resource can do at most ("half cuts";
    Applegate and Cook, "A computational study of the job-shop scheduling problem", 1991).
    """
    least_tail = min(tails.values())
    for task in tasks:
        others = [other for other in tasks if other.name != task.name]
        for release in {task.earliest, min(other.earliest for other in tasks)}:
            work = [other.length * variables.before[other.name, task.name] for other in others if other.earliest >= release]
            variables.model += task.start >= release + pulp.lpSum(work)
        if origin is not None:
            rest = [other.length * variables.before[task.name, other.name] for other in others]
            variables.model += variables.objective >= task.start + task.length + pulp.lpSum(rest) + least_tail - origin
