"""Who goes first: the order variables of the tasks that share a rank, a link, a trunk or a collective resource.

Tasks of one resource go in. For each pair of them the model gets nothing where what needs what decides their order, a row where
their windows do, else a binary variable and the two rows of a disjunction, each with the least big-M that the windows allow.
Transfers that a rank sends have the order of the ops that send them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import pulp

from schedc.ir import Op
from schedc.models.milp.variables import op_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.models.milp.variables import Graph, MilpVariables


@dataclass(frozen=True, slots=True)
class OrderedTask:
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
    lane: tuple[int, int] | None = None
    """Of a transfer, its chain and the place there: those that the ops of one chain send over one resource keep their order."""
    longer: pulp.LpAffineExpression | int = 0
    """By how much it is longer than `length`, a decision; at most `most_longer`."""
    most_longer: int = 0
    vanishes: pulp.LpVariable | None = None
    """1 where it does not take place; its start is then any time up to `latest` and its length."""

    @property
    def end(self) -> pulp.LpAffineExpression:
        """Where it takes place, its end."""
        return self.start + self.length + self.longer if self.most_longer else self.start + self.length

    @property
    def latest_end(self) -> int:
        """It ends by then."""
        return self.latest + self.length + self.most_longer


def add_no_overlap(variables: MilpVariables, tasks: Sequence[OrderedTask], graph: Graph) -> None:
    """One task at a time."""
    for a, b in combinations(tasks, 2):
        if _certainly_before(a, b, graph):
            _fix(variables, a, b)
        elif _certainly_before(b, a, graph):
            _fix(variables, b, a)
        else:
            _add_disjunction(variables, a, b)


def _certainly_before(a: OrderedTask, b: OrderedTask, graph: Graph) -> bool:
    if a.lane is not None and b.lane is not None and a.lane[0] == b.lane[0]:
        return a.lane[1] < b.lane[1]
    if a.until is None or b.after is None:
        return False
    return graph.follows(a.until, b.after) or (a.until == b.after and a.name != b.name)


def _fix(variables: MilpVariables, a: OrderedTask, b: OrderedTask) -> None:
    variables.before[a.name, b.name] = 1
    variables.before[b.name, a.name] = 0


def _add_disjunction(variables: MilpVariables, a: OrderedTask, b: OrderedTask) -> None:
    a_first = a.earliest + a.length <= b.latest
    b_first = b.earliest + b.length <= a.latest
    if a.lane is not None and b.lane is not None:  # transfers of two chains
        _add_ready_order(variables, a, b)
        return
    if not (a_first and b_first):
        if a_first or not b_first:
            _fix(variables, a, b)
            variables.model += b.start >= _end(a, b)
        if not a_first:
            _fix(variables, b, a)
            variables.model += a.start >= _end(b, a)
        return
    _add_either(variables, a, b, _order(variables, a, b))


def _order(variables: MilpVariables, a: OrderedTask, b: OrderedTask) -> pulp.LpVariable:
    first = variables.model.add_variable(f"{a.name}_before_{b.name}", cat=pulp.LpBinary)
    variables.before[a.name, b.name] = first
    variables.before[b.name, a.name] = 1 - first
    variables.order[a.name, b.name] = first
    return first


def _add_ready_order(variables: MilpVariables, a: OrderedTask, b: OrderedTask) -> None:
    """Transfers leave in the order in which they become ready: of one rank, that of its ops; of two, of ends, fused or not."""
    assert a.after is not None and b.after is not None
    first = variables.before.get((op_name(a.after), op_name(b.after)))
    if first is None:
        first = _order(variables, a, b)
        for one, other, late in ((a, b, 1 - first), (b, a, first)):
            assert one.after is not None and other.after is not None
            most = max(1, one.latest - other.earliest)  # it is ready when it leaves, or before
            ready = variables.end(other.after) + variables.blocks.later.get(other.after, 0)
            variables.model += ready >= variables.end(one.after) - most * late
    _add_either(variables, a, b, first)


def _add_either(variables: MilpVariables, a: OrderedTask, b: OrderedTask, first: pulp.LpAffineExpression | int) -> None:
    # At least 1, so that the variable is in a row where both tasks take no time and cannot move.
    variables.model += b.start >= _end(a, b) - max(1, a.latest_end - b.earliest) * (1 - first)
    variables.model += a.start >= _end(b, a) - max(1, b.latest_end - a.earliest) * first


def _end(before: OrderedTask, after: OrderedTask) -> pulp.LpAffineExpression:
    """The end of `before`; where one of the two does not take place, a time before which `after` never starts."""
    gone = [task.vanishes for task in (before, after) if task.vanishes is not None]
    if not gone:
        return before.end
    latest = before.latest_end if before.vanishes is None else before.latest_end + before.length
    return before.end - max(0, latest - after.earliest) * pulp.lpSum(gone)


def add_work_cuts(variables: MilpVariables, tasks: Sequence[OrderedTask], tails: dict[str, int], origin: int | None) -> None:
    """A task starts when all that comes before it on its resource has been done; all that comes after it is done by the objective.

    Integer solutions satisfy both; without them the relaxation does not see what a resource can do at most ("half cuts";
    Applegate and Cook, "A computational study of the job-shop scheduling problem", 1991). What may not take place is left out.
    """
    least_tail = min(tails.values())
    certain = [task for task in tasks if task.vanishes is None]
    for task in certain:
        others = [other for other in certain if other.name != task.name]
        for release in {task.earliest, min(other.earliest for other in certain)}:
            work = [other.length * variables.before[other.name, task.name] for other in others if other.earliest >= release]
            variables.model += task.start >= release + pulp.lpSum(work)
        if origin is not None:
            rest = [other.length * variables.before[task.name, other.name] for other in others]
            variables.model += variables.objective >= task.end + pulp.lpSum(rest) + least_tail - origin
