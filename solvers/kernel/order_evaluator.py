"""Local search over the orders themselves, for numba: time an order, move an op, keep what is no worse.

It works on the arrays of `rule_kernel.Facts` and on codes (kind × stages + stage) × most + n, n the microbatch's
number on its stage and most the largest count of any stage. A trunk that several ranks share is served in the order of this pass.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from schedc.solvers.kernel.rule_kernel import STRANDED, B, F, W

__all__ = ["polish", "time_orders"]


@numba.njit(cache=True, nogil=True)
def time_orders(facts: Any, orders: Any, lengths: Any, ready: Any) -> Any:
    """The end of the orders; `STRANDED` if they deadlock, run an op before its needs, or exceed a memory limit.

    Args:
        facts: the problem.
        orders: [rank, position], codes.
        lengths: per rank, how many.
        ready: [2, stages, most], scratch: when the input of F, and of B, is there; -1 while it is not.
    """
    stages, ranks, most = len(facts.stage_rank), len(facts.limit), ready.shape[2]
    split = facts.split
    ready[:] = -1
    for s in range(stages):
        if facts.fed_by[s] < 0:
            for n in range(facts.count[s]):
                ready[0, s, n] = facts.gate[s]
    done_backward = np.full((stages, most), -1, np.int64)
    left = np.zeros(stages, np.int64) + facts.count
    at = np.zeros(ranks, np.int64)
    free = np.zeros(ranks, np.int64)
    begun = np.zeros(ranks, np.int64)
    room = facts.limit.copy()
    link_free = np.zeros(facts.resources, np.int64)
    end = np.int64(0)
    moving = True
    while moving:
        moving = False
        for r in range(ranks):
            while at[r] < lengths[r]:
                code = orders[r, at[r]]
                n = code % most
                s = (code // most) % stages
                kind = code // (most * stages)
                start = done_backward[s, n] if kind == W else ready[kind, s, n]
                if start < 0:
                    break
                if kind == F:
                    room[r] -= facts.held[s]
                    if room[r] < 0:
                        return STRANDED
                if facts.span and at[r] == 0:
                    begun[r] = start
                now = max(start, free[r]) + facts.duration[kind, s]
                free[r] = now
                at[r] += 1
                moving = True
                to = -1
                if kind == F:
                    to = facts.feeds[s]
                    if to < 0:
                        ready[1, s, n] = now
                elif kind == B:
                    room[r] += facts.held[s] - (facts.kept[s] if split else 0)
                    done_backward[s, n] = now
                    to = facts.fed_by[s]
                else:
                    room[r] += facts.kept[s]
                if kind == (W if split else B):
                    left[s] -= 1
                    if left[s] == 0:
                        end = max(end, now + facts.tail[s] - begun[r])
                if to >= 0:
                    link = facts.resource[kind, s]
                    if link >= 0:
                        now = max(now, link_free[link]) + facts.occupancy[kind, s]
                        link_free[link] = now
                        now += facts.latency[kind, s]
                    ready[kind, to, n] = max(now, facts.gate[to]) if kind == F else now
    for r in range(ranks):
        if at[r] < lengths[r]:
            return STRANDED
    return end


@numba.njit(cache=True, nogil=True)
def polish(facts: Any, orders: Any, lengths: Any, evaluations: int, seed: int, heat: float, reach: int, stop: Any) -> Any:
    """Move single ops within their rank's order this many times; `orders` becomes the best found, whose end is returned.

    `stop[0]` set to true, by another thread, ends it after the evaluation at hand.
    """
    np.random.seed(seed)
    most = facts.count.max()
    ready = np.zeros((2, len(facts.stage_rank), most), np.int64)
    now = time_orders(facts, orders, lengths, ready)
    best, best_orders, current = now, orders.copy(), orders.copy()
    for turn in range(evaluations):
        if stop[0]:
            break
        r = np.random.randint(len(lengths))
        if lengths[r] < 2:
            continue
        i = np.random.randint(lengths[r])
        j = min(lengths[r] - 1, max(0, i + np.random.randint(1, reach + 1) * (1 if np.random.randint(2) else -1)))
        if i == j:
            continue
        _move(current[r], i, j)
        value = time_orders(facts, current, lengths, ready)
        warm = heat * (1.0 - turn / evaluations)
        if value <= now or (value < STRANDED and warm > 0 and np.random.random() < np.exp((now - value) / (warm * best))):
            now = value
            if value < best:
                best = value
                best_orders[:] = current
        else:
            _move(current[r], j, i)
    orders[:] = best_orders
    return best


@numba.njit(cache=True, nogil=True)
def _move(order: Any, i: int, j: int) -> None:
    code = order[i]
    step = 1 if j > i else -1
    for position in range(i, j, step):
        order[position] = order[position + step]
    order[j] = code
