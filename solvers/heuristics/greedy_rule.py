"""A rule of the greedy method: what the list scheduler runs first, how far F run ahead, and which backwards it fuses.

A GreedyRule and a Problem give the list scheduler's Rule. `greedy` chooses among a few (`greedy.choose_rule`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from schedc.ir import Kind
from schedc.solvers.heuristics.warm_up_counts import round_trip_in_flight, round_trips_ns
from schedc.solvers.kernel.scheduler_state import Rule, depth_by_stage
from schedc.solvers.kernel.tables import NEVER

if TYPE_CHECKING:
    from schedc.ir import Problem

SPLIT_ENDS: tuple[tuple[tuple[float, float], tuple[float, float]], ...] = (
    ((1.0, 1.0), (0.5, 0.5)),
    ((0.0, 1.5), (1.5, 0.0)),
    ((1.0, 0.5), (1.5, 0.5)),
    ((0.0, 0.75), (1.5, 0.5)),
    ((0.0, 0.0), (1.5, 0.5)),
    ((0.5, 0.5), (0.5, 1.0)),
    ((1.25, 1.25), (0.85, 0.85)),
    ((1.25, 1.25), (1.25, 1.25)),
)
"""Where fusing saves time, it pays in the middle of a step: the first gradients come sooner split, and the last W fill the idle
time while gradients go back to the first rank. The first two pairs are the best for long loops and lines with room for 2 p; the
others, of 90, the best beside them on 13 cells of zero-bubble and 66 draws."""
TRIPS = (0.7, 1.3), (0.85, 1.0), (0.5, 1.0), (1.0, 1.5)
BY_TIME: tuple[dict[str, Any], ...] = tuple({"trip_shares": trip, "look_ahead": ahead} for trip in TRIPS for ahead in (0.5, 0.2))
"""What is tried of `GreedyRule.trip_shares`; chosen on 8 cells of zero-bubble and m70-loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyRule:
    """One rule of the greedy method, in terms that fit any problem. B go before F, and F before W, except as said here."""

    in_flight: int | None = None
    """Cap on each stage's activations in flight: this many more than `round_trip_in_flight`; None: memory alone limits them."""
    whole_period: bool = False
    """Round trips are counted in periods of F + B + W, as in a steady state without gaps; else of F + B, as in warm-up."""
    weight_lag: float = 0.0
    """How many W a stage leaves waiting for later gaps, in shares of how many fewer microbatches its round trip holds than the
    longest one (ZB-H1: 1)."""
    alternate: bool = False
    """After a B, a rank runs F before B: the steady phase's interleaving in full blocks."""
    shallow_forward: bool = False
    """With several stages on a rank: F of the earlier stage go first, else of the later."""
    deep_backward: bool = False
    """With several stages on a rank: B of the later stage go first, else of the earlier."""
    weights_first: int = 0
    """On this many of the first stages of a path F and W go before B: few wait for their gradients, or none. Where memory is full,
    the next F then waits for the W of a B that has run, not for another B, which takes longer."""
    look_ahead: float = 0.0
    """How long a rank may wait for an op of higher priority, in units of the longest F."""
    fused: Literal["none", "first", "steady", "all"] = "none"
    """Of a problem that splits backwards, those that are fused all the same: none, those of the first stages, which send no
    gradient, all but the first and last of each stage, or all."""
    split_ends: tuple[tuple[float, float], tuple[float, float]] = SPLIT_ENDS[0]
    """Of `steady`: how many of a stage's first backwards are split, and how many of its last, in shares of the number of ranks;
    each for the first stage of a path and for its last, the others in proportion."""
    trip_shares: tuple[float, float] | None = None
    """F and B go in the order of their times in a steady state: microbatches a period apart, a stage's F the first share of its
    round trip before a microbatch turns, its B the second share behind that. A rank waits for those that it can foresee."""

    def rule(self, problem: Problem, n_sub: int) -> Rule:
        """The list scheduler's rule for the problem."""
        count, depth = len(problem.stages), depth_by_stage(problem)
        trips = round_trip_in_flight(problem, whole_period=self.whole_period)
        fused = None if self.fused == "none" or not problem.split_backward else self._fused(problem, depth)

        def priority(at: int) -> tuple[int, int, int]:
            forward, backward = at if self.shallow_forward else count - at, -2 * count - (at if self.deep_backward else count - at)
            return (forward - 6 * count, backward, -4 * count) if at < self.weights_first else (forward, backward, 2 * count)

        priorities, work_ns = tuple(map(priority, depth)), [0] * problem.ranks
        if self.trip_shares is not None:
            early, late = self.trip_shares
            for at, microbatch in problem.blocks():
                work_ns[problem.stages[at].rank] += sum(problem.duration_ns(kind, at, microbatch) for kind in (Kind.F, Kind.BW))
            trips_ns = {at: trip_ns for _, at, trip_ns in sorted(round_trips_ns(problem), key=itemgetter(2))}
            priorities = tuple((int(-early * trips_ns[at]), int(late * trips_ns[at]), NEVER // 2) for at in range(count))
        return Rule(
            priority=priorities,
            priority_step=max(work_ns) // problem.microbatches,
            foresight=self.trip_shares is not None,
            in_flight=tuple(None if self.in_flight is None else trip + self.in_flight for trip in trips),
            weight_lag=tuple(int(self.weight_lag * (max(trips) - trip)) for trip in trips),
            look_ahead_ns=int(self.look_ahead * max(max(stage.forward_ns) for stage in problem.stages)),
            alternate=self.alternate,
            n_sub=n_sub,
            fused=fused,
        )

    def _fused(self, problem: Problem, depth: list[int]) -> tuple[tuple[bool, ...], ...]:
        counts, numbers = Counter(stage for stage, _ in problem.blocks()), Counter[int]()
        longest = max(1, *depth)
        ends = [[interpolated(shares, at / longest, problem.ranks) for at in depth] for shares in self.split_ends]
        fused = [[False] * problem.microbatches for _ in depth]
        sends = {edge.destination for edge in problem.edges if edge.has_gradient} if problem.edges else None
        for stage, microbatch in problem.blocks():
            is_first = depth[stage] == 0 if sends is None else stage not in sends
            is_steady = ends[0][stage] <= numbers[stage] < counts[stage] - ends[1][stage]
            fused[stage][microbatch] = {"first": is_first, "steady": is_steady, "all": True}[self.fused]
            numbers[stage] += 1
        return tuple(map(tuple, fused))


def interpolated(ends: tuple[float, float], along: float, ranks: int) -> int:
    """This share of the way from the first number to the second, both in shares of the ranks."""
    return round(ranks * (ends[0] + (ends[1] - ends[0]) * along))
