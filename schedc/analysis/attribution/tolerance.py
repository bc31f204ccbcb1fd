"""How much longer the latency of a link may be, with the orders of all ranks kept, until the step takes too long.

The makespan is that of the simulator at each latency asked for. Where no two links share a trunk, it is a maximum of sums that each
contain the link's latency a whole number of times: convex in it. So from above, each critical path names a latency above which
the step surely takes too long, and the first of these latencies at which it does not is the largest (Newton's method, exact in
integers). On a shared trunk, another latency may change who goes first, and a longer one may even make the step shorter: there the
latency found by bisection is one at which the step is in time and 1 ns above which it is not, and there may be larger ones.

Beside it is PipeMorph's rule for the delay that a pair of neighbouring stages tolerates (Theorem 1, and Equation 1 for unequal
stages). The *warm-up count* x of a stage is the number of its forwards before its first backward, and the *slackness* of stages
i and i + 1 is x_i - x_(i+1). By Equation 1 a delay c of each message between them, in both directions, does not cascade if and only
if

    F_i + B_i + 2 c <= slackness (F_(i+1) + B_(i+1)).

Where all times are t, that is Theorem 1: c <= (slackness - 1) t. The rule looks at the steady phase of one stage on each rank, and
at nothing else in the pipeline; `Tolerance.cascade_free_ns` asks the simulator the same question of a schedule.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np

from schedc.analysis.attribution.waits import SegmentKind, critical_path, waits_of
from schedc.analysis.simulation.flow import flow_of, timeline_of
from schedc.analysis.simulation.simulate import times_of
from schedc.ir import Kind, Problem, Schedule
from schedc.ir.index import tables_of

if TYPE_CHECKING:
    from schedc.analysis.simulation.timeline import Timeline


def lengthened_ns(makespan_ns: int, share: float) -> int:
    """The makespan and a share of it, rounded down: the share is the decimal number that the user wrote, as 0.15."""
    return makespan_ns + int(makespan_ns * Fraction(str(share)))


class Tolerance:
    """The links of one schedule, and how much each tolerates."""

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        """Take the problem and a schedule of it that runs.

        Attributes:
            exact: whether the answers are the largest delays, as no two links share a trunk.
        """
        self._problem = problem
        self._flow = flow_of(problem, schedule)
        trunks = Counter(link.trunk for link in problem.links if link.trunk is not None)
        parallel = problem.data_parallel
        self.exact = max(trunks.values(), default=0) < 2 and (parallel is None or parallel.trunk is None)
        self.makespan_ns = self._timeline((), 0).makespan_ns

    def extra_latency_ns(self, link: tuple[int, int], makespan_ns: int | None = None) -> int:
        """The largest latency that can be added to the link's so that the step takes at most `makespan_ns`.

        Args:
            link: (source, destination); a transfer of the schedule crosses it.
            makespan_ns: at least the schedule's own makespan, which is what None means.
        """
        target_ns = self.makespan_ns if makespan_ns is None else makespan_ns
        if target_ns < self.makespan_ns:
            raise ValueError(f"the step takes {self.makespan_ns} ns, more than {target_ns} ns")
        return self._largest((link,), target_ns, 0, target_ns + 1)  # above: a message that takes longer than the step

    def cascade_free_ns(self, source: int, destination: int) -> int | None:
        """The largest latency that can be added both ways so that the step becomes at most twice as much longer.

        That is what one round trip adds; above it, delays add up from microbatch to microbatch. None: they never do.

        Args:
            source: a rank to whose neighbour, and back, transfers of the schedule go.
            destination: the neighbour.
        """
        links = ((source, destination), (destination, source))
        far_ns = 2 * (self.makespan_ns + 1)  # all that can add up does: the longest path crosses the links most often
        timeline = self._timeline(links, far_ns)
        if timeline.makespan_ns <= self.makespan_ns + 2 * far_ns:
            return None
        return self._largest(links, self.makespan_ns, 2, far_ns)

    def _largest(self, links: tuple[tuple[int, int], ...], makespan_ns: int, times: int, high_ns: int) -> int:
        """The largest added latency with which the step takes at most `makespan_ns` + `times` × it; `high_ns` is too large."""
        while self.exact:
            timeline = self._timeline(links, high_ns)
            late_ns = timeline.makespan_ns - makespan_ns - times * high_ns
            if late_ns <= 0:
                return high_ns
            path = critical_path(timeline, waits_of(self._problem, timeline))
            crossings = sum(
                segment.kind is SegmentKind.LATENCY and (segment.rank, segment.destination) in links for segment in path
            )
            high_ns -= -(-late_ns // (crossings - times))
        low_ns = 0
        while high_ns - low_ns > 1:
            middle_ns = (low_ns + high_ns) // 2
            if self._timeline(links, middle_ns).makespan_ns <= makespan_ns + times * middle_ns:
                low_ns = middle_ns
            else:
                high_ns = middle_ns
        return low_ns

    def _timeline(self, links: tuple[tuple[int, int], ...], extra_ns: int) -> Timeline:
        """What happens when with this latency added to each of the links."""
        flow = self._flow
        crosses, of_sender = np.zeros(len(flow.sender), np.bool_), flow.rank_of[flow.sender]
        for source, destination in links:
            crosses |= (of_sender == source) & (flow.receiver == destination)
        times, _ = times_of(replace(flow, latency_ns=flow.latency_ns + np.where(crosses, extra_ns, 0)))
        return timeline_of(self._problem, flow, times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slackness:
    """What the rule says of two neighbouring stages."""

    source: int
    """The rank of the earlier stage; its neighbour's is `destination`."""
    destination: int
    slackness: int
    delay_ns: int
    """How long a message takes now: latency and occupancy, the mean of both directions."""
    tolerated_ns: int
    """The largest delay that does not cascade by Equation 1, rounded down; below 0 where none does."""


def slackness_of(problem: Problem, schedule: Schedule) -> tuple[Slackness, ...]:
    """The rule for each two neighbouring stages; empty where it does not apply: two paths, two stages on a rank, graphs, slices.

    Times are the means over microbatches, the backward's that of B where the stage splits most backwards, else of BW.
    """
    if len(problem.paths) > 1 or len(problem.stages) > problem.ranks or problem.edges or problem.slices:
        return ()
    warm_up = {}
    backward_kind = {}
    for order in schedule.orders:
        for op in order[:1]:
            kinds = [each.kind for each in order]
            first_backward = next((at for at, kind in enumerate(kinds) if kind in (Kind.B, Kind.BW)), len(kinds))
            warm_up[op.stage] = sum(each.kind is Kind.F and each.part <= 0 for each in order[:first_backward])
            backward_kind[op.stage] = Kind.B if kinds.count(Kind.B) >= kinds.count(Kind.BW) else Kind.BW
    tables = tables_of(problem)
    found = []
    for before, after in pairwise(problem.paths[0]):
        round_ns = [
            mean(problem.stages[stage].durations_ns(Kind.F)) + mean(problem.stages[stage].durations_ns(backward_kind[stage]))
            for stage in (before, after)
        ]
        slackness = warm_up[before] - warm_up[after]
        places = (before, len(problem.stages) + after)  # of one path, what F of one sends, and the backward of the other
        hops = tables.hop_begin[list(places)]
        message_ns = tables.hop_latency_ns[hops] + tables.hop_occupancy_ns[hops, 0]
        found.append(
            Slackness(
                source=problem.stages[before].rank,
                destination=problem.stages[after].rank,
                slackness=slackness,
                delay_ns=int(message_ns.sum()) // 2,
                tolerated_ns=int((slackness * round_ns[1] - round_ns[0]) // 2),
            )
        )
    return tuple(found)
