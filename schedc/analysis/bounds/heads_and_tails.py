"""Heads and tails along the paths of a problem: what every lower bound is made of.

Microbatches that take the same path with the same durations form a class. A *frame* is the span of time that a bound
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
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, pairwise

from schedc.ir import BLOCKS, Objective, Problem, Resource

FREE = Fraction(0)


@dataclass(frozen=True, slots=True)
class Hop:
    """The transfer between two neighbours on a path; None for a resource: both are on one rank and it takes no time."""

    occupancy_ns: int = 0
    latency_ns: int = 0
    resource: Resource | None = None

    @property
    def total_ns(self) -> int:
        """Least time from ready to arrival."""
        return self.occupancy_ns + self.latency_ns


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
    """Per position, to it from the next one."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsAndTails:
    """The heads and tails of one class of microbatches in one frame, per position of its path from `begin` on (0 before)."""

    microbatches: MicrobatchClass
    begin: int
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

    def positions(self) -> range:
        """The positions inside the frame."""
        return range(self.begin, len(self.microbatches.path))


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
    links = {(link.source, link.destination): link for link in problem.links}
    uniform = [
        all(len(problem.stages[stage].durations_ns(kind)) == 1 for stage in path for kind in BLOCKS) for path in problem.paths
    ]
    classes = Counter((path, -1 if uniform[path] else microbatch) for microbatch, path in enumerate(problem.path_of))

    def costs(stage: int, microbatch: int) -> LeastTimes:
        forward, gradient, weight, fused = (problem.duration_ns(kind, stage, microbatch) for kind in BLOCKS)
        if not problem.split_backward:
            return LeastTimes(forward, fused, fused, None, fused)
        return LeastTimes(forward, min(gradient, fused), min(gradient + weight, fused), (gradient, weight), fused)

    def hop(source: int, destination: int, message_bytes: int) -> Hop:
        pair = (problem.stages[source].rank, problem.stages[destination].rank)
        if pair[0] == pair[1]:
            return Hop()
        return Hop(links[pair].occupancy_ns(message_bytes), links[pair].latency_ns, Resource.of_link(links[pair]))

    made = []
    for (index, alone), count in classes.items():
        path = problem.paths[index]
        microbatch = problem.path_of.index(index) if alone < 0 else alone
        made.append(
            MicrobatchClass(
                count=count,
                microbatch=microbatch,
                path=path,
                costs=tuple(costs(stage, microbatch) for stage in path),
                forward=tuple(hop(a, b, problem.stages[a].message_bytes) for a, b in pairwise(path)),
                backward=tuple(hop(b, a, problem.stages[a].gradient_message_bytes) for a, b in pairwise(path)),
            )
        )
    return tuple(made)


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
    path, costs = microbatches.path, microbatches.costs
    size = len(path)
    ranks = [problem.stages[stage].rank for stage in path]
    begin = 0 if observer is None else ranks.index(observer)
    parallel = problem.data_parallel if observer is None else None
    gather_ns = tuple(parallel.all_gather_ns[stage] if parallel and parallel.all_gather_ns else 0 for stage in path)
    after_weight_ns = tuple(parallel.reduce_scatter_ns[stage] if parallel else 0 for stage in path)
    counted = tuple(observer is None or rank == observer for rank in ranks)

    forward_head, forward_tail, gradient_head, gradient_tail, sent_tail = ([0] * size for _ in range(5))
    for at in range(begin, size):
        arrival = forward_head[at - 1] + costs[at - 1].forward_ns + microbatches.forward[at - 1].total_ns if at > begin else 0
        forward_head[at] = max(gather_ns[at], arrival)
    for at in reversed(range(begin, size)):
        arrival = gradient_head[at + 1] + costs[at + 1].gradient_ns + microbatches.backward[at].total_ns if at < size - 1 else 0
        gradient_head[at] = max(forward_head[at] + costs[at].forward_ns, arrival)
    for at in range(begin, size):
        sent = microbatches.backward[at - 1].total_ns + costs[at - 1].gradient_ns + gradient_tail[at - 1] if at > begin else 0
        gradient_tail[at] = _tail_of_gradient(costs[at], sent, after_weight_ns[at] if counted[at] else None)
        sent_tail[at] = max(sent, after_weight_ns[at]) if counted[at] else sent
    for at in reversed(range(begin, size)):
        if at == size - 1:
            forward_tail[at] = costs[at].gradient_ns + gradient_tail[at]
        else:
            forward_tail[at] = microbatches.forward[at].total_ns + costs[at + 1].forward_ns + forward_tail[at + 1]
    return HeadsAndTails(
        microbatches=microbatches,
        begin=begin,
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
