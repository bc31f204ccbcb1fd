"""The inner loop of the local search, for numba: a list scheduler over arrays, and a climb over its parameters.

`run_rule` turns one set of parameters into the order of all ops and its end; `climb` perturbs parameters and keeps what is no
worse. Both work on plain arrays and know nothing of Problems; `schedc.solvers.search.local` packs and unpacks. A rule that strands
itself on memory is worth `STRANDED`, so the search moves away from it, and need not prove that it never happens.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["STRANDED", "Facts", "climb", "room_for_orders", "run_rule", "stop_flag"]

STRANDED = np.int64(1) << 62
F, B, W = 0, 1, 2


class Facts(NamedTuple):
    """A problem as arrays; per stage unless it says otherwise. Durations and the transfers are [kind, stage]."""

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


@numba.njit(cache=True, nogil=True)
def room_for_orders(facts: Facts) -> Any:
    """Room for the codes of each rank's ops, [rank, position]; a code is below 3 × stages, of which there may be a million."""
    most = np.zeros(len(facts.limit), np.int64)
    for s in range(len(facts.stage_rank)):
        most[facts.stage_rank[s]] += 3 * facts.count[s]
    return np.zeros((len(most), most.max()), np.int32)


@numba.njit(cache=True, nogil=True)
def run_rule(facts: Facts, cap: Any, lag: Any, priority: Any, look_ahead: Any, order: Any) -> Any:
    """The end of the schedule that the rule gives, and its ops in `order` (see `room_for_orders`), as codes kind × stages + stage.

    Always starts the op that can start earliest; among a rank's ops that can start within `look_ahead` of its earliest, the one of
    smallest priority. Ops of one stage and kind run in microbatch order. Of a stage's weight gradients, `lag` are held back for
    later gaps, unless memory is full or no backward is left.
    """
    stage_rank, count, fed_by, feeds, gate, tail = facts.stage_rank, facts.count, facts.fed_by, facts.feeds, facts.gate, facts.tail
    duration, occupancy, latency, resource = facts.duration, facts.occupancy, facts.latency, facts.resource
    held, kept, limit, split = facts.held, facts.kept, facts.limit, facts.split
    stages, ranks = len(stage_rank), len(limit)
    most = count.max()
    free = np.zeros(ranks, np.int64)
    link_free = np.zeros(facts.resources, np.int64)
    room = limit.copy()
    done = np.zeros((3, stages), np.int64)
    forward_at = np.full((stages, most), -1, np.int64)
    backward_at = np.full((stages, most), -1, np.int64)
    placed = np.zeros(ranks, np.int64)
    begun = np.zeros(ranks, np.int64)
    best_op = np.full(ranks, -1, np.int64)
    best_at = np.full(ranks, STRANDED, np.int64)
    total = 0
    for s in range(stages):
        total += count[s]
        if fed_by[s] < 0:
            for n in range(count[s]):
                forward_at[s, n] = gate[s]
    total *= 3 if split else 2
    stale = np.ones(ranks, np.bool_)
    end = np.int64(0)
    for _ in range(total):
        for r in range(ranks):
            if not stale[r]:
                continue
            stale[r] = False
            earliest = STRANDED
            full = False  # a forward is there that memory does not admit
            for s in range(stages):
                if stage_rank[s] == r and done[F, s] < count[s] and forward_at[s, done[F, s]] >= 0 and held[s] > room[r]:
                    full = True
            for s in range(stages):
                if stage_rank[s] != r:
                    continue
                n = done[F, s]
                if n < count[s] and forward_at[s, n] >= 0 and held[s] <= room[r] and n - done[B, s] < cap[s]:
                    earliest = min(earliest, max(free[r], forward_at[s, n]))
                n = done[B, s]
                if n < done[F, s] and backward_at[s, n] >= 0:
                    earliest = min(earliest, max(free[r], backward_at[s, n]))
                waiting = done[B, s] - done[W, s]
                if split and waiting > 0 and (full or waiting > lag[s] or done[B, s] == count[s]):
                    earliest = min(earliest, free[r])
            best_op[r] = -1
            best_at[r] = STRANDED
            if earliest == STRANDED:
                continue
            chosen: Any = np.int64(-1)
            chosen_at, chosen_priority = earliest, np.int64(0)
            for s in range(stages):
                if stage_rank[s] != r:
                    continue
                for kind in range(3):
                    n = done[kind, s]
                    if kind == F:
                        if not (n < count[s] and forward_at[s, n] >= 0 and held[s] <= room[r] and n - done[B, s] < cap[s]):
                            continue
                        at = max(free[r], forward_at[s, n])
                    elif kind == B:
                        if not (n < done[F, s] and backward_at[s, n] >= 0):
                            continue
                        at = max(free[r], backward_at[s, n])
                    else:
                        waiting = done[B, s] - n
                        if not (split and waiting > 0 and (full or waiting > lag[s] or done[B, s] == count[s])):
                            continue
                        at = free[r]
                    if at > earliest + look_ahead:
                        continue
                    rank_of_op = priority[kind, s]
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
        n = done[kind, s]
        if facts.span and placed[r] == 0:
            begun[r] = best_at[r]
        at = best_at[r] + duration[kind, s]
        done[kind, s] += 1
        free[r] = at
        order[r, placed[r]] = kind * stages + s
        placed[r] += 1
        stale[r] = True
        if kind == F:
            room[r] -= held[s]
            if feeds[s] < 0:
                backward_at[s, n] = at
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
            link = resource[kind, s]
            arrival = at
            if link >= 0:
                left = max(at, link_free[link]) + occupancy[kind, s]
                link_free[link] = left
                arrival = left + latency[kind, s]
            if kind == F:
                forward_at[to, n] = max(arrival, gate[to])
            else:
                backward_at[to, n] = arrival
            stale[stage_rank[to]] = True
    return end


@numba.njit(cache=True, nogil=True)
def climb(
    facts: Facts,
    cap: Any,
    lag: Any,
    priority: Any,
    look_ahead: Any,
    most_cap: Any,
    longest: int,
    evaluations: int,
    seed: int,
    heat: float,
    stop: Any,
) -> tuple[Any, Any]:
    """Perturb the rule this many times and keep what is no worse, or little worse while hot; the best end and its rule.

    `cap`, `lag`, `priority` and the returned look-ahead are changed in place to the best found. `stop[0]` set to true, by another
    thread, ends it after the evaluation at hand.
    """
    np.random.seed(seed)
    stages = len(facts.stage_rank)
    order = room_for_orders(facts)
    now_cap, now_lag, now_priority, now_look = cap.copy(), lag.copy(), priority.copy(), look_ahead
    now = run_rule(facts, now_cap, now_lag, now_priority, now_look, order)
    best = now
    best_look = look_ahead
    for turn in range(evaluations):
        if stop[0]:
            break
        try_cap, try_lag, try_priority, try_look = now_cap.copy(), now_lag.copy(), now_priority.copy(), now_look
        moves = 1 + np.random.randint(3)
        for _ in range(moves):
            s = np.random.randint(stages)
            what = np.random.randint(12)
            if what < 4:
                change = np.random.randint(1, 3) * (1 if np.random.randint(2) else -1)
                try_cap[s] = min(most_cap[s], max(1, try_cap[s] + change))
            elif what < 5:
                change = 1 if np.random.randint(2) else -1
                for other in range(stages):
                    try_cap[other] = min(most_cap[other], max(1, try_cap[other] + change))
            elif what < 8:
                kind = np.random.randint(3)
                try_priority[kind, s] += np.random.randint(1, 60) * (1 if np.random.randint(2) else -1)
            elif what < 9:
                other = np.random.randint(stages)
                kind = np.random.randint(3)
                try_priority[kind, s], try_priority[kind, other] = try_priority[kind, other], try_priority[kind, s]
            elif what < 11:
                change = 1 if np.random.randint(2) else -1
                if np.random.randint(2):
                    try_lag[s] = max(0, try_lag[s] + change)
                else:
                    for other in range(stages):
                        try_lag[other] = max(0, try_lag[other] + change)
            else:
                try_look = np.random.randint(0, longest + 1) if np.random.randint(2) else np.int64(0)
        value = run_rule(facts, try_cap, try_lag, try_priority, try_look, order)
        warm = heat * (1.0 - turn / evaluations)
        if value <= now or (value < STRANDED and warm > 0 and np.random.random() < np.exp((now - value) / (warm * best))):
            now, now_cap, now_lag, now_priority, now_look = value, try_cap, try_lag, try_priority, try_look
            if value < best:
                best, best_look = value, try_look
                cap[:] = try_cap
                lag[:] = try_lag
                priority[:] = try_priority
    return best, best_look
