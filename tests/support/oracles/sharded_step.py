"""Steps with sharded weights, timed by relaxing what waits for what, and all places that collectives can have.

It shares no code with the product's simulator, memory or lowering. Chains without trunks, blocks whole, durations of 1 ns or more.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise, product
from typing import TYPE_CHECKING

from schedc.ir.ops import Kind, Op
from schedc.ir.schedule import Collective, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schedc.ir.problem import Problem

Event = Op | tuple[int, Collective] | tuple[Op, str]


def makespan_ns(problem: Problem, schedule: Schedule) -> int:
    """When all has ended: the longest way through what waits for what."""
    parallel = problem.data_parallel
    assert parallel is not None
    there = {op for order in schedule.orders for op in order}
    takes: dict[Event, int] = {}
    waits: dict[Event, list[tuple[Event, int]]] = {}
    """Per event, those that must have ended, and how long after."""
    sent: dict[tuple[int, int], list[Event]] = {}
    for order in schedule.orders:
        for at, op in enumerate(order):
            takes[op] = problem.duration_ns(op.kind, op.stage, op.microbatch)
            waits[op] = [(order[at - 1], 0)] if at else []
    for rank, order in enumerate(schedule.orders):
        for op in order:
            path = problem.path(op.microbatch)
            to = path.index(op.stage) + (1 if op.kind is Kind.F else -1)
            if op.kind is Kind.W or not 0 <= to < len(path):
                continue
            kinds = (Kind.F,) if op.kind is Kind.F else (Kind.B, Kind.BW)
            (taker,) = (each for kind in kinds if (each := Op(kind, path[to], op.microbatch)) in there)
            receiver = problem.stages[path[to]].rank
            if receiver == rank:
                continue
            link, message = problem.link(rank, receiver), (op, "message")
            takes[message] = link.transfer_ns or 0
            queue = sent.setdefault((rank, receiver), [])
            waits[message] = [(op, 0), *((before, 0) for before in queue[-1:])]
            queue.append(message)
            waits[taker].append((message, link.latency_ns))
    for rank, (order, collectives) in enumerate(zip(schedule.orders, schedule.collectives, strict=True)):
        for at, mine in enumerate(collectives):
            durations = parallel.all_gather_ns if mine.kind == "AG" else parallel.reduce_scatter_ns
            takes[rank, mine] = durations[mine.stage]
            waits[rank, mine] = [((rank, collectives[at - 1]), 0)] if at else []
            waits[rank, mine] += [(order[mine.before - 1], 0)] if mine.before else []
            for index, op in enumerate(order):
                gathers = mine.kind == "AG" and op.stage == mine.stage and mine.before <= index
                if gathers or (mine.kind == "RS" and mine.until == index):
                    waits[op].append(((rank, mine), 0))
    ends: dict[Event, int] = {}
    while len(ends) < len(takes):
        for event, needs in waits.items():
            if event not in ends and all(need in ends for need, _ in needs):
                ends[event] = max((ends[need] + later for need, later in needs), default=0) + takes[event]
    return max(ends.values())


def held_bytes(problem: Problem, order: Sequence[Op], collectives: Sequence[Collective]) -> int:
    """The most that a rank holds."""
    parallel = problem.data_parallel
    assert parallel is not None
    held = most = 0
    for at, op in enumerate(order):
        costs = problem.stages[op.stage]
        held += costs.activation_bytes if op.kind is Kind.F else costs.recomputed_bytes if op.kind in (Kind.B, Kind.BW) else 0
        gathered = [each.stage for each in collectives if each.kind == "AG" and each.before <= at < each.until]
        besides = sum(parallel.gathered_bytes[stage] for stage in gathered)
        for each in collectives:
            begun = any(op.stage == each.stage and op.kind in (Kind.W, Kind.BW) for op in order[: at + 1])
            besides += parallel.gradient_bytes[each.stage] if each.kind == "RS" and begun and at < each.until else 0
        most = max(most, held + besides)
        left = costs.activation_after_input_bytes
        whole = costs.activation_bytes + costs.recomputed_bytes
        held -= {Kind.F: 0, Kind.B: whole - left, Kind.W: left, Kind.BW: whole}[op.kind]
    return most


def all_places(problem: Problem, order: Sequence[Op], limit: int | None) -> Iterator[tuple[Collective, ...]]:
    """Every list of a rank's collectives that fits its limit; of those issued before one op, in the order in which ops wait."""
    of_stage: list[list[list[Collective]]] = []
    for stage in sorted({op.stage for op in order}):
        uses = [at for at, op in enumerate(order) if op.stage == stage]
        last = max(at for at in uses if order[at].kind in (Kind.W, Kind.BW)) + 1
        ways = []
        for count in range(len(uses)):
            for cuts in combinations(range(1, len(uses)), count):
                edges = [0, *cuts, len(uses)]
                stays = [(uses[a], uses[b - 1] + 1) for a, b in pairwise(edges)]
                since = [0, *(until for _, until in stays)]
                for befores in product(*(range(free, first + 1) for free, (first, _) in zip(since, stays, strict=False))):
                    ways.append([Collective("AG", stage, before, until) for before, (_, until) in zip(befores, stays, strict=True)])
        of_stage.append(ways)
        of_stage.append([[Collective("RS", stage, last, until)] for until in range(last, len(order) + 1)])

    def waited(each: Collective) -> int:
        users = (at for at in range(each.before, len(order)) if order[at].stage == each.stage)
        return each.until - (each.until == each.before) if each.kind == "RS" else next(users)

    for chosen in product(*of_stage):
        found = tuple(sorted((each for way in chosen for each in way), key=lambda each: (each.before, waited(each), each)))
        if limit is None or held_bytes(problem, order, found) <= limit:
            yield found


def least_ns(problem: Problem, schedule: Schedule) -> int | None:
    """The least makespan of the orders over all places of collectives; None: they do not fit."""
    limits = problem.memory_limit_bytes
    of_ranks = [list(all_places(problem, order, limit)) for order, limit in zip(schedule.orders, limits, strict=True)]
    return min((makespan_ns(problem, replace(schedule, collectives=each)) for each in product(*of_ranks)), default=None)


def all_orders(problem: Problem) -> set[tuple[tuple[Op, ...], ...]]:
    """Every list of orders of whole blocks that some execution could have."""
    found: set[tuple[tuple[Op, ...], ...]] = set()
    blocks = [(stage, microbatch) for microbatch in range(problem.microbatches) for stage in problem.path(microbatch)]
    for ways in product((True, False) if problem.split_backward else (True,), repeat=len(blocks)):
        fused = dict(zip(blocks, ways, strict=True))
        pending: dict[Op, list[Op]] = {}
        for stage, microbatch in blocks:
            path = problem.path(microbatch)
            at = path.index(stage)
            back = [Op(Kind.BW if fused[each, microbatch] else Kind.B, each, microbatch) for each in path]
            forward = Op(Kind.F, stage, microbatch)
            pending[forward] = [Op(Kind.F, path[at - 1], microbatch)] if at else []
            pending[back[at]] = [forward, *back[at + 1 : at + 2]]
            if not fused[stage, microbatch]:
                pending[Op(Kind.W, stage, microbatch)] = [back[at]]
        waiting: set[tuple[tuple[Op, ...], ...]] = {((),) * problem.ranks}
        for _ in pending:  # one more op each time
            waiting = {
                (*orders[:rank], (*orders[rank], op), *orders[rank + 1 :])
                for orders in waiting
                for done in [{op for order in orders for op in order}]
                for op, needs in pending.items()
                if op not in done and done.issuperset(needs)
                for rank in [problem.stages[op.stage].rank]
            }
        found |= waiting
    return found
