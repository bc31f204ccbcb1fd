"""The period of a schedule whose steps overlap: the time from one step to the next, once it runs steadily.

A Problem that is one step of a run without end, and its Schedule of one period, go in; the least whole number of nanoseconds at
which all ops can repeat comes out, with when each op of the period begins. Ops, and the transfers between ranks, are the nodes of a
graph; an edge says by how much one begins after another, which may be of an earlier period. The period is the largest ratio of time
to periods over the graph's cycles (Reiter, 1968; Dasdan, 2004): each cycle that is too long for a period gives the next one to try,
until there is none.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from math import ceil
from typing import NamedTuple

from schedc.analysis.simulation.unroll import step_of
from schedc.errors import CheckFailed
from schedc.ir import Kind, Op, Problem, Resource, Schedule, token


class Edge(NamedTuple):
    """`after` of some period begins at least `time_ns` after `before` of the period that lies `periods` before it began."""

    before: int
    after: int
    time_ns: int
    periods: int


class Carried(NamedTuple):
    """A transfer: the ops that send and take it, its node, its occupancy, and by how many periods the first is ahead."""

    producer: int
    consumer: int
    node: int
    occupancy_ns: int
    periods: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """How a period repeats."""

    period_ns: int
    """The least whole number at which it can."""
    exact_ns: Fraction
    """The mean over many periods of a run in which everything begins as soon as it can."""
    starts_ns: tuple[tuple[int, ...], ...]
    """Per rank and op, when it begins in period 0; as early as it can, with everything of period 0 at 0 or later."""
    longest: tuple[Op, ...]
    """The ops on a cycle that takes that long."""


def steady_state(problem: Problem, schedule: Schedule) -> Steady:
    """The period of the schedule, and a timetable that repeats with it.

    Args:
        problem: one step of a run without end; each rank has ops.
        schedule: a period that `schedc.verify` accepts.

    Raises:
        CheckFailed: ops wait for each other in a cycle.
    """
    ops = [op for order in schedule.orders for op in order]
    edges, nodes = _edges(problem, schedule)
    ratio = Fraction(max(sum(schedule.duration_ns(problem, op) for op in order) for order in schedule.orders))
    longest: list[int] = []
    while True:
        _, cycle = _relax(edges, nodes, ratio)
        if cycle is None:
            break
        time_ns, periods = sum(edge.time_ns for edge in cycle), sum(edge.periods for edge in cycle)
        longest = [edge.before for edge in cycle if edge.before < len(ops)]
        if periods <= 0:
            names = " -> ".join(token(ops[each]) for each in longest)
            raise CheckFailed(f"the ranks wait for each other indefinitely: {names}; `schedc.verify` names the cycle")
        ratio = Fraction(time_ns, periods)
    period_ns = ceil(ratio)
    starts, _ = _relax(edges, nodes, Fraction(period_ns))
    begin = [0, *accumulate(map(len, schedule.orders))]
    return Steady(
        period_ns=period_ns,
        exact_ns=ratio,
        starts_ns=tuple(tuple(starts[first:last]) for first, last in pairwise(begin)),
        longest=tuple(ops[each] for each in longest),
    )


def _relax(edges: list[Edge], nodes: int, ratio: Fraction) -> tuple[list[int], list[Edge] | None]:
    """The earliest starts, times the ratio's denominator, at which all edges hold; or a cycle that is longer than the ratio.

    Nodes that have got later are looked at in turn (Bellman-Ford with a queue); now and then, whether one of them did so by itself.
    """
    period, scale = ratio.numerator, ratio.denominator
    after: list[list[tuple[int, int, int]]] = [[] for _ in range(nodes)]  # by node: number of the edge, its end, its length
    for number, edge in enumerate(edges):
        after[edge.before].append((number, edge.after, edge.time_ns * scale - edge.periods * period))
    starts, came_by = [0] * nodes, [-1] * nodes
    waiting, is_waiting, looked = deque(range(nodes)), [True] * nodes, 0
    while waiting:
        node = waiting.popleft()
        is_waiting[node] = False
        start = starts[node]
        for number, end, length in after[node]:
            if start + length > starts[end]:
                starts[end], came_by[end] = start + length, number
                if not is_waiting[end]:
                    is_waiting[end] = True
                    waiting.append(end)
        looked += 1
        if looked % nodes == 0:
            cycle = _cycle_of(edges, came_by)
            if cycle is not None:
                return starts, cycle
    return starts, None


def _cycle_of(edges: list[Edge], came_by: list[int]) -> list[Edge] | None:
    """A cycle among the edges by which the nodes got their starts; such a cycle is longer than the ratio."""
    seen = [-1] * len(came_by)
    for root in range(len(came_by)):
        node = root
        while seen[node] < 0 and came_by[node] >= 0:
            seen[node] = root
            node = edges[came_by[node]].before
        if seen[node] == root and came_by[node] >= 0:
            cycle, at = [], node
            while True:
                cycle.append(edges[came_by[at]])
                at = cycle[-1].before
                if at == node:
                    return cycle[::-1]
    return None


def _edges(problem: Problem, schedule: Schedule) -> tuple[list[Edge], int]:
    """What waits for what, and how many nodes there are: the ops, rank after rank, then their transfers."""
    count = problem.microbatches
    ops = [op for order in schedule.orders for op in order]
    begin = [0, *accumulate(map(len, schedule.orders))]
    lasts_ns = [schedule.duration_ns(problem, op) for op in ops]
    edges = []
    for first, last in pairwise(begin):  # a rank runs one op at a time, in its order, again and again
        around = [*range(first, last), first]
        edges += [Edge(a, b, lasts_ns[a], int(b <= a)) for a, b in pairwise(around)] if last > first else []
    of_block: dict[tuple[bool, int, int], tuple[int, int]] = {}
    for number, op in enumerate(ops):  # by what it does, stage and microbatch of the step: first op, step
        if op.kind in (Kind.F, Kind.B, Kind.BW):
            of_block.setdefault((op.kind is Kind.F, op.stage, op.microbatch % count), (number, step_of(op, count)))
    last_of = {(op.kind, op.stage, op.microbatch % count): number for number, op in enumerate(ops) if op.kind is not Kind.U}
    nodes = len(ops)
    carried: dict[Resource, list[Carried]] = {}
    for (kind, stage, microbatch), producer in last_of.items():
        path = problem.path(microbatch)
        at = path.index(stage) + (1 if kind is Kind.F else -1)
        if kind is Kind.W or not 0 <= at < len(path):
            continue
        source, destination = problem.stages[stage].rank, problem.stages[path[at]].rank
        if source == destination:
            continue  # its order has it
        consumer, step = of_block[kind is Kind.F, path[at], microbatch]
        link = problem.link(source, destination)
        occupancy_ns = link.occupancy_ns(problem.message_bytes(ops[producer]._replace(microbatch=microbatch)))
        periods = step_of(ops[producer], count) - step
        edges += [
            Edge(producer, nodes, lasts_ns[producer], 0),
            Edge(nodes, consumer, occupancy_ns + link.latency_ns, periods),
        ]
        carried.setdefault(Resource.of_link(link), []).append(Carried(producer, consumer, nodes, occupancy_ns, periods))
        nodes += 1
    for transfers in carried.values():
        sources = {problem.rank_of(ops[transfer.producer]) for transfer in transfers}
        # A link or trunk serves one rank, in its order; a wire into a rank several, in the order in which that takes the messages.
        served = sorted(transfers, key=lambda each: each.producer if len(sources) == 1 else each.consumer)
        for before, after in pairwise([*served, served[0]]):
            ahead = 0 if len(sources) == 1 else before.periods - after.periods
            edges.append(Edge(before.node, after.node, before.occupancy_ns, ahead + int(after is served[0])))
    return edges, nodes
