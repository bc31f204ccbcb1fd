"""A climb over the rules of the list scheduler: perturb a rule, keep what is no worse; a kernel, plain or compiled.

It works on a `SchedulerState` and on packed rules, with foresight. Reserves keep F out, so the searches climb without them first:
a rule may then strand itself on memory, and is worth `NEVER`, so that the climb moves away from it. Where BW takes less time than B
and W, a rule says by its patience which backwards are fused; where microbatches that differ may enter in any order, in which. Each
move has a name, and the climb counts which of them pay.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from schedc.compiled.compiler import compiled
from schedc.compiled.kernel import kernel, variant
from schedc.ir import Problem, Schedule
from schedc.solvers.common.method import fusing_saves_time
from schedc.solvers.kernel.choice import GRAPHS
from schedc.solvers.kernel.draws import Draws, below, draw, fraction
from schedc.solvers.kernel.entry import NO_ENTRY, Entry, reorder, take
from schedc.solvers.kernel.joints import NO_ROOM, Room
from schedc.solvers.kernel.list_kernel import run_rule
from schedc.solvers.kernel.list_scheduler import list_schedule_of
from schedc.solvers.kernel.scheduler_state import Rule, count_by_stage, depth_by_stage, scheduler_of, set_rule
from schedc.solvers.kernel.tables import NEVER, SchedulerState, as_arrays, example_scheduler, read_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray


DRAWS = 32
"""Random numbers that an evaluation takes, at most but for rare cases."""
LEAN = ("HEAP", "MYOPIC", "PARTS", "TURNS")
"""What no packed rule needs of the list scheduler."""
MIXING = True
"""Patience, which a compiled form may leave out."""
MOVES = ("cap", "caps", "priority", "exchange", "lag", "look-ahead", "patience", "edge", "enter")
"""The moves by name: the cap of a stage, or of all; a priority by a step, or those of two stages change places; how many W wait on
a stage, or on all; the look-ahead; the patience of a backward, of all before or behind it, or of all of its lane; the edge of a run
of equal patience, on a lane or on some after each other; the order in which microbatches enter."""
CAP, CAPS, PRIORITY, EXCHANGE, LAG, LOOK_AHEAD, PATIENCE, EDGE, ENTER = range(len(MOVES))
CHANCES = {CAP: 4, CAPS: 1, PRIORITY: 3, EXCHANGE: 1, LAG: 2, LOOK_AHEAD: 1}
"""Of the moves of any rule; then of those beside them, where backwards mix."""
MIXING_CHANCES = CHANCES | {PATIENCE: 2}


@contextmanager
def stop_flag() -> Iterator[NDArray[np.bool_]]:
    """The `stop` of climbs in other threads: `stop.fill(True)` ends them after the evaluation at hand. It is set at the end."""
    stop = np.zeros(1, np.bool_)
    try:
        yield stop
    finally:
        stop.fill(True)


class PackedRule(NamedTuple):
    """What a climb changes of a rule, in place; arrays or lists, by stage. The rest is in the scheduler."""

    cap: Any
    """`Rule.in_flight`."""
    lag: Any
    """`Rule.weight_lag`."""
    priority: Any
    """`Rule.priority`, entry kind × stages + stage."""
    look_ahead_ns: Any
    """One entry."""
    patience_ns: Any
    """By position on the scheduler; none where the scheduler does not mix."""
    enter: Any = np.zeros(0, np.int64)
    """The microbatch, of slices their microbatch, that enters at each position (`Entry`); none where they enter by number."""

    def copy(self) -> PackedRule:
        """The same in arrays of its own."""
        return PackedRule(*(each.copy() for each in self))


class Climb(NamedTuple):
    """What `climb` is called with."""

    scheduler: SchedulerState
    rule: PackedRule
    """Where it starts; the best at the end."""
    now_rule: PackedRule
    """Room for a rule, as the next."""
    tried: PackedRule
    most_cap: Any
    """By stage."""
    levels_ns: Any
    """The patience that moves give."""
    entry: Entry
    moves: Any
    """The move of each chance."""
    paid: Any
    """By move: how often a rule that it had a part in was better than all before; added to."""
    ranges: tuple[int, int, int, int, int]
    """2, 3, 10, the 59 steps of a priority and how many look-aheads there are; from outside, as numba would compile `below` anew
    for each number written there."""
    evaluations: int
    """With none, the rule itself is run."""
    draws: Draws
    heat: float
    stop: Any
    """`stop[0]` set to true, by another thread, ends it after the evaluation at hand."""


def _example() -> tuple[Any, ...]:
    row = np.zeros(1, np.int64)
    rule = PackedRule(row, row, row, row, row, row)
    given = example_scheduler(), rule, rule, rule, row, row, NO_ENTRY, row, row, (0,) * 5, 0, draw(0, 1), 0.0, np.zeros(1, np.bool_)
    return (Climb(*given),)


@kernel(_example, without=LEAN, lean=True)
def climb(given: Climb) -> Any:
    """Perturb the rule this many times and keep what is no worse, or little worse while hot; returns the best end."""
    scheduler, rule, now_rule, tried, most_cap, levels_ns, entry, moves, paid, ranges, evaluations, draws, heat, stop = given
    stages = len(rule.cap)
    two, three, ten, steps, looks = ranges
    now = best = NEVER
    _copy(rule, now_rule)
    for number in range(-1, evaluations):  # -1: the rule itself
        if number >= 0 and stop[0]:
            break
        _copy(now_rule, tried)
        made = 0
        for _ in range(1 + below(three, draws) if number >= 0 else 0):
            s = below(stages, draws)
            what = moves[below(len(moves), draws)]
            made |= 1 << what
            if what == CAP:
                change = 1 + below(two, draws)
                if below(two, draws) == 0:
                    change = -change
                tried.cap[s] = min(most_cap[s], max(1, tried.cap[s] + change))
            elif what == CAPS:
                change = 2 * below(two, draws) - 1
                for other in range(stages):
                    tried.cap[other] = min(most_cap[other], max(1, tried.cap[other] + change))
            elif what == PRIORITY:
                kind = below(three, draws)
                change = 1 + below(steps, draws)
                if below(two, draws) == 0:
                    change = -change
                tried.priority[kind * stages + s] += change
            elif what == EXCHANGE:
                other = below(stages, draws)
                kind = below(three, draws)
                kept = tried.priority[kind * stages + s]
                tried.priority[kind * stages + s] = tried.priority[kind * stages + other]
                tried.priority[kind * stages + other] = kept
            elif what == LAG:
                change = 2 * below(two, draws) - 1
                if below(two, draws):
                    tried.lag[s] = max(0, tried.lag[s] + change)
                else:
                    for other in range(stages):
                        tried.lag[other] = max(0, tried.lag[other] + change)
            elif MIXING and what == PATIENCE:
                level_ns = levels_ns[below(len(levels_ns), draws)]
                lane = scheduler.lanes[below(len(scheduler.lanes), draws)]
                begin, end, how = lane.first, lane.last, below(three, draws)
                at = begin + below(end - begin, draws)
                if how == 0:
                    begin, end = at, at + 1
                elif how == 1:  # all before, or all from there on; else all of the lane
                    begin, end = (begin, at + 1) if below(two, draws) else (at, end)
                for position in range(begin, end):
                    tried.patience_ns[position] = level_ns
            elif MIXING and what == EDGE:
                move_edges(scheduler.lanes, tried.patience_ns, levels_ns, ranges, draws)
            elif what == ENTER:
                reorder(tried.enter, entry, two, ten, draws)
            elif below(two, draws):
                tried.look_ahead_ns[0] = below(looks, draws)
            else:
                tried.look_ahead_ns[0] = 0
        value = _value(tried, scheduler, entry)
        if value > now and (value == NEVER or heat == 0):
            continue
        if value <= now or fraction(draws) < math.exp((now - value) / (heat * (1.0 - number / evaluations) * best)):
            now = value
            _copy(tried, now_rule)
            if value < best:
                best = value
                _copy(tried, rule)
                for move in range(len(paid)):
                    paid[move] += (made >> move) & 1
    return best


@kernel()
def move_edges(lanes: Any, patience_ns: Any, levels_ns: Any, ranges: Any, draws: Draws) -> None:
    """Move the edge of a run of equal patience, on a lane or on some after each other; at an end a run of a level may begin."""
    two, three, _, _, _ = ranges
    number = last = below(len(lanes), draws)
    if below(three, draws) == 0:
        last = number + below(len(lanes) - number, draws)
    step, side, how = 1 + below(two, draws), below(two, draws), below(three, draws)
    step, level_ns, share = step * step, levels_ns[below(two, draws)], fraction(draws)
    while number <= last:
        lane = lanes[number]
        begin, end = lane.first, lane.last
        at = begin + int(share * (end - begin))
        while at < end and (at == begin or patience_ns[at] == patience_ns[at - 1]):
            at += 1  # the first of the next run, or the lane's end
        if how == 0 and side:
            at = end
        elif how == 0:
            at = begin
        if side:  # the run before it gives way
            value_ns = patience_ns[at] if at < end else level_ns
            for position in range(max(begin, at - step), at):
                patience_ns[position] = value_ns
        else:
            value_ns = patience_ns[at - 1] if at > begin else level_ns
            for position in range(at, min(end, at + step)):
                patience_ns[position] = value_ns
        number += 1


climb_with_reserves = variant(climb, "climb_with_reserves", without=("GRAPHS",))
"""`climb` for chains of whole microbatches, as are the next two."""
climb_without_reserves = variant(climb, "climb_without_reserves", without=("GRAPHS", "RESERVES", "MIXING"))
"""The same for schedulers without reserves that do not mix."""
climb_mixing = variant(climb, "climb_mixing", without=("GRAPHS", "RESERVES"))
"""The same for schedulers without reserves that mix."""


def climb_of(scheduler: SchedulerState) -> Callable[[Climb], Any]:
    """The form that compiled climbs on the scheduler take."""
    if scheduler.settings[0].slices:
        return climb
    if any(rank.reserves >= 0 for rank in scheduler.ranks):
        return climb_with_reserves
    return climb_mixing if scheduler.settings[0].mixes else climb_without_reserves


@kernel(inline=True)
def _value(rule: PackedRule, scheduler: SchedulerState, entry: Entry) -> Any:
    """What the list scheduler makes of the rule; `NEVER` if it strands itself."""
    stages, lanes, settings = len(rule.cap), scheduler.lanes, scheduler.settings[0]
    for number in range(len(lanes)):
        lane = lanes[number]
        stage = lane.stage
        lane.cap, lane.lag = rule.cap[stage], rule.lag[stage]
        if GRAPHS:
            lane.cap = min(max(lane.cap, settings.slices), settings.most)
        lane.priority_f, lane.priority_b = rule.priority[stage], rule.priority[stages + stage]
        lane.priority_w = rule.priority[2 * stages + stage]
    if MIXING:
        for position in range(len(rule.patience_ns)):
            scheduler.blocks[position].patience_ns = rule.patience_ns[position]
    if len(rule.enter) > 0:
        take(rule.enter, entry, scheduler)
    settings.look_ahead_ns = rule.look_ahead_ns[0]
    return run_rule(*scheduler)


@kernel()
def _copy(rule: PackedRule, target: PackedRule) -> None:
    target.look_ahead_ns[0] = rule.look_ahead_ns[0]
    for stage in range(len(rule.cap)):
        target.cap[stage], target.lag[stage] = rule.cap[stage], rule.lag[stage]
    for entry in range(len(rule.priority)):
        target.priority[entry] = rule.priority[entry]
    if MIXING:
        for position in range(len(rule.patience_ns)):
            target.patience_ns[position] = rule.patience_ns[position]
    for position in range(len(rule.enter)):
        target.enter[position] = rule.enter[position]


def climbing_scheduler(problem: Problem, *, reserves: bool = False, room: Room = NO_ROOM) -> SchedulerState:
    """The problem's scheduler for climbs, which mixes fused and split backwards where that can pay.

    With reserves no rule strands itself, but fewer F may start.

    Raises:
        Unsupported: a rank's memory limit does not hold one microbatch.
    """
    scheduler, count = scheduler_of(problem, room=room), len(problem.stages)
    nothing = (0,) * count
    set_rule(scheduler, problem, Rule(priority=((0, 0, 0),) * count, in_flight=(None,) * count, weight_lag=nothing, foresight=True))
    scheduler.settings[0].mixes = int(fusing_saves_time(problem))
    for rank in scheduler.ranks if not reserves else ():
        rank.reserves = -1
    return scheduler


class Climber:
    """The kernel at work on one problem, for one thread."""

    def __init__(self, scheduler: SchedulerState, *, plain: bool = False, entry: Entry = NO_ENTRY) -> None:
        """Waits until the kernel is compiled, unless it is to run plain. It has a copy of the scheduler, unless it is plain."""
        self.plain, self._entry = plain, entry
        self._lists, self.scheduler = scheduler, scheduler if plain else as_arrays(scheduler)
        self._climb = climb if plain else compiled(climb_of(scheduler))
        most_cap = [max(1, count) for count in count_by_stage(scheduler)]
        self._most_cap = most_cap if plain else np.array(most_cap, np.int64)
        self._longest_ns = longest_op_ns(scheduler)
        levels_ns = list(levels_ns_of(self._longest_ns))
        self._levels_ns = levels_ns if plain else np.array(levels_ns, np.int64)
        self.paid = np.zeros(len(MOVES), np.int64)

    def run(self, rule: PackedRule) -> int:
        """The end of the rule's schedule, which `schedule` makes then."""
        return self.climb(rule, 0, 0, 0.0, np.zeros(1, np.bool_))

    def climb(
        self,
        rule: PackedRule,
        evaluations: int,
        seed: int,
        heat: float,
        stop: NDArray[np.bool_],
        chances: dict[int, int] = CHANCES,
    ) -> int:
        """The best end of that many rules beside this one, by moves with these chances; `rule` is changed to the best."""
        copies = [rule.copy() for _ in range(3)]
        draws = draw(seed, DRAWS * evaluations)
        if self.plain:
            copies, draws = list(map(_as_lists, copies)), _as_lists(draws)
        best, now, tried = copies
        moves = np.repeat(np.array(list(chances)), list(chances.values()))
        ranges = 2, 3, 10, 59, self._longest_ns + 1
        given = (self._most_cap, self._levels_ns, self._entry, moves, self.paid, ranges, evaluations, draws, heat, stop)
        value = int(self._climb(Climb(self.scheduler, best, now, tried, *given)))
        for array, values in zip(rule, best, strict=True):
            array[:] = values
        return value

    def schedule(self) -> Schedule:
        """The schedule of the last `run`."""
        return list_schedule_of(self._lists if self.plain else read_back(self._lists, self.scheduler)).schedule


def _as_lists(given: Any) -> Any:
    """Arrays as lists, which plain Python reads faster; a tuple of them stays one."""
    if isinstance(given, tuple):
        return type(given)(*map(_as_lists, given))
    return given.tolist() if isinstance(given, np.ndarray) else given


def longest_op_ns(scheduler: SchedulerState) -> int:
    """The longest op."""
    longest_ns = 0
    costs = attrgetter("fused", "forward_ns", "backward_ns", "backward_input_ns", "weight_ns")
    for fused, forward_ns, backward_ns, backward_input_ns, weight_ns in set(map(costs, scheduler.blocks)):  # most are alike
        longest_ns = max(longest_ns, forward_ns, backward_ns if fused else max(backward_input_ns, weight_ns))
    return longest_ns


def levels_ns_of(longest_ns: int) -> tuple[int, int, int, int, int]:
    """What a block's patience may be, where the longest op takes this long: to split, to fuse, and three that depend on the run."""
    return -NEVER, NEVER, 0, longest_ns // 2, longest_ns


def policies(problem: Problem, scheduler: SchedulerState) -> list[NDArray[np.int64]]:
    """Patience of all positions, by policy; one without any entry where the scheduler does not mix.

    The scheduler is one of lists.

    Returns:
        None fused; all; where nothing waits for the gradient; where it comes half an op too late at most; those of the first
        stages, which send none; all but the last of each stage, 1 for the first of a path, 2 for the next, and so on.
    """
    if not scheduler.settings[0].mixes:
        return [np.zeros(0, np.int64)]
    depth = depth_by_stage(problem)
    none, every, first, steady = (
        np.full(len(scheduler.blocks), level_ns, np.int64) for level_ns in (-NEVER, NEVER, -NEVER, -NEVER)
    )
    for lane in scheduler.lanes:
        if lane.previous < 0:
            first[lane.first : lane.last] = NEVER
        steady[lane.first : max(lane.first, lane.last - depth[lane.stage] - 1)] = NEVER
    waits = [np.full(len(scheduler.blocks), level_ns, np.int64) for level_ns in levels_ns_of(longest_op_ns(scheduler))[2:4]]
    return [none, every, *waits, first, steady]
