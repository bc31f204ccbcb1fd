"""The period of a schedule whose steps overlap: the time from one step to the next, once it runs steadily.

A Problem that is one step of a run without end, and its Schedule of one period, go in; the least whole number of nanoseconds at
which all ops can repeat comes out, with when each op of the period begins. Ops, and the transfers between ranks, are the nodes of a
graph; an edge says by how much one begins after another, which may be of an earlier period. The period is the largest ratio of time
to periods over the graph's cycles (Reiter, 1968; Dasdan, 2004): each cycle that is too long for a period gives the next one to try,
until there is none. Each try goes on from the last one's (Howard, 1960).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from math import ceil
from typing import NamedTuple

from schedc.analysis.simulation.unroll import step_of
from schedc.errors import CheckFailed
from schedc.ir import Kind, Op, Problem, Resource, Schedule, token


class Arc(NamedTuple):
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
    graph = PeriodGraph.of(problem, schedule)
    busy_ns = max(sum(schedule.duration_ns(problem, op) for op in order) for order in schedule.orders)
    ratio, longest = Fraction(busy_ns), list[int]()
    while (cycle := graph.relax(ratio)) is not None:
        time_ns, periods = sum(graph.edges[each].time_ns for each in cycle), sum(graph.edges[each].periods for each in cycle)
        longest = [graph.edges[each].before for each in cycle if graph.edges[each].before < len(ops)]
        if periods <= 0:
            names = " -> ".join(token(ops[each]) for each in longest)
            raise CheckFailed(f"the ranks wait for each other indefinitely: {names}; `schedc.verify` names the cycle")
        ratio = Fraction(time_ns, periods)
    period_ns = ceil(ratio)
    if period_ns != ratio:
        graph.relax(Fraction(period_ns))  # at a longer period than is needed no cycle is too long
    begin = [0, *accumulate(map(len, schedule.orders))]
    return Steady(
        period_ns=period_ns,
        exact_ns=ratio,
        starts_ns=tuple(tuple(graph.starts[first:last]) for first, last in pairwise(begin)),
        longest=tuple(ops[each] for each in longest),
    )


@dataclass(slots=True)
class PeriodGraph:
    """What waits for what, and by which of its edges each node begins when it does: the policy, which the next ratio goes on from.

    Policy iteration (Howard, 1960; Cochet-Terrasson et al., 1998) in whole numbers. Each node begins at 0, or by one edge. The
    starts that follow from that are lengths of ways, so never more than the longest. A sweep over all edges, in an order in which
    a period can run, gives nodes edges by which they begin later; where there is none, the starts are the earliest at which all
    edges hold. Edges that form a cycle are longer than the ratio: an edge was taken only where its end had to begin later for it.
    """

    edges: list[Arc]
    after: list[list[tuple[int, int, int, int]]]
    """By node: number of an edge, its end, time, periods."""
    order: list[int]
    """All nodes, each after those of its own period that it waits for, where there is such an order."""
    came_by: list[int]
    """The number of the edge by which each begins when it does; -1: it begins at 0."""
    starts: list[int]
    """Times the ratio's denominator."""

    @classmethod
    def of(cls, problem: Problem, schedule: Schedule) -> PeriodGraph:
        """Each node begins at 0."""
        edges, nodes = _edges(problem, schedule)
        after: list[list[tuple[int, int, int, int]]] = [[] for _ in range(nodes)]
        for number, (before, end, time_ns, periods) in enumerate(edges):
            after[before].append((number, end, time_ns, periods))
        waits = [0] * nodes
        for edge in edges:
            waits[edge.after] += edge.periods <= 0
        order = [node for node in range(nodes) if not waits[node]]
        for node in order:  # it grows
            for _, end, _, periods in after[node]:
                if periods <= 0:
                    waits[end] -= 1
                    if not waits[end]:
                        order.append(end)
        order += [node for node in range(nodes) if waits[node]]
        return cls(edges, after, order, [-1] * nodes, [0] * nodes)

    def relax(self, ratio: Fraction) -> list[int] | None:
        """The earliest starts at which all edges hold; or the edges of a cycle longer than the ratio: of those met, the longest."""
        period, scale = ratio.numerator, ratio.denominator
        starts, came_by = self.starts, self.came_by
        while True:
            cycles = self._settle(period, scale)
            if cycles:
                return max(cycles, key=self._ratio)
            moved = False
            for node in self.order:
                start = starts[node]
                for number, end, time_ns, periods in self.after[node]:
                    begin = start + time_ns * scale - periods * period
                    if begin > starts[end]:
                        starts[end], came_by[end], moved = begin, number, True
            if not moved:
                return None

    def _settle(self, period: int, scale: int) -> list[list[int]]:
        """Let each node begin as its edge says, but not before 0; the cycles of such edges, each of which is cut."""
        starts, came_by, edges = self.starts, self.came_by, self.edges
        seen = [-1] * len(starts)
        cycles: list[list[int]] = []
        for root in range(len(starts)):
            way, node = [], root
            while seen[node] < 0:
                seen[node] = root
                way.append(node)
                if came_by[node] < 0:
                    break
                node = edges[came_by[node]].before
            else:
                if seen[node] == root and way:
                    cycles.append([came_by[each] for each in reversed(way[way.index(node) :])])
                    came_by[node] = -1
            for each in reversed(way):
                number = came_by[each]
                if number >= 0:
                    before, _, time_ns, periods = edges[number]
                    starts[each] = starts[before] + time_ns * scale - periods * period
                if number < 0 or starts[each] < 0:
                    starts[each], came_by[each] = 0, -1
        return cycles

    def _ratio(self, cycle: list[int]) -> tuple[bool, Fraction]:
        """To compare cycles by; one that passes no period is the longest."""
        periods = sum(self.edges[each].periods for each in cycle)
        return (True, Fraction(0)) if periods <= 0 else (False, Fraction(sum(self.edges[each].time_ns for each in cycle), periods))


def _edges(problem: Problem, schedule: Schedule) -> tuple[list[Arc], int]:
    """What waits for what, and how many nodes there are: the ops, rank after rank, then their transfers."""
    count = problem.microbatches
    ops = [op for order in schedule.orders for op in order]
    begin = [0, *accumulate(map(len, schedule.orders))]
    lasts_ns = [schedule.duration_ns(problem, op) for op in ops]
    edges = []
    for first, last in pairwise(begin):  # a rank runs one op at a time, in its order, again and again
        around = [*range(first, last), first]
        edges += [Arc(a, b, lasts_ns[a], int(b <= a)) for a, b in pairwise(around)] if last > first else []
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
            Arc(producer, nodes, lasts_ns[producer], 0),
            Arc(nodes, consumer, occupancy_ns + link.latency_ns, periods),
        ]
        carried.setdefault(Resource.of_link(link), []).append(Carried(producer, consumer, nodes, occupancy_ns, periods))
        nodes += 1
    for transfers in carried.values():
        sources = {problem.rank_of(ops[transfer.producer]) for transfer in transfers}
        # A link or trunk serves one rank, in its order; a wire into a rank several, in the order in which that takes the messages.
        served = sorted(transfers, key=lambda each: each.producer if len(sources) == 1 else each.consumer)
        for before, after in pairwise([*served, served[0]]):
            ahead = 0 if len(sources) == 1 else before.periods - after.periods
            edges.append(Arc(before.node, after.node, before.occupancy_ns, ahead + int(after is served[0])))
    return edges, nodes
