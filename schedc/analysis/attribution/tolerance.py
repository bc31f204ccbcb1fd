"""How much longer the latency of a link may be, with the orders of all ranks kept, until the step takes too long.

The makespan is that of the simulator at each latency asked for. Where no two links share a trunk, it is a maximum of sums that each
contain the link's latency a whole number of times: convex in it. So from above, each critical path names a latency above which
the step surely takes too long, and the first of these latencies at which it does not is the largest (Newton's method, exact in
integers). On a shared trunk, another latency may change who goes first, and a longer one may even make the step shorter: there the
latency found by bisection is one at which the step is in time and 1 ns above which it is not, and there may be larger ones.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from schedc.analysis.attribution.critical_path import SegmentKind, critical_path
from schedc.analysis.attribution.waits import waits_of
from schedc.analysis.simulation.flow import flow_of, timeline_of
from schedc.analysis.simulation.simulate import times_of

if TYPE_CHECKING:
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule


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
        crosses = np.zeros(len(flow.ops), np.bool_)
        for source, destination in links:
            crosses |= (flow.consumer >= 0) & (flow.rank_of == source) & (flow.rank_of[flow.consumer] == destination)
        times, _ = times_of(replace(flow, latency_ns=flow.latency_ns + np.where(crosses, extra_ns, 0)))
        return timeline_of(self._problem, flow, times)
