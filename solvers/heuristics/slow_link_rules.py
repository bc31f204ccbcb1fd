"""The rules that are the best where links are slow: few, for a schedule in milliseconds (`schedc.adapt.replan`).

Of 7,800 rules, with slow links drawn at random for 8 ranks and for 16, a dozen gave all but 0.01 % of what the best of all gave.
Nearly all of these let a stage have as many microbatches in flight as it can run F before its first B, which is what absorbs a
link's delay, and run F first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from schedc.solvers.heuristics.rule_table import LEAST_RULES, priority_of, table_of_rules
from schedc.solvers.heuristics.warm_up_counts import in_flight_before_first_backward, round_trip_in_flight
from schedc.solvers.kernel.climb import PackedRule
from schedc.solvers.kernel.patience import longest_op_ns, policies
from schedc.solvers.kernel.scheduler_state import count_by_stage

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.solvers.kernel.tables import SchedulerState

FORWARD, BACKWARD, WEIGHTS = (0, 1, 2), (1, 0, 2), (0, 2, 1)
"""The places of F, B and W, as in `rule_table.ORDERS`: F before B before W, B before F, W before B."""
RULES = (
    (0, 0.25, FORWARD, 0.1),
    (1, 0.0, FORWARD, 0.1),
    (1, 1.0, WEIGHTS, 0.15),
    (1, 0.25, FORWARD, 0.4),
    (1, 0.0, FORWARD, 0.2),
    (1, 0.25, FORWARD, 0.0),
    (0, 0.25, FORWARD, 0.0),
    (None, 0.25, BACKWARD, 0.25),
    (0, 0.0, FORWARD, 0.3),
    (0, 0.25, BACKWARD, 0.1),
    (None, 0.0, BACKWARD, 0.0),
    (0, 0.0, FORWARD, 0.35),
    (1, 0.0, FORWARD, 0.0),
    (1, 1.0, FORWARD, 0.1),
    (1, 0.0, FORWARD, 0.15),
    (0, 0.0, FORWARD, 0.2),
)
"""Each adds most to those before it. How many fewer microbatches than before the first B are in flight (None: as many as memory
holds); then W left waiting, what goes first, and look-ahead, as in `rule_table`."""
LEAST = 12
"""On large problems there are no more."""


def slow_link_rules(problem: Problem, scheduler: SchedulerState, most: int) -> list[PackedRule]:
    """These rules and, where there may be more than `LEAST_RULES`, those of `table_of_rules` behind them, `most` in all."""
    ordered = {places: priority_of(problem, places) for places in (FORWARD, BACKWARD, WEIGHTS)}
    counts, first = np.array(count_by_stage(scheduler), np.int64), np.array(in_flight_before_first_backward(problem), np.int64)
    trips = np.array(round_trip_in_flight(problem, whole_period=False), np.int64)
    longest_ns = longest_op_ns(scheduler)
    none_fused = policies(problem, scheduler)[0]
    rules = [
        PackedRule(
            counts if fewer is None else np.maximum(first - fewer, 1),
            (lag * (trips.max() - trips)).astype(np.int64),
            ordered[places],
            np.array([int(look * longest_ns)], np.int64),
            none_fused,
        )
        for fewer, lag, places, look in RULES[: LEAST if most <= LEAST_RULES else most]
    ]
    return rules if most <= LEAST_RULES else rules + table_of_rules(problem, scheduler, max(0, most - len(rules)))
