"""What an assignment of nodes is worth: the step of its pipelines and of the rings between them.

A pipeline's ranks end when the simulator says, under the links of its nodes. The ring of a rank, its all-reduce over the replicas,
begins when the rank's last op has ended in all replicas. It takes 2 (n - 1) rounds over n replicas, each of which sends the n-th
part of a bucket over every link of the ring and lasts as long as the slowest of them; where a link has a `transfer`, in proportion
to the size of a message. In which order the library's ring goes through its nodes is not known, so any link between two of them
may be in it, in either direction. So a ring with one slow link may be faster than this says, and never slower.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np

from schedc.analysis.simulation.simulate import simulate
from schedc.errors import InvalidInput
from schedc.ir import Link, MessageCost, Network, Problem, Schedule
from schedc.units import format_duration_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


APART = 1.25
"""Costs of one class differ by at most this factor."""
NEGLIGIBLE = 0.01
"""A latency that adds less than this share of the step to a ring or a pipeline's message is taken as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicated:
    """A pipeline in several replicas on nodes. Place number = replica × ranks + rank, as in a mesh (pipelines, ranks)."""

    problem: Problem
    """Of one pipeline. Its links' costs, and its collectives, count for nothing here."""
    schedule: Schedule
    """What all replicas run."""
    replicas: int
    network: Network
    """What a message costs between any two nodes. What sites share is left out: each link is its own."""
    gradient_bytes: tuple[int, ...]
    """Per rank, what its all-reduce sums."""
    buckets: int = 1
    """An all-reduce is this many, one after the other."""

    @property
    def nodes(self) -> int:
        """How many nodes and places there are."""
        return self.replicas * self.problem.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedStep:
    """What an assignment takes."""

    step_ns: int
    pipelines_ns: tuple[int, ...]
    """Of each replica, until the last of its ops ends."""
    rings_ns: tuple[int, ...]
    """Of each rank, its all-reduce."""


def costs_between(given: Replicated) -> dict[tuple[int, int], MessageCost]:
    """What a message costs from each node to each other.

    Raises:
        InvalidInput: nothing connects two nodes.
    """
    found: dict[tuple[int, int], MessageCost] = {}
    for pair in permutations(range(given.nodes), 2):
        link = given.network.link(*pair)
        if link is None:
            raise InvalidInput(f"links: found nothing between nodes {pair[0]} and {pair[1]}, expected what connects any two nodes")
        found[pair] = MessageCost(latency_ns=link.latency_ns, transfer_ns=link.transfer_ns, bytes_per_second=link.bytes_per_second)
    return found


def ring_ns(cost: MessageCost, given: Replicated, size_bytes: int) -> int:
    """An all-reduce of this many bytes over a ring whose slowest link costs this."""
    part_bytes = -(-size_bytes // (given.replicas * given.buckets))
    took_ns = cost.latency_ns + cost.payload_ns(part_bytes, given.problem.one_message_bytes)
    return 2 * (given.replicas - 1) * given.buckets * took_ns


def under(problem: Problem, costs: Sequence[MessageCost]) -> Problem:
    """The pipeline with these costs of its links, in their order, and without its collectives."""
    links = tuple(Link.of(link.source, link.destination, cost, None) for link, cost in zip(problem.links, costs, strict=True))
    return replace(problem, links=links, data_parallel=None)


def alike(given: Replicated) -> Replicated:
    """The same with links that are nearly alike taken as equal: measured ones all differ a little, which no search should follow.

    Sorted latencies, and so bandwidths, are cut into classes whose largest is at most `APART` times its smallest; each becomes the
    slowest of its class. Latencies that are negligible become none.
    """
    step_ns = simulate(replace(given.problem, data_parallel=None), given.schedule).makespan_ns
    least_ns = NEGLIGIBLE * step_ns / (2 * max(1, given.replicas - 1) * given.buckets)
    costs = costs_between(given)
    latencies = _classes(cost.latency_ns for cost in costs.values() if cost.latency_ns > least_ns)
    transfers = _classes(cost.transfer_ns for cost in costs.values() if cost.transfer_ns is not None)
    bandwidths = _classes(cost.bytes_per_second for cost in costs.values() if cost.bytes_per_second is not None)

    def one(cost: MessageCost) -> MessageCost:
        return MessageCost(
            latency_ns=latencies[cost.latency_ns][1] if cost.latency_ns > least_ns else 0,
            transfer_ns=None if cost.transfer_ns is None else transfers[cost.transfer_ns][1],
            bytes_per_second=None if cost.bytes_per_second is None else bandwidths[cost.bytes_per_second][0],
        )

    links = tuple(Link.of(*pair, one(cost), None) for pair, cost in costs.items())
    return replace(given, network=replace(given.network, links=links))


def _classes(values: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Of each value, the smallest and the largest of its class."""
    found: list[list[int]] = []
    for value in sorted({*values}):
        if found and value <= APART * found[-1][0]:
            found[-1].append(value)
        else:
            found.append([value])
    return {value: (each[0], each[-1]) for each in found for value in each}


class Timer:
    """Times assignments; what a pipeline takes under the same links is simulated once."""

    def __init__(self, given: Replicated) -> None:
        """Take what is assigned.

        Raises:
            InvalidInput: nothing connects two nodes, or nobody says what a gradient takes between them.
        """
        self.given = given
        self.costs = costs_between(given)
        # A `transfer`, the time of one message, says nothing of gradients where messages have no one size to scale it by.
        if given.replicas > 1 and any(given.gradient_bytes) and not given.problem.one_message_bytes:
            for (one, other), cost in self.costs.items():
                if cost.transfer_ns:
                    took = format_duration_ns(cost.transfer_ns)
                    raise InvalidInput(
                        f"links: found a transfer of {took} between nodes {one} and {other}, expected a bandwidth: gradients"
                        " cross the link too, and the plan's messages have no size, or several"
                    )
        self._known: dict[tuple[MessageCost, ...], tuple[int, ...]] = {}

    def ends_ns(self, costs: tuple[MessageCost, ...]) -> tuple[int, ...]:
        """When the last op of each rank ends where the pipeline's links cost this."""
        if costs not in self._known:
            timeline = simulate(under(self.given.problem, costs), self.given.schedule)
            bounds = zip(timeline.begin[:-1], timeline.begin[1:], strict=True)
            self._known[costs] = tuple(int(np.max(timeline.ends_ns[a:b], initial=0)) for a, b in bounds)
        return self._known[costs]

    def costs_of(self, node_of: Sequence[int], replica: int) -> tuple[MessageCost, ...]:
        """What a replica's links cost."""
        first = replica * self.given.problem.ranks
        return tuple(
            self.costs[node_of[first + link.source], node_of[first + link.destination]] for link in self.given.problem.links
        )

    def step(self, node_of: Sequence[int]) -> AssignedStep:
        """What an assignment takes; it says the node of each place."""
        given, ranks = self.given, self.given.problem.ranks
        ends = [self.ends_ns(self.costs_of(node_of, replica)) for replica in range(given.replicas)]
        rings = []
        for rank, size_bytes in enumerate(given.gradient_bytes):
            members = [node_of[replica * ranks + rank] for replica in range(given.replicas)]
            ways = (ring_ns(self.costs[way], given, size_bytes) for way in permutations(members, 2))
            rings.append(max(ways, default=0))
        return AssignedStep(
            step_ns=max(max(each[rank] for each in ends) + ring for rank, ring in enumerate(rings)),
            pipelines_ns=tuple(max(each) for each in ends),
            rings_ns=tuple(rings),
        )
