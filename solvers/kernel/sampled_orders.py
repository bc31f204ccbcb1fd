"""Local search over orders that are run under many conditions: the mean of their ends, or a percentile; a kernel, compiled.

The samples are the same problem with other costs. A pass over all ops times one sample (`order_evaluator.time_orders`); what an
order cannot reach any more, because the samples so far have cost too much, is given up before the last sample.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from schedc.compiled.kernel import kernel
from schedc.solvers.kernel.draws import Draws, draw, fraction
from schedc.solvers.kernel.order_evaluator import (
    OrderClimber,
    Orders,
    Workspace,
    change_at_random,
    copy_orders,
    take_back,
    time_orders,
    workspace_of,
)
from schedc.solvers.kernel.problem_arrays import ProblemArrays, example_facts
from schedc.solvers.kernel.tables import NEVER as STRANDED

SLACK = 1e-12
"""Of a sum of shares: what rounding may make of it."""


class Sampled(NamedTuple):
    """What differs from sample to sample, and what makes one number of their ends."""

    occupancy: Any
    """[sample, kind × stages + stage], as `ProblemArrays.occupancy`."""
    latency: Any
    """The same shape."""
    duration: Any
    """[sample, kind, stage, n], as `time_orders` takes them; with one sample, the same for all."""
    share: Any
    """Per sample, of the whole weight."""
    percentile: float
    """The share of the samples that end by then; 0: the mean counts."""
    rest_ns: Any
    """Per sample, a lower bound on what it and those after it add to the mean; one more at the end."""
    ends_ns: Any
    """Room, by sample."""


@kernel()
def value_of(facts: ProblemArrays, duration: Any, sampled: Sampled, orders: Orders, scratch: Workspace, limit_ns: Any) -> Any:
    """What the orders' ends come to; `STRANDED` if they cannot run; anything above `limit_ns` if it is above that.

    `facts` and `duration` are changed to each sample's in turn.
    """
    total_ns = 0.0
    late = 0.0
    samples = len(sampled.share)
    for sample in range(samples):
        for entry in range(len(facts.latency)):
            facts.latency[entry] = sampled.latency[sample, entry]
            facts.occupancy[entry] = sampled.occupancy[sample, entry]
        if len(sampled.duration) > 1 or sample == 0:
            for kind in range(duration.shape[0]):
                for stage in range(duration.shape[1]):
                    for n in range(duration.shape[2]):
                        duration[kind, stage, n] = sampled.duration[sample, kind, stage, n]
        end_ns = time_orders(facts, duration, orders, scratch)
        if end_ns >= STRANDED:
            return 1.0 * STRANDED
        sampled.ends_ns[sample] = end_ns
        total_ns += sampled.share[sample] * end_ns
        if sampled.percentile == 0.0:
            if total_ns + sampled.rest_ns[sample + 1] > limit_ns * (1.0 + SLACK):
                return 2.0 * limit_ns + 1.0
        elif end_ns > limit_ns:
            late += sampled.share[sample]
            if late > 1.0 - sampled.percentile + SLACK:
                return 2.0 * limit_ns + 1.0
    if sampled.percentile == 0.0:
        return total_ns
    best_ns = 1.0 * STRANDED
    for sample in range(samples):
        by_then = 0.0
        for other in range(samples):
            if sampled.ends_ns[other] <= sampled.ends_ns[sample]:
                by_then += sampled.share[other]
        if by_then >= sampled.percentile - SLACK:
            best_ns = min(best_ns, 1.0 * sampled.ends_ns[sample])
    return best_ns


def _example() -> tuple[Any, ...]:
    facts, row, duration = example_facts(), np.zeros(1, np.int64), np.zeros((4, 1, 1), np.int64)
    table, shares = np.zeros((1, 1), np.int64), np.zeros(1, np.float64)
    sampled = Sampled(table, table, np.zeros((1, 4, 1, 1), np.int64), shares, 0.0, shares, row)
    orders = Orders(table, row)
    rooms = orders, orders, workspace_of(facts), row
    return facts, duration, sampled, orders, *rooms, (0,) * 3, 0, draw(0, 1), 0.0, np.zeros(1, np.bool_)


@kernel(_example, lean=True)
def polish_sampled(
    facts: ProblemArrays,
    duration: Any,
    sampled: Sampled,
    orders: Orders,
    current: Orders,
    best: Orders,
    scratch: Workspace,
    before: Any,
    ranges: Any,
    evaluations: int,
    draws: Draws,
    heat: float,
    stop: Any,
) -> Any:
    """Change the orders this many times, one op at a time; `orders` becomes the best found, whose value is returned.

    As `order_evaluator.polish`, whose arguments these are, but for the samples.
    """
    blocks = len(facts.stage_rank) * scratch.ready.shape[2]
    current_ns = value_of(facts, duration, sampled, orders, scratch, 1.0 * STRANDED)
    best_ns = current_ns
    copy_orders(orders, current)
    copy_orders(orders, best)
    for number in range(evaluations):
        if stop[0]:
            break
        change = change_at_random(current, before, blocks, ranges, draws)
        if change[0] < 0:
            continue
        limit_ns = current_ns
        warm = heat * (1.0 - number / evaluations)
        if warm > 0:
            limit_ns = current_ns - warm * best_ns * math.log(1.0 - fraction(draws))
        moved_ns = value_of(facts, duration, sampled, current, scratch, limit_ns)
        if moved_ns <= limit_ns and moved_ns < STRANDED:
            current_ns = moved_ns
            if moved_ns < best_ns:
                best_ns = moved_ns
                copy_orders(current, best)
        else:
            take_back(current, before, change)
    copy_orders(best, orders)
    return best_ns


def sampled_climber(facts: ProblemArrays, sampled: Sampled, reach: int, exchanges: int = 0) -> OrderClimber:
    """A climber over orders of the problem that are run under its samples; it changes nothing that it is given."""
    own = facts._replace(latency=facts.latency.copy(), occupancy=facts.occupancy.copy())
    given = own, sampled.duration[0].copy(), sampled._replace(ends_ns=sampled.ends_ns.copy())
    return OrderClimber(polish_sampled, given, reach, exchanges)
