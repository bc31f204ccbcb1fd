"""The best assignment of nodes to the places of a job, exactly: CP-SAT proposes, the simulator says what it takes.

With fixed orders and a link for each directed pair of ranks, a pipeline ends no earlier if a link costs more (starts are maxima of
sums). So what one set of slow links makes a pipeline take is a lower bound for every pipeline that has them. The model begins with
what each slow link does alone; CP-SAT's best assignment under that is timed, what its pipelines really take is added, and so on,
until the best assignment of the model takes what the model says: then no other is better. Among equally short steps the nodes that
move weigh least.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from schedc.errors import Defect, InvalidInput
from schedc.ir import MessageCost
from schedc.models.assignment import AssignmentModel, Kinds, KnownEnds
from schedc.solvers.common.base import SolverStatus
from schedc.solvers.exact.cpsat_solver import run, solver_of
from schedc.solvers.node_mapping.value import AssignedStep, Replicated, Timer, ring_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.solvers.common.base import Limits

    _Where = tuple[tuple[tuple[int, int], int], ...]
    """Pairs of ranks, each with the kind of what is between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """An assignment."""

    node_of: tuple[int, ...]
    """Of each place, replica × ranks + rank, the node that takes it; before, node i had place i."""
    before: AssignedStep
    """If every node stays."""
    after: AssignedStep
    bound_ns: int
    """No assignment takes less, with this schedule."""
    proven: bool
    """Whether this is the best one, and moves the least among the best."""

    @property
    def moved(self) -> tuple[int, ...]:
        """The nodes that leave their place."""
        return tuple(sorted(node for place, node in enumerate(self.node_of) if node != place))


def assign(given: Replicated, limits: Limits, *, weights: Sequence[int] | None = None) -> Assigned:
    """The assignment with the shortest step.

    Args:
        given: what is assigned.
        limits: when to stop: for all of it in seconds; for each of CP-SAT's runs the deterministic limit.
        weights: of each node, what it costs that it leaves its place, to choose among equal steps; None: 1.

    Raises:
        InvalidInput: nothing connects two nodes, or numbers do not fit each other.
    """
    ranks, problem = given.problem.ranks, given.problem
    if given.replicas < 1:
        raise InvalidInput(f"replicas: found {given.replicas}, expected at least 1")
    if given.buckets < 1:
        raise InvalidInput(f"buckets: found {given.buckets}, expected at least 1")
    if len(given.gradient_bytes) != ranks or min(given.gradient_bytes) < 0:
        raise InvalidInput(
            f"gradients: found {list(given.gradient_bytes)}, expected {ranks} sizes, one for each rank, of at least 0"
        )
    if weights is not None and (len(weights) != given.nodes or min(weights) < 0):
        raise InvalidInput(f"weights: found {list(weights)}, expected {given.nodes} whole numbers of at least 0")
    timer, begun_s = Timer(given), time.perf_counter()
    weighed, stay = [1] * given.nodes if weights is None else [*weights], tuple(range(given.nodes))
    least, kinds, pairs, costs = _kinds(timer)
    before = timer.step(stay)
    best, best_step = swaps(timer, stay)

    def ends(where: _Where) -> KnownEnds:
        """When ranks end where these pairs have links of these kinds, and all others the least."""
        slow: dict[tuple[int, int], MessageCost] = {}
        for (a, b), kind in where:
            slow[a, b], slow[b, a] = costs[kind]
        ends_ns = timer.ends_ns(tuple(slow.get((link.source, link.destination), least) for link in problem.links))
        return KnownEnds(where=where, ends_ns=ends_ns)

    found = AssignmentModel(ranks, given.replicas, pairs, kinds, weighed, ends(()), before.step_ns)
    known: set[_Where] = {()}

    def learn(where: _Where) -> bool:
        """Add what links of these kinds make a pipeline take; whether that is new."""
        if where in known:
            return False
        known.add(where)
        found.learn(ends(where))
        return True

    for pair in pairs:
        for kind in range(len(costs)):
            learn(((pair, kind),))

    def value(node_of: Sequence[int], step: AssignedStep) -> int:
        return step.step_ns * found.scale + sum(weighed[node] for place, node in enumerate(node_of) if node != place)

    bound_ns, proven = 0, False
    while True:
        found.hint(best)
        left_s = None if limits.time_s is None else limits.time_s - (time.perf_counter() - begun_s)
        if left_s is not None and left_s <= 0 and limits.deterministic is None:
            break
        solver = solver_of(replace(limits, time_s=left_s, gap=0.0))
        status, ended_by = run(solver, found.model)
        if status not in (SolverStatus.OPTIMAL, SolverStatus.FEASIBLE):
            if status is SolverStatus.INFEASIBLE:
                raise Defect("assign: CP-SAT says INFEASIBLE, though a known assignment keeps every constraint")
            break
        bound_ns = max(bound_ns, int(solver.best_objective_bound) // found.scale)
        node_of = tuple(next(node for node in stay if solver.boolean_value(found.takes[node][place])) for place in stay)
        step = timer.step(node_of)
        if value(node_of, step) < value(best, best_step):
            best, best_step = node_of, step
        if status is SolverStatus.OPTIMAL and value(best, best_step) <= int(solver.objective_value):
            proven = True
            break
        new = False
        for first in range(0, given.nodes, ranks):  # the links of a replica that cost more than the least
            of_pair = ((pair, kinds.of_pair[node_of[first + pair[0]]][node_of[first + pair[1]]]) for pair in pairs)
            new |= learn(tuple((pair, kind) for pair, kind in of_pair if kind >= 0))
        if ended_by is not None or status is not SolverStatus.OPTIMAL:
            break
        if not new:
            raise Defect("assign: the model knows all links of its assignment and says that it takes less than the simulator")
    if bound_ns > best_step.step_ns:
        raise Defect(f"assign: the bound {bound_ns} ns is above the best known step, {best_step.step_ns} ns")
    return Assigned(node_of=best, before=before, after=best_step, bound_ns=bound_ns, proven=proven)


def swaps(timer: Timer, node_of: Sequence[int]) -> tuple[tuple[int, ...], AssignedStep]:
    """An assignment from which no exchange of two nodes makes the step shorter: where the search begins."""
    best, step = tuple(node_of), timer.step(node_of)
    better = True
    while better:
        better = False
        for a, b in combinations(range(len(best)), 2):
            tried = [*best]
            tried[a], tried[b] = tried[b], tried[a]
            now = timer.step(tried)
            if now.step_ns < step.step_ns:
                best, step, better = tuple(tried), now, True
    return best, step


def _kinds(
    timer: Timer,
) -> tuple[MessageCost, Kinds, list[tuple[int, int]], list[tuple[MessageCost, MessageCost]]]:
    """A cost that none is below, the kinds of what is between nodes, the pairs of ranks, and the costs of each kind both ways."""
    given, nodes = timer.given, range(timer.given.nodes)
    all_costs = set(timer.costs.values())
    bandwidths = [cost.bytes_per_second for cost in all_costs]
    free = any(cost.transfer_ns is not None or cost.bytes_per_second is None for cost in all_costs)
    least = MessageCost(
        latency_ns=min((cost.latency_ns for cost in all_costs), default=0),
        bytes_per_second=None if free else max((each for each in bandwidths if each is not None), default=None),
    )
    numbers: dict[tuple[MessageCost, MessageCost], int] = {(least, least): -1}
    of_pair = [[-1 for _ in nodes] for _ in nodes]
    for (one, other), cost in timer.costs.items():
        both = (cost, timer.costs[other, one])
        of_pair[one][other] = numbers.setdefault(both, len(numbers) - 1)
    sizes = given.gradient_bytes

    def rings(cost: MessageCost) -> tuple[int, ...]:
        return tuple(ring_ns(cost, given, size) for size in sizes)

    least_rings = rings(least) if given.replicas > 1 else (0,) * len(sizes)
    levels: dict[tuple[int, ...], int] = {least_rings: -1}
    ring = [[-1 for _ in nodes] for _ in nodes]
    for (one, other), cost in timer.costs.items():
        both_ns = tuple(map(max, rings(cost), rings(timer.costs[other, one])))
        ring[one][other] = levels.setdefault(both_ns, len(levels) - 1)
    pairs = sorted({(min(link.source, link.destination), max(link.source, link.destination)) for link in given.problem.links})
    kinds = Kinds(of_pair=of_pair, ring=ring, ring_ns=[*levels][1:], least_ring_ns=least_rings)
    return least, kinds, pairs, [*numbers][1:]
