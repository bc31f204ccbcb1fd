"""What a rank must idle in every round trip: gaps between a forward and its gradient that memory leaves partly empty.

Takes the frames of a problem; gives the least time of a rank's work plus the idle time of disjoint gaps of it. It grows with the
microbatches as a steady state does, and for a few microbatches it counts the warm-up and the cool-down together: for equal stages
with the memory of 1F1B and free links it is n (F + B + W) + (p − 1)(F + B − W), the makespan of ZB-H1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.ir.resource import Resource

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from schedc.analysis.bounds.heads_and_tails import HeadsAndTails
    from schedc.analysis.bounds.memory_states import RoundTrip
    from schedc.ir.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alone:
    """One stage, alone on its rank, and what the rest of the pipeline leaves it. Durations are the longest of any microbatch."""

    microbatches: int
    forward_ns: int
    gradient_ns: int
    rest_ns: int
    split_price: Fraction
    """The least cost of a nanosecond of W apart (`LeastTimes.split_price`)."""
    away_ns: int
    """From the end of F to the start of the backward, at least."""
    by_gradient_bytes: int
    """What the end of the gradient part may release at most."""
    by_rest_bytes: int
    """What is held until all of the backward has ended."""
    limit_bytes: int

    @property
    def slots(self) -> int:
        """How many activations fit at once."""
        activation_bytes = self.by_gradient_bytes + self.by_rest_bytes
        if activation_bytes * self.microbatches <= self.limit_bytes:
            return self.microbatches
        return max(1, self.limit_bytes // activation_bytes)


def idle_gap_bound_of_rank(problem: Problem, frames: Sequence[HeadsAndTails], way: RoundTrip, rank: int) -> int:
    """The least span of the frame, by the idle time of one rank; 0 unless the rank has one stage and there is one path.

    Proof. Let gap j reach from the j-th end of a forward on the rank to the j-th start of a backward, whichever microbatches
    these are. Each microbatch's backward starts at least `away` after its forward ended, so the gap is at least so long. Let x
    be j less the backwards whose gradient part has ended when the gap opens, and y be j less those that have ended entirely;
    1 ≤ x ≤ y ≤ j. At least j activations were acquired, so x × by_gradient + y × by_rest ≤ limit. In the gap run at most:

    - the forwards begun by its end, other than the j that have ended: as fewer than j backwards have ended, no more than
      j − 1 + slots have begun, slots = limit // activation;
    - the gradient parts of the first j − 1 backwards, less those that have ended: x − 1;
    - the rests of these: y − 1, since a rest follows its gradient part.

    The gap idles for the rest of its length, for any x and y that memory admits. Gap j' ≥ j + slots opens after gap j has
    closed, since no more than j − 1 + slots forwards have begun by then. So the idle times of such gaps add up, and add to the
    rank's work. Blocks may be cut: what is counted as work is at least what is left of a block. A fused backward counts as its
    gradient part and its rest (`heads_and_tails`), which release no later; so does a split one, which then has at least that work.

    Where BW takes less than B + W, splitting adds B + W − BW to the rank's work: each nanosecond of W costs (B + W − BW) ÷ W. Let x
    and y count the backwards that have not sent their gradient, and not ended. In the gap run at most x − 1 backwards as a whole,
    each BW long, and then W's of the y − x others. What these x − 1 leave of the gap is idle, at its full length, or W, at W's
    cost. So the gap costs no less than that length times W's cost, and no less than its idle time as counted above, where a W
    counts for no more than BW − B: less its cost. As gaps are disjoint, no W is paid for twice.
    """
    at = _position(frames, way, rank)
    if at is None:
        return 0
    alone = _alone(problem, frames, at)
    best_before = [0] * (alone.microbatches + 1)  # per j, the most idle time of disjoint gaps up to j
    for j in range(1, alone.microbatches + 1):
        here_ns = _least_cost_ns(alone, j) + best_before[max(0, j - alone.slots)]
        best_before[j] = max(best_before[j - 1], here_ns)
    work_ns = sum(
        frame.microbatches.count * (frame.microbatches.costs[at].forward_ns + frame.microbatches.costs[at].backward_ns)
        for frame in frames
    )
    head_ns = min(frame.forward_head_ns[at] for frame in frames)
    after_ns = min(frame.after_weight_ns[at] for frame in frames)
    return head_ns + work_ns + best_before[-1] + after_ns


def _least_cost_ns(alone: _Alone, j: int) -> int:
    """The least idle time in gap j, W's that run in it apart from their B counting as idle at their cost."""
    left_ns = alone.away_ns - min(alone.microbatches - j, alone.slots - 1) * alone.forward_ns
    whole_ns = alone.gradient_ns + alone.rest_ns
    if alone.slots == alone.microbatches:
        return max(0, left_ns - (j - 1) * whole_ns)
    price, per = alone.split_price.as_integer_ratio()
    least_ns = left_ns
    for x in range(1, j + 1):
        room_bytes = alone.limit_bytes - x * alone.by_gradient_bytes
        y = min(j, room_bytes // alone.by_rest_bytes) if alone.by_rest_bytes else j
        if y < x or room_bytes < 0:
            break
        without_ns = left_ns - (x - 1) * whole_ns
        cost_ns = without_ns - (y - x) * alone.rest_ns
        if price:
            cost_ns = max(cost_ns, without_ns * price // per)
        least_ns = min(least_ns, cost_ns)
    return max(0, least_ns)


def _position(frames: Sequence[HeadsAndTails], way: RoundTrip, rank: int) -> int | None:
    """The position on the path of the rank's one stage; None where the bound does not apply."""
    path, here = frames[0].microbatches.path, way.positions_on.get(Resource.of_rank(rank), [])
    if len(here) != 1 or way.stages_on[rank] != 1 or any(frame.microbatches.path != path for frame in frames):
        return None
    return here[0] if all(frame.counted[here[0]] for frame in frames) else None


def _alone(problem: Problem, frames: Sequence[HeadsAndTails], at: int) -> _Alone:
    """What the bound needs to know of the stage at a position of the path."""
    stage = problem.stages[frames[0].microbatches.path[at]]
    limit_bytes = problem.memory_limit_bytes[stage.rank]
    costs = [frame.microbatches.costs[at] for frame in frames]
    kept_bytes = stage.activation_after_input_bytes if problem.split_backward else 0
    microbatches = sum(frame.microbatches.count for frame in frames)
    return _Alone(
        microbatches=microbatches,
        forward_ns=max(cost.forward_ns for cost in costs),
        gradient_ns=max(cost.gradient_ns for cost in costs),
        rest_ns=max(cost.backward_ns - cost.gradient_ns for cost in costs),
        split_price=min(cost.split_price for cost in costs),
        away_ns=min(_away_ns(frame, at) for frame in frames),
        by_gradient_bytes=stage.activation_bytes - kept_bytes,
        by_rest_bytes=kept_bytes,
        limit_bytes=microbatches * stage.activation_bytes if limit_bytes is None else limit_bytes,
    )


def _away_ns(frame: HeadsAndTails, at: int) -> int:
    """The least time from the end of a forward to the start of its backward: to the end of the path and back."""
    return frame.microbatches.gradient_begin_ns[at] - frame.microbatches.forward_end_ns[at]
