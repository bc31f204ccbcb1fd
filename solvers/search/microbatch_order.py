"""Search over the order in which microbatches that differ enter the pipeline, and over the rule that makes a schedule of it.

A Problem goes in, better and better Schedules come out. The list scheduler takes microbatches by number, so an order is tried by
giving its positions the durations of the microbatches there; the schedule that comes of it is named back. It starts from the given
order and from known ones, each with rules of a table. Then orders and rules are climbed by turns, in rounds of a fixed number of
evaluations; a round's results do not depend on the clock, only how many rounds there are may.
"""

from __future__ import annotations

import math
import time
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from schedc.compiled.compiler import compiled
from schedc.errors import Unsupported
from schedc.ir import Problem, Schedule, groups_of
from schedc.solvers.common.method import LocalSearch
from schedc.solvers.common.microbatch_order import entry_order, known_orders, order_is_open, renamed
from schedc.solvers.heuristics.rule_table import table_of_rules
from schedc.solvers.kernel.climb import Climber, PackedRule, climbing_scheduler, policies, stop_flag
from schedc.solvers.kernel.joints import Room, values_wait
from schedc.solvers.kernel.list_scheduler import rule_kernel
from schedc.solvers.kernel.tables import NEVER
from schedc.solvers.search.rounds import climb_in_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from schedc.solvers.common.base import Climbing, Limits
    from schedc.solvers.common.incumbent import Incumbent

POOL = 4
"""Orders that are climbed one after the other in each round; the best half of them starts the next round twice."""
RULES = 24
"""Rules of the table that each known order is tried with."""
PLACED_OPS = 600_000
"""A climb of a round places about this many ops, over orders and over rules each."""
MOST_EVALUATIONS = 2_000
HEAT = 0.004
"""How much worse an order may be that a climb goes on from, at its beginning, as a share of the objective."""
OrderAndRule: TypeAlias = "tuple[int, NDArray[np.int64], PackedRule]"
"""Behind the objective that they reach."""
TIMES = ["forward_ns", "backward_input_ns", "weight_ns", "backward_ns"]


class _Line:
    """The list scheduler's compiled kernel on one problem, whose microbatches take any order."""

    def __init__(self, problem: Problem, *, reserves: bool = False) -> None:
        """Waits until the kernels are compiled.

        Raises:
            Unsupported: a rank's memory limit does not hold one microbatch.
        """
        self.lists = climbing_scheduler(problem, reserves=reserves, room=Room(values_wait(problem)))
        self.climber = Climber(self.lists)
        self._run, self._scheduler = compiled(rule_kernel(problem)), self.climber.scheduler
        lanes, blocks = self._scheduler.lanes, self._scheduler.blocks
        self._given = {name: blocks[name].copy() for name in TIMES}
        path_of = np.array(problem.path_of, np.int64)
        of_path = [np.flatnonzero(path_of == path) for path in range(len(problem.paths))]
        self._number = np.zeros(problem.microbatches, np.int64)
        for microbatches in of_path:
            self._number[microbatches] = np.arange(len(microbatches))
        self._first = np.repeat(lanes["first"], lanes["last"] - lanes["first"])
        self._seat = np.concatenate([of_path[path] for path in lanes["path"]])

    def take(self, order: NDArray[np.int64]) -> None:
        """Give each position the durations of its microbatch in the order."""
        source = self._first + self._number[order[self._seat]]
        for name, values in self._given.items():
            self._scheduler.blocks[name] = values[source]

    def again(self) -> int:
        """The objective of the order that was taken last, by the rule that ran last."""
        return int(self._run(*self._scheduler))


class MicrobatchOrder(LocalSearch, frozen=True):
    """Search over the order in which microbatches enter, and over the rule of a list scheduler."""

    name, place, graphs, slices = "microbatch-order", 240, True, True

    def improve(self, incumbent: Incumbent, limits: Limits) -> None:
        """Offer better and better schedules, where the order is open."""
        problem = incumbent.problem
        if not order_is_open(problem):
            raise Unsupported("the microbatches are alike, or enter in the given order")
        incumbent.cut_short |= search_microbatch_order(
            problem,
            entry_order(problem, incumbent.start),
            self.climbing(incumbent, limits),
            lambda schedule: incumbent.offer_valid(schedule, self.name),
        )


def search_microbatch_order(
    problem: Problem, start: Sequence[int], climbing: Climbing, on_schedule: Callable[[Schedule], None]
) -> bool:
    """Climb from known orders and from `start`; returns whether the clock ended it.

    Args:
        problem: microbatches that differ and may enter in any order; any placement, any memory limits.
        start: the order of the best schedule known, as of `schedc.solvers.common.microbatch_order`.
        climbing: how to climb, over orders and over rules; the clock is looked at after each climb.
        on_schedule: is called with each schedule that is better than all before it, when its climb has ended.

    Raises:
        Unsupported: a rank's memory limit does not hold one microbatch.
    """
    random, begun = Random(climbing.seed), time.perf_counter()
    evaluations = climbing.evaluations or min(MOST_EVALUATIONS, max(20, PLACED_OPS // problem.num_ops))
    orders = [np.array(order, np.int64) for order in dict.fromkeys((tuple(start), *known_orders(problem)))]
    line = _Line(problem)
    pool = _first_pool(problem, line, orders)
    if pool[0][0] >= NEVER:
        line = _Line(problem, reserves=True)
        pool = _first_pool(problem, line, orders)
    swaps = _Moves(problem, random)

    def offer(entry: OrderAndRule) -> None:
        _, order, rule = entry
        line.climber.run(rule)
        on_schedule(renamed(line.climber.schedule(), order.tolist()))

    with stop_flag() as stop:  # nothing sets it before the end

        def climbed(start: OrderAndRule, number: int) -> OrderAndRule:
            _, order, rule = start
            value, order = _climbed(line, order, rule, swaps, evaluations, HEAT * (1 - number / climbing.rounds))
            line.take(order)
            tried = PackedRule(*(each.copy() for each in rule))
            reached = line.climber.climb(tried, evaluations, random.randrange(1 << 30), 0.0, stop)
            return (reached, order, tried) if reached <= value else (value, order, rule)

        return climb_in_turn(pool, climbing, climbed, again=POOL // 2, begun=begun, on_better=offer)


def _first_pool(problem: Problem, line: _Line, orders: Sequence[NDArray[np.int64]]) -> list[OrderAndRule]:
    """The best orders, each with its best rule of the table, and its value; the best one first."""
    rules = table_of_rules(problem, line.lists, RULES)
    ways = policies(problem, line.lists)
    found = []
    for order in orders:
        line.take(order)
        values = [line.climber.run(rule) for rule in rules]
        value = min(values)
        rule = rules[values.index(value)]
        for way in ways[1:]:
            tried = rule._replace(patience_ns=way)
            reached = line.climber.run(tried)
            if reached < value:
                value, rule = reached, tried
        found.append((value, order, rule))
    return sorted(found, key=lambda each: each[0])[:POOL]


def _climbed(
    line: _Line, order: NDArray[np.int64], rule: PackedRule, moves: _Moves, evaluations: int, heat: float
) -> tuple[int, NDArray[np.int64]]:
    """The best order that this many changes of the order find, with this rule, and its value."""
    line.take(order)
    now = best = line.climber.run(rule)
    best_order = order
    for number in range(evaluations):
        tried = moves.changed(order)
        line.take(tried)
        value = line.again()
        warm = heat * (1 - number / evaluations) * best
        if value <= now or (value < NEVER and warm > 0 and moves.random.random() < math.exp((now - value) / warm)):
            now, order = value, tried
            if value < best:
                best, best_order = value, tried
    return best, best_order


class _Moves:
    """Random changes of an order. A microbatch keeps a position of its path, and its slices move with it."""

    def __init__(self, problem: Problem, random: Random) -> None:
        self.random = random
        self._slices = slices = len(problem.slices) or 1
        groups = groups_of(problem)
        alike = [groups[first : first + slices] for first in range(0, len(groups), slices)]
        self._groups = [alike.index(each) for each in alike] if slices > 1 else groups
        path_of = np.array(problem.path_of[::slices], np.int64)
        of_paths = [np.flatnonzero(path_of == path) for path in range(len(problem.paths))]
        self._seats = [seats for seats in of_paths if len({self._groups[m] for m in seats.tolist()}) > 1]

    def changed(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Two microbatches that differ change places, one goes elsewhere, or a stretch is turned around."""
        random, slices = self.random, self._slices
        tried = order[::slices] // slices
        order = tried.copy()
        seats = random.choice(self._seats)
        mine: Any = order[seats]
        how, count = random.random(), len(mine)
        while True:
            a, b = random.randrange(count), random.randrange(count)
            if self._groups[mine[a]] != self._groups[mine[b]]:
                break
        if how < 0.5:
            mine[a], mine[b] = mine[b], mine[a]
        elif how < 0.9:
            moved = mine[a]
            mine = np.insert(np.delete(mine, a), b, moved)
        else:
            first, last = min(a, b), max(a, b)
            mine[first : last + 1] = mine[first : last + 1][::-1].copy()
        tried[seats] = mine
        return tried if slices == 1 else (tried[:, None] * slices + np.arange(slices)).ravel()
