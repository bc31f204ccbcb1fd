"""What a rank must idle in every round trip: gaps between a forward and its gradient that memory leaves partly empty.

Takes a frame of a problem; gives the least time of a rank's work plus the idle time of disjoint gaps of it. It grows with the
microbatches as a steady state does, and for a few microbatches it counts the warm-up and the cool-down together: for equal stages
with the memory of 1F1B and free links it is n (F + B + W) + (p − 1)(F + B − W), the makespan of ZB-H1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedc.analysis.bounds.heads_and_tails import Frame


def idle_gap_bound_of_rank(frame: Frame, rank: int) -> int:
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
    problem, classes = frame.problem, frame.classes
    path = classes[0].microbatches.path
    here = [at for at in classes[0].positions() if problem.stages[path[at]].rank == rank]
    if len(here) != 1 or len(problem.stages_on(rank)) != 1 or any(each.microbatches.path != path for each in classes):
        return 0
    at = here[0]
    if not all(each.counted[at] for each in classes):
        return 0
    stage, microbatches, limit_bytes = problem.stages[path[at]], frame.microbatches, problem.memory_limit_bytes[rank]
    limit_bytes = microbatches * stage.activation_bytes if limit_bytes is None else limit_bytes
    slots = microbatches  # how many activations fit at once
    if stage.activation_bytes * microbatches > limit_bytes:
        slots = max(1, limit_bytes // stage.activation_bytes)
    by_rest_bytes = stage.activation_after_input_bytes if problem.split_backward else 0
    by_gradient_bytes = stage.activation_bytes - by_rest_bytes
    # Durations are the longest of any microbatch; away is the least from the end of F to the start of the backward.
    costs = [each.microbatches.costs[at] for each in classes]
    forward_ns, gradient_ns = max(cost.forward_ns for cost in costs), max(cost.gradient_ns for cost in costs)
    rest_ns = max(cost.backward_ns - cost.gradient_ns for cost in costs)
    away_ns = min(each.microbatches.round_trip_ns[at] - each.microbatches.costs[at].forward_ns for each in classes)
    price, per = min(cost.split_price for cost in costs).as_integer_ratio()

    def least_cost_ns(j: int) -> int:
        """The least idle time in gap j, W's that run in it apart from their B counting as idle at their cost."""
        left_ns, whole_ns = away_ns - min(microbatches - j, slots - 1) * forward_ns, gradient_ns + rest_ns
        if slots == microbatches:
            return max(0, left_ns - (j - 1) * whole_ns)
        least_ns = left_ns
        for x in range(1, j + 1):
            room_bytes = limit_bytes - x * by_gradient_bytes
            y = min(j, room_bytes // by_rest_bytes) if by_rest_bytes else j
            if y < x or room_bytes < 0:
                break
            without_ns = left_ns - (x - 1) * whole_ns
            cost_ns = without_ns - (y - x) * rest_ns
            least_ns = min(least_ns, max(cost_ns, without_ns * price // per) if price else cost_ns)
        return max(0, least_ns)

    best_before = [0] * (microbatches + 1)  # per j, the most idle time of disjoint gaps up to j
    for j in range(1, microbatches + 1):
        best_before[j] = max(best_before[j - 1], least_cost_ns(j) + best_before[max(0, j - slots)])
    work_ns = sum(each.microbatches.count * (cost.forward_ns + cost.backward_ns) for each, cost in zip(classes, costs, strict=True))
    head_ns, after_ns = min(each.forward_head_ns[at] for each in classes), min(each.after_weight_ns[at] for each in classes)
    return head_ns + work_ns + best_before[-1] + after_ns
