"""Ranks that choose their next op, run nanosecond by nanosecond: docs/choosing.md, written anew.

In each nanosecond ops end, then idle ranks choose, then links and trunks begin what they can; and again, where something has taken
no time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oracles.waiting_engines import Clock, Message, ends, made, needed
from schedc.ir.ops import Kind, Op

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

LONG_NS = 1_500


@dataclass
class _Rank:
    queues: list[list[Op]]
    room: float
    held: int = 0
    running: Op | None = None
    end_ns: int = 0
    ran: list[Op] = field(default_factory=list)
    scatters: list[int] = field(default_factory=list)
    """The stages in the plan's order of their reduce-scatters."""


def run_choosing(
    problem: Problem,
    schedule: Schedule,
    rooms: Sequence[float],
    later: Sequence[tuple[int, Problem]] = (),
    planned_ns: Mapping[Op, int] | None = None,
) -> tuple[dict[Op, int], list[list[Op]], int]:
    """The start of each op, the order in which each rank ran its ops, and the makespan.

    Args:
        problem: at the beginning.
        schedule: the plan's.
        rooms: of each rank, what it may hold.
        later: what things cost from later times on.
        planned_ns: before which no op runs in front of others of the plan; None: whenever it can.
    """
    clock = Clock(problem, schedule)
    ranks = [_rank(problem, order, room) for order, room in zip(schedule.orders, rooms, strict=True)]
    place = {op: at for order in schedule.orders for at, op in enumerate(order)}
    starts_ns: dict[Op, int] = {}
    arrival_ns: dict[Message, int] = {}
    newest_ns: dict[tuple[int, int], int] = {}
    free_ns: dict[object, int] = {}
    lines: dict[object, list[tuple[int, int, int, Message | int]]] = {}
    collectives_ns = 0
    weights_ns: dict[int, int] = {}
    parallel = problem.data_parallel
    if parallel is not None and parallel.all_gather_ns:
        for first, order in enumerate(schedule.orders):
            where: object = parallel.trunk or ("collectives", first)
            for index in dict.fromkeys(op.stage for op in order if op.kind is Kind.F):
                free_ns[where] = weights_ns[index] = free_ns.get(where, 0) + parallel.all_gather_ns[index]
        collectives_ns = max(weights_ns.values())

    def costs_at(time_ns: int) -> Problem:
        return next((each for from_ns, each in reversed(later) if from_ns <= time_ns), problem)

    for now_ns in range(LONG_NS):
        again = True
        while again:  # once for each delta within the nanosecond
            again = False
            for number, rank in enumerate(ranks):
                op = rank.running
                if op is None or rank.end_ns > now_ns:
                    continue
                rank.running, again = None, True
                if _ends_block(schedule, op):
                    rank.held -= _released(problem, op)
                message = made(clock, op)
                if message is not None:
                    pair = ends(problem, message)
                    lines.setdefault(problem.link(*pair).trunk or pair, []).append((now_ns, number, 0, message))
                rank.ran.append(op)
                while parallel is not None and rank.scatters and not _unfinished(rank, rank.scatters[0]):
                    lines.setdefault(parallel.trunk or ("collectives", number), []).append(
                        (now_ns, number, 1, rank.scatters.pop(0))
                    )
            for rank in ranks:
                if rank.running is not None:
                    continue
                ready = [
                    queue[0]
                    for queue in rank.queues
                    if queue
                    and _leaves_room(clock, queue[0], rank)
                    and _ready(clock, queue[0], rank, arrival_ns, now_ns)
                    and now_ns >= weights_ns.get(queue[0].stage, 0)
                ]
                next_by_plan = min((queue[0] for queue in rank.queues if queue), key=place.__getitem__, default=None)
                if planned_ns is not None:
                    ready = [op for op in ready if op == next_by_plan or planned_ns[op] <= now_ns]
                if ready:
                    op = min([op for op in ready if op.kind is not Kind.W] or ready, key=place.__getitem__)
                    next(queue for queue in rank.queues if queue and queue[0] == op).pop(0)
                    starts_ns[op] = now_ns
                    rank.running, rank.end_ns = op, now_ns + schedule.duration_ns(costs_at(now_ns), op)
                    rank.held += _taken(problem, op)
                    again = True
            for where, line in lines.items():
                line.sort(key=lambda entry: entry[:3])
                if line and free_ns.get(where, 0) <= now_ns:
                    since_ns, _, _, what = line.pop(0)
                    again = True
                    if isinstance(what, int):
                        assert parallel is not None
                        free_ns[where] = now_ns + parallel.reduce_scatter_ns[what]
                        collectives_ns = max(collectives_ns, free_ns[where])
                        continue
                    pair = ends(problem, what)
                    link = costs_at(since_ns).link(*pair)
                    size = problem.message_bytes(Op(Kind.B if what.is_gradient else Kind.F, what.from_stage, what.microbatch))
                    free_ns[where] = now_ns + link.occupancy_ns(size)
                    arrival_ns[what] = newest_ns[pair] = max(free_ns[where] + link.latency_ns, newest_ns.get(pair, 0))
        if not any(rank.running or any(rank.queues) for rank in ranks) and not any(lines.values()):
            return starts_ns, [rank.ran for rank in ranks], max(now_ns, collectives_ns)
    raise AssertionError("the ranks wait for each other indefinitely")


def _rank(problem: Problem, order: Sequence[Op], room: float) -> _Rank:
    kinds = (Kind.F,), (Kind.B, Kind.BW), (Kind.W,)
    last = {op.stage: at for at, op in enumerate(order) if op.kind in (Kind.W, Kind.BW)}
    scatters = sorted(last, key=last.__getitem__) if problem.data_parallel else []
    return _Rank([[op for op in order if op.kind in kind] for kind in kinds], room, scatters=scatters)


def _ends_block(schedule: Schedule, op: Op) -> bool:
    parts = schedule.parts_of(op.kind, op.stage)
    return op.part < 0 or parts is None or op.part == len(parts.shares) - 1


def _leaves_room(clock: Clock, op: Op, rank: _Rank) -> bool:
    """Whether all that it runs in front of will find room: of what the plan holds then, and all that its own queue leaves."""
    problem, schedule = clock.problem, clock.schedule
    order = next(each for each in schedule.orders if op in each)
    mine = (Kind.F,) if op.kind is Kind.F else (Kind.B, Kind.BW)
    held, needs, leaves = 0, [], []
    for each in order[: order.index(op) + 1]:
        before, held = held, held + _taken(problem, each)
        needs.append(held)
        if _ends_block(schedule, each):
            held -= _released(problem, each)
        leaves.append(max(0, held - before) if each.kind in mine else 0)
    if op.kind is Kind.W or not leaves[-1]:
        return True
    return all(
        each in rank.ran or each.kind is Kind.W or each.kind in mine or needs[at] + sum(leaves[at:]) <= rank.room
        for at, each in enumerate(order[: order.index(op)])
        if _taken(problem, each)
    )


def _released(problem: Problem, op: Op) -> int:
    stage = problem.stages[op.stage]
    whole, after = stage.activation_bytes + stage.recomputed_bytes, stage.activation_after_input_bytes
    return {Kind.F: 0, Kind.B: whole - after, Kind.W: after, Kind.BW: whole}[op.kind]


def _taken(problem: Problem, op: Op) -> int:
    stage, first = problem.stages[op.stage], op.part <= 0
    return {Kind.F: stage.activation_bytes, Kind.W: 0}.get(op.kind, stage.recomputed_bytes) if first else 0


def _unfinished(rank: _Rank, stage: int) -> bool:
    """Whether a W or BW of the stage is still to end."""
    waiting = [op for queue in rank.queues for op in queue] + ([] if rank.running is None else [rank.running])
    return any(op.stage == stage and op.kind in (Kind.W, Kind.BW) for op in waiting)


def _ready(clock: Clock, op: Op, rank: _Rank, arrival_ns: dict[Message, int], now_ns: int) -> bool:
    message = needed(clock, op)
    if message is not None and arrival_ns.get(message, now_ns + 1) > now_ns:
        return False
    before = {Kind.F: (), Kind.B: (Kind.F,), Kind.BW: (Kind.F,), Kind.W: (Kind.B,)}[op.kind]
    there = {(each.kind, each.stage, each.microbatch) for each in rank.ran if _ends_block(clock.schedule, each)}
    return all((kind, op.stage, op.microbatch) in there for kind in before) and rank.held + _taken(clock.problem, op) <= rank.room
