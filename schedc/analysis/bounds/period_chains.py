"""What microbatches that are alike do between the stages of their path: the times that bounds on the period are made of.

The time that a microbatch takes from one op of its chain to another is what its durations, occupancies and latencies add up to. A
backward takes at least `min(B, BW)` until its gradient is sent, and `min(B + W, BW)` until all of it has ended; BW where it may not
be split.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from schedc.ir import Kind, Op, Problem, Resource, groups_of


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """What microbatches that are alike do: their forwards along the path, and the backwards back."""

    count: int
    """How many of the step's microbatches are so."""
    microbatch: int
    """One of them."""
    path: tuple[int, ...]
    forward_ns: tuple[int, ...]
    """Along the path; so are the next."""
    gradient_ns: tuple[int, ...]
    """Of a backward, until its gradient is sent."""
    whole_ns: tuple[int, ...]
    """Of a backward, until all has ended."""
    there: tuple[tuple[Resource, int, int] | None, ...]
    """Per hop along the path: what its message occupies, for how long, and the latency; None: both stages are on one rank."""
    back: tuple[tuple[Resource, int, int] | None, ...]
    """The same of the gradient that comes back over the hop."""

    def return_ns(self, at: int) -> int:
        """From the end of F at this place of the path to the start of the backward there."""
        hops = (hop[1] + hop[2] for hop in (*self.there[at:], *self.back[at:]) if hop is not None)
        return sum(self.forward_ns[at + 1 :]) + sum(self.gradient_ns[at + 1 :]) + sum(hops)

    def parts(self, at: int) -> list[tuple[Resource | None, int, int]]:
        """From the start of F at this place to the end of the whole backward: resource (None: none), time, place in the path."""
        found: list[tuple[Resource | None, int, int]] = []
        last = len(self.path) - 1
        for place in range(at, last + 1):
            found.append((None, self.forward_ns[place], place))
            if place < last and (hop := self.there[place]) is not None:
                found += [(hop[0], hop[1], -1), (None, hop[2], -1)]
        for place in range(last, at - 1, -1):
            found.append((None, self.gradient_ns[place] if place > at else self.whole_ns[place], place))
            if place > at and (hop := self.back[place - 1]) is not None:
                found += [(hop[0], hop[1], -1), (None, hop[2], -1)]
        return found


def chains_of(problem: Problem) -> list[RoundTrips]:
    """One for each kind of microbatch."""
    chains = []
    hops_of = [_hops(problem, path) for path in problem.paths]
    for microbatch, count in Counter(groups_of(problem)).items():
        path = problem.path(microbatch)
        forward_ns, gradient_ns, whole_ns = [], [], []
        for stage in path:
            f_ns, b_ns, w_ns, bw_ns = (problem.duration_ns(kind, stage, microbatch) for kind in (Kind.F, Kind.B, Kind.W, Kind.BW))
            forward_ns.append(f_ns)
            gradient_ns.append(min(b_ns, bw_ns) if problem.split_backward else bw_ns)
            whole_ns.append(min(b_ns + w_ns, bw_ns) if problem.split_backward else bw_ns)
        there, back = hops_of[problem.path_of[microbatch]]
        chains.append(RoundTrips(count, microbatch, path, tuple(forward_ns), tuple(gradient_ns), tuple(whole_ns), there, back))
    return chains


def _hops(problem: Problem, path: tuple[int, ...]) -> list[tuple[tuple[Resource, int, int] | None, ...]]:
    """Per hop of the path, there and back: what a message occupies, for how long, and its latency."""
    ways = []
    for is_back in (False, True):
        hops: list[tuple[Resource, int, int] | None] = []
        for before, after in pairwise(path):
            source, destination = (after, before) if is_back else (before, after)
            ranks = problem.stages[source].rank, problem.stages[destination].rank
            if ranks[0] == ranks[1]:
                hops.append(None)
                continue
            link = problem.link(*ranks)
            size_bytes = problem.stages[before].gradient_message_bytes if is_back else problem.message_bytes(Op(Kind.F, before, 0))
            hops.append((Resource.of_link(link), link.occupancy_ns(size_bytes), link.latency_ns))
        ways.append(tuple(hops))
    return ways
