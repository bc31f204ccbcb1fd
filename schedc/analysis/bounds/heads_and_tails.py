"""Heads and tails along the paths of a problem: what every lower bound is made of.

Microbatches that take the same path with the same durations form a class. The *positions* of its path are its stages; where
microbatches are in slices, the stages of each slice, one slice after the other: what a slice leaves for the next one on a stage,
its state, and what comes back for that, is as an edge between two positions of one rank. A *frame* is the span of time that a bound
speaks about: from time 0 to the end of everything (makespan), or from a rank's first start to its last end (stage span; that
rank is the frame's *observer*). In a frame, each position of a class's path has a head, the least time from the frame's start
to the start of the block, and a tail, the least time from its end to the frame's end.

In an observer's frame only that is counted which must lie inside it: of each microbatch, all that follows its first forward on
the observer and precedes its last backward there, and the observer's own W. What is upstream of the observer, and the W of other
ranks, may lie outside.

Fused or split: of each backward, the *gradient part* is its first min(B, BW) (BW, if the backward may not be split) of work:
no gradient is sent before that much of it is done. The whole backward is min(B + W, BW) of work at least.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from schedc.ir import BLOCKS, Objective, Problem, Resource, groups_of

FREE = Fraction(0)


@dataclass(frozen=True, slots=True)
class Hop:
    """The transfer between two positions of a path; None for a resource: both are on one rank and it takes no time."""

    occupancy_ns: int = 0
    latency_ns: int = 0
    resource: Resource | None = None
    queued_ns: int = 0
    """Of a graph: what the same op sends over the resource before it."""

    @property
    def total_ns(self) -> int:
        """Least time from ready to arrival."""
        return self.queued_ns + self.occupancy_ns + self.latency_ns


class PathMessage(NamedTuple):
    """A transfer of each microbatch of a path, by positions."""

    forward: bool
    """Whether F sends it; else the backward does."""
    sender: int
    receivers: list[int]
    """One; of a graph, all on its rank that take this value."""
    hop: Hop


@dataclass(frozen=True, slots=True)
class Trip:
    """What the positions of a path give each other; each is behind those that it takes from."""

    stages: tuple[int, ...]
    """Per position."""
    slices: tuple[int, ...]
    """Per position; 0 where microbatches are whole."""
    takes: tuple[list[tuple[int, Hop]], ...]
    """Per position, those whose F its F needs."""
    returns: tuple[list[tuple[int, Hop, Hop]], ...]
    """Per position, those whose backward its backward needs, with the hop there, and the one back."""
    messages: tuple[PathMessage, ...]
    forward: tuple[Hop, ...]
    """Per edge, of the first slice; of a chain, per position, from it to the next one."""
    backward: tuple[Hop, ...]
    """Of a chain, per position, to it from the next one."""


@dataclass(frozen=True, slots=True)
class LeastTimes:
    """The least times of one class of microbatches at one stage."""

    forward_ns: int
    gradient_ns: int
    """The gradient part of the backward."""
    backward_ns: int
    """The whole backward."""
    split_ns: tuple[int, int] | None
    """B and W, if they may be apart."""
    fused_ns: int

    @property
    def total_split_ns(self) -> int:
        """B and W together; BW, where they may not be apart."""
        return self.fused_ns if self.split_ns is None else sum(self.split_ns)

    @property
    def split_price(self) -> Fraction:
        """What a nanosecond of W apart costs: splitting adds B + W − BW to the rank's work, and W is what can then run later.

        0 where BW is no less than B + W; 1 where it is no more than B, so that W apart gains nothing.
        """
        more_ns = self.total_split_ns - self.fused_ns
        return FREE if more_ns <= 0 else Fraction(more_ns, more_ns + self.backward_ns - self.gradient_ns)


@dataclass(frozen=True, kw_only=True)  # no slots: the times of a trip are computed once, when they are first asked for
class MicrobatchClass:
    """Microbatches with the same path and durations."""

    count: int
    microbatch: int
    """One of them."""
    path: tuple[int, ...]
    costs: tuple[LeastTimes, ...]
    """Per position on the path."""
    forward: tuple[Hop, ...]
    """Per position, from it to the next one."""
    backward: tuple[Hop, ...]
    """Per position, to it from the next one. This, and the next two, are of chains of whole microbatches alone."""
    trip: Trip

    @cached_property
    def forward_end_ns(self) -> tuple[int, ...]:
        """Per position, the least time from the start of the path to the end of its forward."""
        hops = (0, *(hop.total_ns for hop in self.forward))
        return tuple(accumulate(hop_ns + cost.forward_ns for hop_ns, cost in zip(hops, self.costs, strict=True)))

    @cached_property
    def gradient_begin_ns(self) -> tuple[int, ...]:
        """Per position, the least time from the start of the path to the start of its backward, there and back."""
        behind = (hop.total_ns + cost.gradient_ns for hop, cost in zip(self.backward, self.costs[1:], strict=True))
        from_last = accumulate(reversed(tuple(behind)), initial=self.forward_end_ns[-1])
        return tuple(from_last)[::-1]

    @cached_property
    def round_trip_ns(self) -> list[int]:
        """Per position, the least time from the start of F to the start of its backward: there and back the same way.

        Of a graph, along edges with gradients.
        """
        found = [0] * len(self.costs)
        for at in reversed(range(len(self.costs))):
            away_ns = 0
            for other, there, back in self.trip.returns[at]:
                least_ns = there.total_ns + found[other] + self.costs[other].gradient_ns + back.total_ns
                away_ns = max(away_ns, least_ns)
            found[at] = self.costs[at].forward_ns + away_ns
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsAndTails:
    """The heads and tails of one class of microbatches in one frame, per position of its path; below 0 where it is outside."""

    microbatches: MicrobatchClass
    within: tuple[int, ...]
    """The positions of which both F and the backward are inside."""
    counted: tuple[bool, ...]
    """Whether the W of the position lies inside the frame."""
    after_weight_ns: tuple[int, ...]
    """What must follow the stage's last W: its reduce-scatter."""
    gather_ns: tuple[int, ...]
    """What must precede the stage's first F: its all-gather."""
    forward_head_ns: list[int]
    forward_tail_ns: list[int]
    gradient_head_ns: list[int]
    gradient_tail_ns: list[int]
    sent_tail_ns: list[int]
    """After the block that sends the gradient, B or BW."""

    @property
    def begin(self) -> int:
        """The first position inside the frame; of a chain, all from it on are."""
        return self.within[0]

    def positions(self) -> tuple[int, ...]:
        """The positions inside the frame."""
        return self.within


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrip:
    """The least times along a path there and back, and where on it each machine is used; so that a trip need not walk all of it."""

    forward_begin_ns: list[int]
    """Per position, from the start of the way. Durations are the least of any microbatch."""
    gradient_begin_ns: list[int]
    positions_on: dict[Resource, list[int]]
    """Per rank, the positions of its stages."""
    hops_on: dict[Resource, list[tuple[int, bool]]]
    """Per link or trunk, the hops that use it: their position, and whether they lead forwards."""


@dataclass(frozen=True, kw_only=True)  # no slots: the way is computed once, when it is first asked for
class Frame:
    """The span of time that a bound speaks about, and what must lie in it."""

    problem: Problem
    """In which no stage recomputes (`without_recomputed_bytes`)."""
    observer: int | None
    """None: the makespan."""
    classes: tuple[HeadsAndTails, ...]
    """Of the classes of microbatches that have a part in it."""

    @property
    def microbatches(self) -> int:
        """How many have a part in it."""
        return sum(each.microbatches.count for each in self.classes)

    @cached_property
    def by_path(self) -> tuple[Frame, ...]:
        """The frame for the microbatches of each path alone."""
        paths = dict.fromkeys(each.microbatches.path for each in self.classes)
        if len(paths) == 1:
            return (self,)
        return tuple(
            replace(self, classes=tuple(each for each in self.classes if each.microbatches.path == path)) for path in paths
        )

    @cached_property
    def way(self) -> RoundTrip:
        """The way of its microbatches, which all take one path."""
        first, positions = self.classes[0].microbatches, self.classes[0].positions()
        now_ns, last = 0, len(first.path) - 1
        forward, gradient = [0] * len(first.path), [0] * len(first.path)
        positions_on: dict[Resource, list[int]] = {}
        hops_on: dict[Resource, list[tuple[int, bool]]] = {}
        for at in positions:
            forward[at] = now_ns
            now_ns += min(each.microbatches.costs[at].forward_ns for each in self.classes)
            positions_on.setdefault(Resource.of_rank(self.problem.stages[first.path[at]].rank), []).append(at)
            if at < last:
                now_ns += first.forward[at].total_ns
                for hop, forwards in ((first.forward[at], True), (first.backward[at], False)):
                    if hop.resource is not None:
                        hops_on.setdefault(hop.resource, []).append((at, forwards))
        for at in reversed(positions):
            now_ns += first.backward[at].total_ns if at < last else 0
            gradient[at] = now_ns
            now_ns += min(each.microbatches.costs[at].gradient_ns for each in self.classes)
        return RoundTrip(forward_begin_ns=forward, gradient_begin_ns=gradient, positions_on=positions_on, hops_on=hops_on)


def microbatch_classes(problem: Problem) -> tuple[MicrobatchClass, ...]:
    """The microbatches of a problem in classes that bounds need not tell apart."""
    slices = len(problem.slices) or 1
    uniform = [
        all(len(problem.stages[stage].durations_ns(kind)) == 1 for stage in path for kind in BLOCKS) for path in problem.paths
    ]
    groups = groups_of(problem) if problem.slices else range(problem.microbatches)
    of = problem.path_of
    classes = Counter((of[first], -1 if uniform[of[first]] else groups[first]) for first in range(0, problem.microbatches, slices))
    trips = {path: _trip_of(problem, path) for path in dict.fromkeys(path for path, _ in classes)}

    def costs(stage: int, microbatch: int) -> LeastTimes:
        forward, gradient, weight, fused = (problem.duration_ns(kind, stage, microbatch) for kind in BLOCKS)
        if not problem.split_backward:
            return LeastTimes(forward, fused, fused, None, fused)
        return LeastTimes(forward, min(gradient, fused), min(gradient + weight, fused), (gradient, weight), fused)

    made = []
    for (index, alone), count in classes.items():
        first, trip = of.index(index) if alone < 0 else alone, trips[index]
        made.append(
            MicrobatchClass(
                count=count,
                microbatch=first // slices,
                path=trip.stages,
                costs=tuple(costs(stage, first + part) for stage, part in zip(trip.stages, trip.slices, strict=True)),
                forward=trip.forward,
                backward=trip.backward,
                trip=trip,
            )
        )
    return tuple(made)


def _trip_of(problem: Problem, number: int) -> Trip:
    links = {(link.source, link.destination): link for link in problem.links}
    path, edges, slices = problem.paths[number], problem.edges_of(number), len(problem.slices) or 1
    place, size = {stage: at for at, stage in enumerate(path)}, len(path)
    takes: tuple[list[tuple[int, Hop]], ...] = tuple([] for _ in range(slices * size))
    returns: tuple[list[tuple[int, Hop, Hop]], ...] = tuple([] for _ in takes)
    messages: list[PathMessage] = []
    one_way: tuple[list[Hop], list[Hop]] = ([], [])
    queued_ns: Counter[tuple[bool, int, Resource]] = Counter()
    values: dict[tuple[int, int, int], PathMessage] = {}

    def hop(forward: bool, sender: int, receiver: int, size_bytes: int, value: int, part: int) -> Hop:
        pair = (problem.stages[path[sender % size]].rank, problem.stages[path[receiver % size]].rank)
        if pair[0] == pair[1]:
            return Hop()
        known = values.get((sender, value, pair[1])) if forward else None
        if known is not None:
            known.receivers.append(receiver)
            return known.hop
        resource = Resource.of_link(links[pair])
        occupancy_ns = links[pair].occupancy_ns(problem.share_bytes(size_bytes, part))
        made = Hop(occupancy_ns, links[pair].latency_ns, resource, queued_ns[forward, sender, resource])
        queued_ns[forward, sender, resource] += occupancy_ns
        messages.append(PathMessage(forward, sender, [receiver], made))
        if forward:
            values[sender, value, pair[1]] = messages[-1]
        return made

    for part in range(slices):
        begin = part * size
        for at in range(begin, begin + size if part else begin):
            takes[at].append((at - size, Hop()))
            returns[at - size].append((at, Hop(), Hop()))
        for edge in edges:
            a, b = begin + place[edge.source], begin + place[edge.destination]
            there = hop(True, a, b, edge.message_bytes, edge.value, part)
            takes[b].append((a, there))
            one_way[0].append(there)
            if edge.gradient_message_bytes is not None:
                back = hop(False, b, a, edge.gradient_message_bytes, 0, part)
                returns[a].append((b, there, back))
                one_way[1].append(back)
    of_slice = tuple(part for part in range(slices) for _ in path)
    return Trip(path * slices, of_slice, takes, returns, tuple(messages), tuple(one_way[0]), tuple(one_way[1]))


def frames_of(problem: Problem) -> tuple[Frame, ...]:
    """The frames of the problem's objective, in which no stage recomputes: one, or that of each rank as the observer."""
    classes = microbatch_classes(problem)
    if problem.objective is Objective.MAKESPAN:
        return (Frame(problem=problem, observer=None, classes=tuple(_heads_and_tails(problem, alike, None) for alike in classes)),)
    frames = []
    for rank in range(problem.ranks):
        own = set(problem.stages_on(rank))
        within = tuple(_heads_and_tails(problem, alike, rank) for alike in classes if own.intersection(alike.path))
        frames.append(Frame(problem=problem, observer=rank, classes=within))
    return tuple(frames)


def _heads_and_tails(problem: Problem, microbatches: MicrobatchClass, observer: int | None) -> HeadsAndTails:
    """By longest paths: heads of F along the path and of backwards against it; tails of backwards, then of F, the other way.

    In an observer's frame is what follows one of its F, and precedes one of its backwards: paths that begin and end there.
    """
    path, costs, trip = microbatches.path, microbatches.costs, microbatches.trip
    size = len(path)
    counted = tuple([observer is None or problem.stages[stage].rank == observer for stage in path])
    parallel = problem.data_parallel if observer is None else None
    gather_ns = tuple(parallel.all_gather_ns[stage] if parallel and parallel.all_gather_ns else 0 for stage in path)
    after_weight_ns = tuple(parallel.reduce_scatter_ns[stage] if parallel else 0 for stage in path)

    forward_head = [gather if counts else -1 for gather, counts in zip(gather_ns, counted, strict=True)]
    sent = [0 if counts else -1 for counts in counted]
    gradient_head, gradient_tail, sent_tail, forward_tail = ([-1] * size for _ in range(4))
    for at, before in enumerate(trip.takes):
        for other, hop in before:
            if forward_head[other] >= 0:
                forward_head[at] = max(forward_head[at], forward_head[other] + costs[other].forward_ns + hop.total_ns)
    for at in reversed(range(size)):
        head = forward_head[at] + costs[at].forward_ns if forward_head[at] >= 0 else -1
        for other, _, hop in trip.returns[at]:
            if gradient_head[other] >= 0:
                head = max(head, gradient_head[other] + costs[other].gradient_ns + hop.total_ns)
        gradient_head[at] = head
    for at in range(size):
        if sent[at] < 0:
            continue
        gradient_tail[at] = _tail_of_gradient(costs[at], sent[at], after_weight_ns[at] if counted[at] else None)
        sent_tail[at] = max(sent[at], after_weight_ns[at]) if counted[at] else sent[at]
        for other, _, hop in trip.returns[at]:
            sent[other] = max(sent[other], hop.total_ns + costs[at].gradient_ns + gradient_tail[at])
    for at in reversed(range(size)):
        if gradient_tail[at] >= 0:
            forward_tail[at] = max(forward_tail[at], costs[at].gradient_ns + gradient_tail[at])
        if forward_tail[at] >= 0:
            for other, hop in trip.takes[at]:
                forward_tail[other] = max(forward_tail[other], hop.total_ns + costs[at].forward_ns + forward_tail[at])
    return HeadsAndTails(
        microbatches=microbatches,
        within=tuple([at for at in range(size) if forward_head[at] >= 0 and gradient_tail[at] >= 0]),
        counted=counted,
        after_weight_ns=after_weight_ns,
        gather_ns=gather_ns,
        forward_head_ns=forward_head,
        forward_tail_ns=forward_tail,
        gradient_head_ns=gradient_head,
        gradient_tail_ns=gradient_tail,
        sent_tail_ns=sent_tail,
    )


def _tail_of_gradient(costs: LeastTimes, sent_ns: int, after_weight_ns: int | None) -> int:
    """The least time after the gradient part: the better of fused and split. `sent_ns`: what follows the gradient sent.

    Fused, the rest of BW follows, and then both what follows the gradient and what follows the weights. Split, the rest of B, and
    then what follows the gradient, beside W and what follows it. A W outside the frame (None) is not counted.
    """
    if after_weight_ns is None:
        return sent_ns
    tail_ns = costs.fused_ns - costs.gradient_ns + max(sent_ns, after_weight_ns)
    if costs.split_ns is not None:
        input_ns, weight_ns = costs.split_ns
        tail_ns = min(tail_ns, input_ns - costs.gradient_ns + max(sent_ns, weight_ns + after_weight_ns))
    return tail_ns
