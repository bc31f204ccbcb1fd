"""Online dispatching: a plan's times where each rank chooses its next op by what has come (docs/choosing.md).

A rank keeps its plan's order of its F, of its B and BW, and of its W: three queues. Of their heads it runs the first by the plan
among those that can run now: the input is there, what the op needs of its own rank has run, and memory has room for what it takes,
and will have for the others. A W comes last among them: no other rank waits for it. If none can, the rank waits for the first that
can.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from schedc.analysis.simulation.flow import (
    BEGIN,
    Flow,
    Moment,
    Resources,
    Times,
    after,
    arrived,
    flow_of,
    gates_of,
    timeline_of,
    waiting_text,
)
from schedc.analysis.simulation.memory import memory_changes, peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import CheckFailed, InvalidInput
from schedc.ir import Kind, Problem, Schedule
from schedc.ir.index import ops_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.analysis.simulation.timeline import Timeline

ENDS, ARRIVES, CHOOSES = 0, 1, 2
"""What happens: an op ends; what an op needs arrives; a rank, if it is idle, looks for its next op. In this order at one moment."""
WEIGHTS = 2
QUEUE_OF = {Kind.F: 0, Kind.B: 1, Kind.BW: 1, Kind.W: WEIGHTS}


class Run(NamedTuple):
    """What the ranks have done."""

    schedule: Schedule
    """The orders in which they ran their ops."""
    timeline: Timeline
    """When, in these orders."""


def rooms_bytes(problem: Problem, schedule: Schedule) -> list[int]:
    """Per rank, how much its activations may hold: the problem's limit, but no less than what the plan holds at most.

    Without a limit it is what the plan holds, as its certificate says. A limit below that is another job's: timing applies none.
    """
    peaks = peak_bytes(problem, schedule)
    return [peak if limit is None else max(limit, peak) for limit, peak in zip(problem.memory_limit_bytes, peaks, strict=True)]


def room_first(problem: Problem, schedule: Schedule) -> list[list[int]]:
    """Per op of each rank, the place of the op that must have run before it so that it finds room, whatever chooses; -1: none.

    F, and where stages recompute B and BW, take memory when they start. One of the other queue may run in front of such an op only
    if that one still finds room, beside all that the plan holds then, and what the ops between the two, of the queue of the one
    in front, leave held. Of those that would not, the last is given.
    """
    found = []
    for order, room in zip(schedule.orders, rooms_bytes(problem, schedule), strict=True):
        alone = replace(schedule, orders=(order,))
        taken, released = (values.tolist() for values in memory_changes(problem, alone, ops_array(alone.orders)))
        first, held, left = [-1] * len(order), 0, [0, 0]
        spare: tuple[list[tuple[int, int]], ...] = [], []
        """By queue, (what the other may leave since the beginning, place), ascending: a later op that needs more hides others."""
        for at, op in enumerate(order):
            queue = QUEUE_OF[op.kind]
            held += taken[at]
            if queue != WEIGHTS:
                leaves = max(0, taken[at] - released[at])
                left[queue] += leaves
                fits_not = bisect_left(spare[1 - queue], (left[queue], -1)) if leaves else 0
                if fits_not:
                    first[at] = spare[1 - queue][fits_not - 1][1]
                if taken[at]:
                    entry = room - held + left[1 - queue], at
                    while spare[queue] and spare[queue][-1] >= entry[:1]:
                        spare[queue].pop()
                    spare[queue].append(entry)
            held -= released[at]
        found.append(first)
    return found


def not_before(problem: Problem, schedule: Schedule) -> Timeline | None:
    """The plan's times, before which ranks that choose run no op in front of others of the plan.

    None: they may at any time, as that is faster even with the plan's own costs: 1F1B over slow links, say.
    """
    planned = simulate(problem, schedule)
    return planned if planned.makespan_ns <= simulate_online(problem, schedule).timeline.makespan_ns else None


def simulate_online(
    problem: Problem,
    schedule: Schedule,
    later: Sequence[tuple[int, Problem]] = (),
    *,
    choose: bool = True,
    planned: Timeline | None = None,
) -> Run:
    """When every op, transfer and collective happens, and in which orders.

    Args:
        problem: what ops and transfers cost from the beginning.
        schedule: the plan's orders, which `verify_schedule` accepts.
        later: (time_ns, problem), times ascending: what they cost from then on. An op takes what it costs when it starts. A
            transfer takes what it costs when it becomes ready, and never arrives before the transfer in front of it.
            Collectives cost what they cost at the beginning.
        choose: False: each rank runs its ops in the plan's order, as `simulate` says where nothing changes.
        planned: when everything happens by the plan (`not_before`). With it a rank runs an op in front of others of the plan not
            earlier than the plan starts it. None: as early as it can.

    Raises:
        InvalidInput: ranks choose, and the stages are a graph, where values that wait take memory.
        CheckFailed: the ranks wait for each other in a cycle, which no schedule that `verify_schedule` accepts does.
    """
    if choose and not problem.is_chain:
        raise InvalidInput(f"{problem.name}: ranks choose their ops in chains alone, and the stages of the plan are a graph")
    if problem.is_sharded:
        raise InvalidInput(
            f"{problem.name}: ranks choose and links change where weights are whole, and those of the plan are sharded"
        )
    flow = flow_of(problem, schedule)
    costs = _Costs(flow, schedule, later)
    ops, rank_of, resource, receiver = flow.ops.tolist(), flow.rank_of.tolist(), flow.resource.tolist(), flow.receiver.tolist()
    takings, taken_by = flow.takings.tolist(), list(zip(flow.taken.tolist(), flow.taker.tolist(), strict=True))
    gate, needs = gates_of(flow), _own_needs(flow)
    taken, released = (values.tolist() for values in memory_changes(problem, schedule, flow.ops))
    room = rooms_bytes(problem, schedule)
    offsets = flow.begin.tolist()[:-1]
    first = [at if at < 0 else begin + at for begin, own in zip(offsets, room_first(problem, schedule), strict=True) for at in own]
    waits = flow.receives.tolist()
    """Per op, how many transfers must arrive first that have not."""
    front: dict[tuple[int, int], Moment] = {}
    """Per pair of ranks, when the last transfer between them arrives."""
    queues = _queues(flow, problem.ranks, choose=choose)
    heads = [[0] * len(own) for own in queues]
    busy, held = [False] * problem.ranks, [0] * problem.ranks
    ran = [False] * len(ops)
    orders: list[list[int]] = [[] for _ in range(problem.ranks)]
    times = Times.none_of(flow)
    resources = Resources(flow)
    scatters = _Scatters(flow, resources, times)
    not_before_ns = [0] * len(ops) if planned is None else planned.starts_ns.tolist()
    """Out of the plan's order."""
    events: list[tuple[Moment, int, int, int]] = [(BEGIN, CHOOSES, rank, -1) for rank in range(problem.ranks)]
    """(when, what happens, rank, op)."""
    events += [(moment, CHOOSES, rank_of[op], -1) for op, moment in enumerate(gate) if moment > BEGIN]
    heapq.heapify(events)

    def can_run(op: int, now: Moment) -> bool:
        has_room = not choose or (held[rank_of[op]] + taken[op] <= room[rank_of[op]] and (first[op] < 0 or ran[first[op]]))
        return not waits[op] and gate[op] <= now and (needs[op] < 0 or ran[needs[op]]) and has_room

    while events:
        now, what, rank, op = heapq.heappop(events)
        if what == ENDS:
            busy[rank], ran[op] = False, True
            held[rank] -= released[op]
            served = -1
            for transfer, taker in taken_by[takings[op] : takings[op + 1]]:
                pair = rank, receiver[transfer]
                if transfer != served:
                    occupancy_ns, latency_ns = costs.of_transfer(transfer, now[0])
                    start, left = resources.serve(resource[transfer], now, occupancy_ns)
                    front[pair] = max(arrived(left, latency_ns), front.get(pair, BEGIN))
                    times.transfer_start_ns[transfer], times.arrival_ns[transfer] = start[0], front[pair][0]
                    served = transfer
                heapq.heappush(events, (front[pair], ARRIVES, pair[1], taker))
            scatters.ended(op, now)
            heapq.heappush(events, (now, CHOOSES, rank, -1))
            continue
        if what == ARRIVES:
            waits[op] -= 1
            heapq.heappush(events, (now, CHOOSES, rank, -1))
        if what == ARRIVES or busy[rank]:
            continue
        own = queues[rank]
        next_ones = [(queue[head], at) for at, (queue, head) in enumerate(zip(own, heads[rank], strict=True)) if head < len(queue)]
        ready = [(op, at) for op, at in next_ones if can_run(op, now)]
        if not ready:
            continue
        due = [(0 if op == min(next_ones)[0] else not_before_ns[op], op, at) for op, at in ready]
        if not any(due_ns <= now[0] for due_ns, _, _ in due):
            heapq.heappush(events, ((min(due)[0], 0), CHOOSES, rank, -1))
            continue
        _, op, at = min((at == WEIGHTS, op, at) for due_ns, op, at in due if due_ns <= now[0])
        heads[rank][at] += 1
        busy[rank] = True
        held[rank] += taken[op]
        orders[rank].append(op)
        times.starts_ns[op] = now[0]
        heapq.heappush(events, (after(now, costs.of_op(op, now[0])), ENDS, rank, op))
    if not all(ran):
        raise CheckFailed(waiting_text(schedule, flow, times))
    return _run(problem, schedule, flow, times, orders, costs)


class _Costs:
    """What ops and transfers cost at a time."""

    def __init__(self, flow: Flow, schedule: Schedule, later: Sequence[tuple[int, Problem]]) -> None:
        flows = [flow, *(flow_of(problem, schedule) for _, problem in later)]
        self._from_ns = [time_ns for time_ns, _ in later]
        if self._from_ns != sorted(self._from_ns):
            raise ValueError(f"times must ascend, got {self._from_ns}")
        self._durations = [each.duration_ns.tolist() for each in flows]
        self._transfers = [list(zip(each.occupancy_ns.tolist(), each.latency_ns.tolist(), strict=True)) for each in flows]
        self.spent_ns = np.zeros(len(flow.ops), np.int64)
        self.occupied_ns = np.zeros(len(flow.sender), np.int64)

    def of_op(self, op: int, start_ns: int) -> int:
        duration_ns: int = self._durations[bisect_right(self._from_ns, start_ns)][op]
        self.spent_ns[op] = duration_ns
        return duration_ns

    def of_transfer(self, transfer: int, ready_ns: int) -> tuple[int, int]:
        """Occupancy and latency."""
        occupancy_ns, latency_ns = self._transfers[bisect_right(self._from_ns, ready_ns)][transfer]
        self.occupied_ns[transfer] = occupancy_ns
        return occupancy_ns, latency_ns


class _Scatters:
    """The reduce-scatters: each begins when all W and BW of its stage have ended, after those that the plan has before it.

    All replicas of a rank must begin them in one order, whatever each has chosen.
    """

    def __init__(self, flow: Flow, resources: Resources, times: Times) -> None:
        self._flow, self._resources, self._times = flow, resources, times
        self._index = {each.stage: at for at, each in enumerate(flow.collectives)}
        self._left = dict.fromkeys(self._index, 0)
        self._waiting: list[list[int]] = [[] for _ in range(len(flow.begin) - 1)]
        """Per rank, the stages whose reduce-scatter has not begun, in the plan's order."""
        for op, (kind, stage, _, _) in enumerate(flow.ops.tolist()):
            if stage in self._index and kind in (Kind.W, Kind.BW):
                self._left[stage] += 1
            if flow.collective_after[op] >= 0:
                self._waiting[int(flow.rank_of[op])].append(stage)

    def ended(self, op: int, now: Moment) -> None:
        """An op has ended."""
        kind, stage = self._flow.ops[op, :2].tolist()
        if stage not in self._index or kind not in (Kind.W, Kind.BW):
            return
        self._left[stage] -= 1
        waiting = self._waiting[int(self._flow.rank_of[op])]
        while waiting and self._left[waiting[0]] == 0:
            index = self._index[waiting.pop(0)]
            self._times.collective_start_ns[index] = self._resources.reduce_scatter(index, now)


def _queues(flow: Flow, ranks: int, *, choose: bool) -> list[list[list[int]]]:
    """Per rank, its queues: its ops in the plan's order."""
    queues: list[list[list[int]]] = [[[] for _ in range(3 if choose else 1)] for _ in range(ranks)]
    for op, (kind, rank) in enumerate(zip(flow.ops[:, 0].tolist(), flow.rank_of.tolist(), strict=True)):
        queues[rank][QUEUE_OF[Kind(kind)] if choose else 0].append(op)
    return queues


def _own_needs(flow: Flow) -> list[int]:
    """Per op, the op of its own rank and another queue that it needs: the last part of F before B and BW, of B before W; or -1.

    What it needs of its own queue is in front of it there.
    """
    ends: dict[tuple[int, int, int], int] = {}
    needs = []
    for op, (kind, stage, microbatch, _) in enumerate(flow.ops.tolist()):
        ends[kind, stage, microbatch] = op
        needed = {Kind.F: None, Kind.B: Kind.F, Kind.BW: Kind.F, Kind.W: Kind.B}[Kind(kind)]
        needs.append(-1 if needed is None else ends[needed, stage, microbatch])
    return needs


def _run(problem: Problem, schedule: Schedule, flow: Flow, times: Times, orders: Sequence[Sequence[int]], costs: _Costs) -> Run:
    """Everything in the orders in which it ran."""
    began = flow.begin.tolist()
    ran = Schedule(
        orders=tuple(
            tuple(order[op - first] for op in ran) for order, first, ran in zip(schedule.orders, began, orders, strict=False)
        ),
        parts=schedule.parts,
    )
    at = np.array([op for order in orders for op in order], np.int64)
    as_ran = flow_of(problem, ran)
    place = np.arange(len(as_ran.sender)) - np.searchsorted(as_ran.sender, as_ran.sender)  # among those of its op
    transfer = np.searchsorted(flow.sender, at[as_ran.sender]) + place
    in_order = Times(
        starts_ns=times.starts_ns[at],
        transfer_start_ns=times.transfer_start_ns[transfer],
        arrival_ns=times.arrival_ns[transfer],
        collective_start_ns=times.collective_start_ns,
    )
    as_it_was = replace(as_ran, duration_ns=costs.spent_ns[at], occupancy_ns=costs.occupied_ns[transfer])
    return Run(ran, timeline_of(problem, as_it_was, in_order))
