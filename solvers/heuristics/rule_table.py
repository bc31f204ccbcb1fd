"""A fixed number of list-scheduling rules on the compiled kernel, the best of which is kept: a Problem in, a Schedule out.

Greedy tries some fifteen rules in plain Python; the kernel places an op in some 50 ns, so that a table of rules and short climbs
from the best of them take a few milliseconds (design notes: search over the rule, not over the order). Nothing depends on a clock:
the same problem gives the same schedule. Blocks stay whole. Where BW takes less time than B and W, the best rules of the table are
tried with some backwards fused, too, and the best of all are climbed from, with moves that fuse and split.
"""

from __future__ import annotations

from itertools import count, islice, product
from typing import TYPE_CHECKING

import numpy as np

from schedc.compiled.compiler import at_hand, compile_ahead
from schedc.ir import Problem, Schedule
from schedc.solvers.common.method import Constructive, Ops
from schedc.solvers.heuristics.memory import within_memory
from schedc.solvers.heuristics.warm_up_counts import in_flight_before_first_backward, round_trip_in_flight
from schedc.solvers.kernel.climb import (
    CHANCES,
    MIXING_CHANCES,
    Climber,
    PackedRule,
    climb_of,
    climbing_scheduler,
    longest_op_ns,
    policies,
    stop_flag,
)
from schedc.solvers.kernel.scheduler_state import count_by_stage, depth_by_stage
from schedc.solvers.kernel.tables import NEVER, SchedulerState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from schedc.solvers.kernel.joints import Room

MORE_IN_FLIGHT = tuple(product((False, True), (0, 1, 2, 3)))
"""Activations in flight: this many more than `round_trip_in_flight`, with or without whole periods; beside as many as memory holds,
and `in_flight_before_first_backward`."""
ORDERS = ((1, 0, 2), (0, 1, 2), (0, 2, 1), (2, 0, 1))
"""The places of F, B and W among ops that count as ready; 0 goes first."""
LOOK_AHEADS = (0.0, 0.5, 0.25, 0.1, 1.0)
"""How long a rank may wait for an op that goes first, in units of the longest op."""
WEIGHT_LAGS = (0.0, 1.0)
"""How many W a stage leaves waiting, in shares of how many fewer microbatches its round trip holds than the longest one."""
TABLE_OPS = 40_000
"""On larger problems the table ends when about this many ops have been placed, but not before its first `LEAST_RULES`."""
LEAST_RULES = 20
PLAIN_OPS = 150_000
"""Where no more ops will be placed, the kernel runs plain if it is not compiled yet, for a second or two; else it is waited for."""
PLAIN_TABLES = 3
"""A process that has come to this many plain tables is likely to need more, so it has the kernel compiled meanwhile."""
_plain_tables = count(1)
CLIMBS = 2
"""The climbs start from this many best rules of the table."""

FORWARD, BACKWARD, WEIGHTS = (0, 1, 2), (1, 0, 2), (0, 2, 1)
"""The places of F, B and W, as in `ORDERS`: F before B before W, B before F, W before B."""
SLOW_LINK_RULES = (
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
holds); then W left waiting, what goes first, and look-ahead, as in the table."""
LEAST_FOR_SLOW_LINKS = 12
"""On large problems there are no more."""


class RuleTable(Constructive, frozen=True):
    """The best schedule of a table of rules and of climbs from its best."""

    name, place, graphs, slices = "rule-table", 140, True, True
    climb_ops: Ops = 30_000
    """About how many ops the climbs may place together; 0: no climbs."""

    def construct(self, problem: Problem) -> Schedule:
        """The schedule; any placement, links and memory limits.

        Raises:
            Unsupported: a rank's memory limit does not hold one microbatch.
        """
        return self.best_of(problem, table_of_rules)

    def best_of(self, problem: Problem, rules: Callable[[Problem, SchedulerState, int], list[PackedRule]]) -> Schedule:
        """The same of another table, such as `slow_link_rules`."""
        return within_memory(problem, lambda room: self._best_of(problem, rules, room))

    def _best_of(self, problem: Problem, rules: Callable[[Problem, SchedulerState, int], list[PackedRule]], room: Room) -> Schedule:
        scheduler = climbing_scheduler(problem, room=room)
        blocks = len(scheduler.blocks)
        ops = blocks * (3 if problem.split_backward else 2)
        table = rules(problem, scheduler, max(LEAST_RULES, TABLE_OPS // max(1, ops)))
        placed = (max(TABLE_OPS, LEAST_RULES * ops) + self.climb_ops) * (1 + scheduler.settings[0].mixes)
        climber = _climber(scheduler, placed)
        values = np.array([climber.run(rule) for rule in table])
        if values.min() >= NEVER:
            climber = _climber(climbing_scheduler(problem, reserves=True, room=room), placed)
            values = np.array([climber.run(rule) for rule in table])
        evaluations = self.climb_ops // (CLIMBS * max(1, ops))
        best, value = _climbed(climber, table, values, evaluations, CHANCES)
        _, *mixtures = policies(problem, scheduler)
        if mixtures:
            starts = np.argsort(values, kind="stable")[: max(1, len(table) // len(mixtures))].tolist()
            more = [table[start]._replace(patience_ns=patience_ns) for start in starts for patience_ns in mixtures]
            values = np.concatenate((values, [climber.run(rule) for rule in more]))
            mixed, mixed_value = _climbed(climber, [*table, *more], values, evaluations, MIXING_CHANCES)
            best = mixed if mixed_value < value else best
        climber.run(best)
        return climber.schedule()


def schedules_of_table(problem: Problem, most: int) -> list[Schedule]:
    """The schedules of at most this many rules of the table, the best first; those that strand themselves on memory are left out.

    Raises:
        Unsupported: a rank's memory limit does not hold one microbatch.
    """
    scheduler = climbing_scheduler(problem)
    table = table_of_rules(problem, scheduler, most)
    climber = _climber(scheduler, len(table) * 3 * len(scheduler.blocks) * (1 + scheduler.settings[0].mixes))
    found: dict[Schedule, int] = {}
    for rule in table:
        value = climber.run(rule)
        if value < NEVER:
            found.setdefault(climber.schedule(), value)
    return sorted(found, key=found.__getitem__)


def _climbed(
    climber: Climber, table: list[PackedRule], values: NDArray[np.int64], evaluations: int, chances: dict[int, int]
) -> tuple[PackedRule, int]:
    """The best of the rules, whose values are given, and of climbs from the best of them; and its value."""
    ranking = np.argsort(values, kind="stable").tolist()
    best, value = table[ranking[0]], int(values[ranking[0]])
    with stop_flag() as stop:  # nothing sets it before the end
        for number, start in enumerate(ranking[:CLIMBS] if evaluations else ()):
            rule = table[start].copy()
            reached = climber.climb(rule, evaluations, number, 0.0, stop, chances)
            if reached < value:
                best, value = rule, reached
    return best, value


def _climber(scheduler: SchedulerState, placed: int) -> Climber:
    """The climber that will place this many ops: plain where that pays and the kernel is not compiled yet."""
    kernel = climb_of(scheduler)
    plain = placed <= PLAIN_OPS and not at_hand(kernel)
    if plain and next(_plain_tables) >= PLAIN_TABLES:
        compile_ahead(kernel)
    return Climber(scheduler, plain=plain)


def priority_of(problem: Problem, places: Sequence[int]) -> NDArray[np.int64]:
    """The priority of a `PackedRule` by the places of F, B and W; within a kind, F of later stages go first, B of earlier ones."""
    depth = np.array(depth_by_stage(problem), np.int64)
    within = np.stack((-depth, depth, np.zeros_like(depth)))
    priority: NDArray[np.int64] = (np.array(places, np.int64)[:, None] * (2 * len(depth) + 100) + within).ravel()
    return priority


def table_of_rules(problem: Problem, scheduler: SchedulerState, most: int) -> list[PackedRule]:
    """The rules, at most this many.

    What changes most between neighbours decides most, so that the first rules are the most different.
    """
    trips = {whole: np.array(round_trip_in_flight(problem, whole_period=whole), np.int64) for whole in (False, True)}
    in_flight = [np.array(count_by_stage(scheduler), np.int64), np.array(in_flight_before_first_backward(problem), np.int64)]
    in_flight += [np.minimum(in_flight[0], trips[whole] + more) for whole, more in MORE_IN_FLIGHT]
    held_back = [(share * (trips[False].max() - trips[False])).astype(np.int64) for share in WEIGHT_LAGS]
    ordered = [priority_of(problem, places) for places in ORDERS]
    longest_ns = longest_op_ns(scheduler)
    none_fused = policies(problem, scheduler)[0]
    looks_ns = [int(share * longest_ns) for share in LOOK_AHEADS]
    chosen = islice(product(held_back, looks_ns, ordered, in_flight), most)
    return [
        PackedRule(np.maximum(cap, 1), lag, priority, np.array([look_ns], np.int64), none_fused)
        for lag, look_ns, priority, cap in chosen
    ]


def slow_link_rules(problem: Problem, scheduler: SchedulerState, most: int) -> list[PackedRule]:
    """The rules that are the best where links are slow: few, for a schedule in milliseconds (`schedc.adapt.replan`).

    Of 7,800 rules, with slow links drawn at random for 8 ranks and for 16, a dozen gave all but 0.01 % of what the best of all
    gave. Nearly all of these let a stage have as many microbatches in flight as it can run F before its first B, which is what
    absorbs a link's delay, and run F first.

    Returns:
        These and, where there may be more than `LEAST_RULES`, those of `table_of_rules` behind them, `most` in all.
    """
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
        for fewer, lag, places, look in SLOW_LINK_RULES[: LEAST_FOR_SLOW_LINKS if most <= LEAST_RULES else most]
    ]
    return rules if most <= LEAST_RULES else rules + table_of_rules(problem, scheduler, max(0, most - len(rules)))
