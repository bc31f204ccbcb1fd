"""A list scheduler in unit times, for the known schedules that their papers give as pictures of equal blocks.

Takes a problem, the priority of each op and the ops that must wait for an earlier release; gives a Schedule with fused backwards
and its length.
F takes one unit of time and BW two, whatever they cost: the order is the template's, not the job's. An idle rank starts its ready
op of the lowest priority value; as every op in the order was once started, no two ranks can wait for each other.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from schedc.ir.ops import Kind, Op
from schedc.ir.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from schedc.ir.problem import Problem

__all__ = ["list_order"]

UNITS = {Kind.F: 1, Kind.BW: 2}


def list_order(problem: Problem, priority: Callable[[Op], tuple[int, ...]], waits_for: Mapping[Op, Op]) -> tuple[int, Schedule]:
    """How long an event-driven run with unit times takes, and its schedule.

    Args:
        problem: only its stages' ranks, its paths and its microbatches matter.
        priority: of each op; the lowest goes first among those that are ready when their rank is idle.
        waits_for: for some F, a BW that must have ended before it, beside what it needs anyway: the cap on activations in flight.
    """
    missing: dict[Op, int] = {}
    followers: defaultdict[Op, list[Op]] = defaultdict(list)
    for op, needs in _needs(problem).items():
        needs = [*needs, waits_for[op]] if op in waits_for else needs
        missing[op] = len(needs)
        for need in needs:
            followers[need].append(op)

    ready: list[list[tuple[tuple[int, ...], Op]]] = [[] for _ in range(problem.ranks)]
    orders: list[list[Op]] = [[] for _ in range(problem.ranks)]
    idle = [True] * problem.ranks
    running: list[tuple[int, int, Op]] = []
    for op, count in missing.items():
        if count == 0:
            heappush(ready[problem.rank_of(op)], (priority(op), op))
    now = 0
    while True:
        for rank in range(problem.ranks):
            if idle[rank] and ready[rank]:
                _, op = heappop(ready[rank])
                orders[rank].append(op)
                idle[rank] = False
                heappush(running, (now + UNITS[op.kind], rank, op))
        if not running:
            return now, Schedule(orders=tuple(map(tuple, orders)))
        now = running[0][0]
        while running and running[0][0] == now:
            _, rank, op = heappop(running)
            idle[rank] = True
            for follower in followers[op]:
                missing[follower] -= 1
                if missing[follower] == 0:
                    heappush(ready[problem.rank_of(follower)], (priority(follower), follower))


def _needs(problem: Problem) -> dict[Op, list[Op]]:
    needs: dict[Op, list[Op]] = {}
    for microbatch in range(problem.microbatches):
        path = problem.path(microbatch)
        for index, stage in enumerate(path):
            forward, backward = Op(Kind.F, stage, microbatch), Op(Kind.BW, stage, microbatch)
            needs[forward] = [Op(Kind.F, path[index - 1], microbatch)] if index else []
            needs[backward] = [Op(Kind.BW, path[index + 1], microbatch)] if index + 1 < len(path) else [forward]
    return needs
