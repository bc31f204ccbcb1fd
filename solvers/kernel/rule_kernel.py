"""The inner loop of the local search: a list scheduler over arrays, and a climb over its parameters; kernels, plain or compiled.

`run_rule` turns a rule, a set of parameters, into the order of all ops and its end; `climb` perturbs rules and keeps what is no
worse. Both work on plain arrays and know nothing of Problems; `schedc.solvers.search.local` packs and unpacks. A rule that strands
itself on memory is worth `STRANDED`, so the search moves away from it, and need not prove that it never happens.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from schedc.compiled import compiled, kernel
from schedc.solvers.kernel.draws import Draws, below, draw, fraction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["STRANDED", "Climber", "Facts", "Rule", "climb", "example_facts", "stop_flag"]

STRANDED = 1 << 62
F, B, W = 0, 1, 2
DRAWS = 32
"""Random numbers that an evaluation takes, at most but for rare cases."""


class Facts(NamedTuple):
    """A problem as flat arrays, or lists; per stage unless it says otherwise.

    Durations and transfers are per kind and stage, entry kind × stages + stage.
    """

    stage_rank: Any
    count: Any
    """How many microbatches visit the stage."""
    fed_by: Any
    """The stage before on the path, or -1."""
    feeds: Any
    duration: Any
    """With a fused backward, kind B is all of it."""
    occupancy: Any
    latency: Any
    resource: Any
    """The link or trunk of what the block sends, or -1."""
    resources: int
    gate: Any
    """When its all-gather lets its first F start."""
    tail: Any
    """What must follow its last op."""
    held: Any
    kept: Any
    limit: Any
    """Per rank, bytes."""
    first: Any
    """Per rank, its first entry of `mine`; one more at the end."""
    mine: Any
    """The stages of rank 0, those of rank 1, and so on."""
    split: bool
    span: bool
    """Whether each rank's clock starts with its first op (stage span), or at 0 (makespan)."""


@contextmanager
def stop_flag() -> Iterator[NDArray[np.bool_]]:
    """The `stop` of climbs in other threads: `stop.fill(True)` ends them after the evaluation at hand. It is set at the end."""
    stop = np.zeros(1, np.bool_)
    try:
        yield stop
    finally:
        stop.fill(True)


class Rule(NamedTuple):
    """The parameters of a schedule; changed in place by `climb`."""

    cap: Any
    """Per stage: at most this many microbatches between the start of F and the end of B."""
    lag: Any
    """Per stage: this many W are held back for later gaps."""
    priority: Any
    """Per kind and stage, entry kind × stages + stage: the smallest goes first."""
    look_ahead: Any
    """One entry: how long a rank may wait for an op that goes first."""


class Room(NamedTuple):
    """What `run_rule` writes."""

    order: Any
    """Per rank and position, codes kind × stages + stage; each rank has as many entries."""
    free: Any
    """Per rank, as the next six."""
    left: Any
    placed: Any
    begun: Any
    best_op: Any
    best_at: Any
    stale: Any
    done: Any
    """Per kind and stage."""
    link_free: Any
    """Per link or trunk."""
    forward_at: Any
    """Per stage and number of the microbatch on its stage, as the next."""
    backward_at: Any


def room_of(facts: Facts) -> Room:
    """Room for `run_rule` on this problem."""
    ranks, stages, most = len(facts.limit), len(facts.stage_rank), int(facts.count.max())
    ops = 3 * np.bincount(facts.stage_rank, facts.count, ranks).astype(np.int64)
    sizes = ranks * int(ops.max()), *(ranks,) * 7, 3 * stages, facts.resources, stages * most, stages * most
    return Room(*(np.zeros(size, np.int64) for size in sizes))


def example_facts() -> Facts:
    """Facts of no problem, but of the right types."""
    row = np.zeros(1, np.int64)
    return Facts(row, row, row, row, row, row, row, row, 1, row, row, row, row, row, row, row, False, False)


@kernel()
def run_rule(facts: Facts, rule: Rule, room_for: Room) -> Any:
    """The end of the schedule that the rule gives, and its ops in `room_for.order`.

    Always starts the op that can start earliest; among a rank's ops that can start within `look_ahead` of its earliest, the one of
    smallest priority. Ops of one stage and kind run in microbatch order. Of a stage's weight gradients, `lag` are held back for
    later gaps, unless memory is full or no backward is left.
    """
    stage_rank, count, fed_by, feeds, gate, tail = facts.stage_rank, facts.count, facts.fed_by, facts.feeds, facts.gate, facts.tail
    duration, occupancy, latency, resource = facts.duration, facts.occupancy, facts.latency, facts.resource
    held, kept, limit, split = facts.held, facts.kept, facts.limit, facts.split
    cap, lag, priority, look_ahead = rule.cap, rule.lag, rule.priority, rule.look_ahead[0]
    order, free, room, placed, begun = room_for.order, room_for.free, room_for.left, room_for.placed, room_for.begun
    best_op, best_at, stale, done = room_for.best_op, room_for.best_at, room_for.stale, room_for.done
    link_free, forward_at, backward_at = room_for.link_free, room_for.forward_at, room_for.backward_at
    stages, ranks = len(stage_rank), len(limit)
    most, width = len(forward_at) // stages, len(order) // ranks
    first, mine = facts.first, facts.mine
    for r in range(ranks):
        free[r] = placed[r] = begun[r] = 0
        room[r] = limit[r]
        best_op[r], best_at[r], stale[r] = -1, STRANDED, 1
    for link in range(len(link_free)):
        link_free[link] = 0
    total = 0
    for s in range(stages):
        done[s] = done[stages + s] = done[2 * stages + s] = 0
        total += count[s]
        for n in range(count[s]):
            forward_at[s * most + n] = gate[s] if fed_by[s] < 0 else -1
            backward_at[s * most + n] = -1
    total *= 3 if split else 2
    end = 0
    for _ in range(total):
        for r in range(ranks):
            if stale[r] == 0:
                continue
            stale[r] = 0
            earliest = STRANDED
            full = False  # a forward is there that memory does not admit
            for entry in range(first[r], first[r + 1]):
                s = mine[entry]
                if done[s] < count[s] and forward_at[s * most + done[s]] >= 0 and held[s] > room[r]:
                    full = True
            for entry in range(first[r], first[r + 1]):
                s = mine[entry]
                n = done[s]
                if n < count[s] and forward_at[s * most + n] >= 0 and held[s] <= room[r] and n - done[stages + s] < cap[s]:
                    earliest = min(earliest, max(free[r], forward_at[s * most + n]))
                n = done[stages + s]
                if n < done[s] and backward_at[s * most + n] >= 0:
                    earliest = min(earliest, max(free[r], backward_at[s * most + n]))
                waiting = done[stages + s] - done[2 * stages + s]
                if split and waiting > 0 and (full or waiting > lag[s] or done[stages + s] == count[s]):
                    earliest = min(earliest, free[r])
            best_op[r] = -1
            best_at[r] = STRANDED
            if earliest == STRANDED:
                continue
            chosen = -1
            chosen_at, chosen_priority = earliest, 0
            for entry in range(first[r], first[r + 1]):
                s = mine[entry]
                for kind in range(3):
                    n = done[kind * stages + s]
                    if kind == F:
                        if not (
                            n < count[s] and forward_at[s * most + n] >= 0 and held[s] <= room[r] and n - done[stages + s] < cap[s]
                        ):
                            continue
                        at = max(free[r], forward_at[s * most + n])
                    elif kind == B:
                        if not (n < done[s] and backward_at[s * most + n] >= 0):
                            continue
                        at = max(free[r], backward_at[s * most + n])
                    else:
                        waiting = done[stages + s] - n
                        if not (split and waiting > 0 and (full or waiting > lag[s] or done[stages + s] == count[s])):
                            continue
                        at = free[r]
                    if at > earliest + look_ahead:
                        continue
                    rank_of_op = priority[kind * stages + s]
                    if chosen < 0 or rank_of_op < chosen_priority or (rank_of_op == chosen_priority and at < chosen_at):
                        chosen, chosen_at, chosen_priority = kind * stages + s, at, rank_of_op
            best_op[r] = chosen
            best_at[r] = chosen_at
        r = 0
        for other in range(1, ranks):
            if best_at[other] < best_at[r]:
                r = other
        if best_at[r] == STRANDED:
            return STRANDED
        kind, s = best_op[r] // stages, best_op[r] % stages
        n = done[kind * stages + s]
        if facts.span and placed[r] == 0:
            begun[r] = best_at[r]
        at = best_at[r] + duration[kind * stages + s]
        done[kind * stages + s] += 1
        free[r] = at
        order[r * width + placed[r]] = kind * stages + s
        placed[r] += 1
        stale[r] = 1
        if kind == F:
            room[r] -= held[s]
            if feeds[s] < 0:
                backward_at[s * most + n] = at
            to = feeds[s]
        elif kind == B:
            room[r] += held[s] - (kept[s] if split else 0)
            to = fed_by[s]
        else:
            room[r] += kept[s]
            to = -1
        if kind == (W if split else B) and n + 1 == count[s]:
            end = max(end, at + tail[s] - begun[r])
        if to >= 0:
            link = resource[kind * stages + s]
            arrival = at
            if link >= 0:
                left = max(at, link_free[link]) + occupancy[kind * stages + s]
                link_free[link] = left
                arrival = left + latency[kind * stages + s]
            if kind == F:
                forward_at[to * most + n] = max(arrival, gate[to])
            else:
                backward_at[to * most + n] = arrival
            stale[stage_rank[to]] = 1
    return end


def _example() -> tuple[Any, ...]:
    facts, row = example_facts(), np.zeros(1, np.int64)
    rule = Rule(row, row, row, row)
    return facts, rule, rule, rule, room_of(facts), row, (0,) * 5, 0, draw(0, 1), 0.0, np.zeros(1, np.bool_)


@kernel(_example)
def climb(
    facts: Facts,
    rule: Rule,
    now_rule: Rule,
    tried: Rule,
    room: Room,
    most_cap: Any,
    ranges: Any,
    evaluations: int,
    draws: Draws,
    heat: float,
    stop: Any,
) -> Any:
    """Perturb the rule this many times and keep what is no worse, or little worse while hot; the best end, its rule in `rule`.

    `ranges` has 2, 3, the 12 chances of moves, the 59 steps of a priority and how many look-aheads there are; from outside, as
    numba would compile `below` anew for each number written here. With no evaluations it runs the rule itself. `now_rule` and
    `tried` are room for rules. `stop[0]` set to true, by another thread, ends it after the evaluation at hand.
    """
    stages = len(facts.stage_rank)
    two, three, moves, steps, looks = ranges
    now = run_rule(facts, rule, room)
    best = now
    _copy(rule, now_rule)
    for number in range(evaluations):
        if stop[0]:
            break
        _copy(now_rule, tried)
        for _ in range(1 + below(three, draws)):
            s = below(stages, draws)
            what = below(moves, draws)
            if what < 4:
                change = 1 + below(two, draws)
                if below(two, draws) == 0:
                    change = -change
                tried.cap[s] = min(most_cap[s], max(1, tried.cap[s] + change))
            elif what < 5:
                change = 2 * below(two, draws) - 1
                for other in range(stages):
                    tried.cap[other] = min(most_cap[other], max(1, tried.cap[other] + change))
            elif what < 8:
                kind = below(three, draws)
                change = 1 + below(steps, draws)
                if below(two, draws) == 0:
                    change = -change
                tried.priority[kind * stages + s] += change
            elif what < 9:
                other = below(stages, draws)
                kind = below(three, draws)
                kept = tried.priority[kind * stages + s]
                tried.priority[kind * stages + s] = tried.priority[kind * stages + other]
                tried.priority[kind * stages + other] = kept
            elif what < 11:
                change = 2 * below(two, draws) - 1
                if below(two, draws):
                    tried.lag[s] = max(0, tried.lag[s] + change)
                else:
                    for other in range(stages):
                        tried.lag[other] = max(0, tried.lag[other] + change)
            elif below(two, draws):
                tried.look_ahead[0] = below(looks, draws)
            else:
                tried.look_ahead[0] = 0
        value = run_rule(facts, tried, room)
        warm = heat * (1.0 - number / evaluations)
        if value <= now or (value < STRANDED and warm > 0 and fraction(draws) < math.exp((now - value) / (warm * best))):
            now = value
            _copy(tried, now_rule)
            if value < best:
                best = value
                _copy(tried, rule)
    return best


@kernel()
def _copy(rule: Rule, target: Rule) -> None:
    target.look_ahead[0] = rule.look_ahead[0]
    for s in range(len(rule.cap)):
        target.cap[s], target.lag[s] = rule.cap[s], rule.lag[s]
    for entry in range(len(rule.priority)):
        target.priority[entry] = rule.priority[entry]


class Climber:
    """The kernel at work on one problem, for one thread."""

    def __init__(self, facts: Facts, *, plain: bool = False) -> None:
        """Waits until the kernel is compiled, unless it is to run plain."""
        self.plain = plain
        self._climb = climb if plain else compiled(climb)
        self._ranges = 2, 3, 12, 59, int(facts.duration.max()) + 1
        self._given = [facts, room_of(facts), np.maximum(facts.count, 1)]
        if plain:
            self._given = [_as_lists(each) for each in self._given]

    def run(self, rule: Rule) -> int:
        """The end of the rule's schedule, whose ops `codes` has then."""
        return self.climb(rule, 0, 0, 0.0, np.zeros(1, np.bool_))

    def climb(self, rule: Rule, evaluations: int, seed: int, heat: float, stop: NDArray[np.bool_]) -> int:
        """The best end of that many rules beside this one; `rule` is changed to the best."""
        facts, room, most_cap = self._given
        copies = [Rule(*(each.copy() for each in rule)) for _ in range(3)]
        draws = draw(seed, DRAWS * evaluations)
        if self.plain:
            copies, draws = list(map(_as_lists, copies)), _as_lists(draws)
        best, now, tried = copies
        value = int(self._climb(facts, best, now, tried, room, most_cap, self._ranges, evaluations, draws, heat, stop))
        for array, values in zip(rule, best, strict=True):
            array[:] = values
        return value

    def codes(self) -> list[list[int]]:
        """Each rank's ops as codes kind × stages + stage, of the last `run`."""
        _, room, _ = self._given
        order, placed = list(map(int, room.order)), room.placed
        width = len(order) // len(placed)
        return [order[rank * width : rank * width + int(count)] for rank, count in enumerate(placed)]


def _as_lists(given: Any) -> Any:
    """Arrays as lists, which plain Python reads faster; a tuple of them stays one."""
    if isinstance(given, tuple):
        return type(given)(*map(_as_lists, given))
    return given.tolist() if isinstance(given, np.ndarray) else given
