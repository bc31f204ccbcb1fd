"""Between schedules and the variables of the MILP: a start in, orders out."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from schedc.ir import WHOLE, Kind, Op, Problem, Schedule
from schedc.models.milp.variables import MilpVariables, op_name, send_name
from schedc.models.start_windows import with_late_begins

if TYPE_CHECKING:
    from collections.abc import Callable

    import pulp

    from schedc.analysis.simulation.timeline import Timeline


def order_values(variables: MilpVariables, schedule: Schedule, timeline: Timeline) -> dict[tuple[str, str], int]:
    """The values of the order variables in a schedule; a solver finds the times that go with them.

    A fused backward is in the place of its two halves; a block that the schedule cuts otherwise than the model does is where its
    last part is. The ops of a chain are alike, and so are their transfers: they are named anew in microbatch order.
    """
    blocks = variables.blocks
    when: dict[str, tuple[int, int, int]] = {}
    found: dict[tuple[Kind, int], dict[int, tuple[int, int, int]]] = defaultdict(dict)
    for rank, order in enumerate(schedule.orders):
        for number, (op, start_ns) in enumerate(zip(order, timeline.start_ns(rank), strict=True)):
            for half, kind in enumerate((Kind.B, Kind.W) if op.kind is Kind.BW and _is_split(variables) else (op.kind,)):
                found[kind, op.stage][op.microbatch] = (start_ns, number, half)
    for chain in blocks.chains:
        kind, stage = chain[0].kind, chain[0].stage
        mine = dict.fromkeys(op.microbatch for op in chain)
        alike = sorted(found[kind, stage][microbatch] for microbatch in mine)
        if kind is Kind.W and any(blocks.may_vanish(op) for op in chain):
            backwards, weights = ({m: found[half, stage][m] for m in mine} for half in (Kind.B, Kind.W))
            alike = _weights(backwards, weights)
        cut = len(chain) // len(alike)
        when |= {op_name(op): alike[index // cut] for index, op in enumerate(chain)}
    chain_of = {op: number for number, chain in enumerate(blocks.chains) for op in chain}
    lanes: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)  # by chain, and where to of a graph
    for move in timeline.transfers:
        kind = Kind.B if move.op.kind is Kind.BW and _is_split(variables) else move.op.kind
        producer = move.op._replace(kind=kind, part=WHOLE)
        lanes[chain_of[producer], min(WHOLE, move.op.part)].append((move.start_ns, move.ready_ns, move.source))
    for times in lanes.values():
        times.sort(reverse=True)
    when |= {send_name(name): lanes[chain_of[name._replace(part=WHOLE)], name.part].pop() for name in sorted(variables.send)}
    for span in timeline.collectives:
        when[f"{span.collective.kind}{span.collective.stage}"] = (span.start_ns, span.ready_ns, span.rank)
    return {(a, b): int(when[a] < when[b]) for a, b in variables.order}


def _weights(backwards: dict[int, tuple[int, int, int]], weights: dict[int, tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """When the W of a stage are, in the order of their backwards: those that are not fused in their own order, the others there."""
    apart = iter(sorted(weights[m] for m, begin in backwards.items() if weights[m][:2] != begin[:2]))
    return [
        weights[m] if weights[m][:2] == begin[:2] else next(apart)
        for m, begin in sorted(backwards.items(), key=lambda backward: backward[1])
    ]


def fused_values(variables: MilpVariables, schedule: Schedule) -> dict[Op, int]:
    """Per B that may be fused, whether it is in the schedule; those of a chain are alike, and are named in the order they have."""
    values: dict[Op, int] = {}
    orders = {op.stage: [each for each in order if each.stage == op.stage] for order in schedule.orders for op in order}
    for chain in variables.blocks.chains:
        if chain[0].kind is Kind.B:
            mine = {op.microbatch for op in chain}
            on_stage = (op for op in orders[chain[0].stage] if op.microbatch in mine)
            backwards = [op for op in on_stage if op.kind in (Kind.B, Kind.BW) and op.part <= 0]
            values |= {b: int(op.kind is Kind.BW) for b, op in zip(chain, backwards, strict=True) if b in variables.fused}
    return values


def _is_split(variables: MilpVariables) -> bool:
    return any(op.kind is Kind.B for op in variables.start)


def schedule_of_milp(variables: MilpVariables, problem: Problem, value: Callable[[pulp.LpVariable], float]) -> Schedule:
    """The orders of a solution, by its order variables, so that times may be off by a rounding error.

    An op's place in its rank's order is the number of ops that come before it.
    """
    chosen = {pair: value(order) > 0.5 for pair, order in variables.order.items()}
    fused = {op for op, variable in variables.fused.items() if value(variable) > 0.5}
    orders: list[list[Op]] = [[] for _ in range(problem.ranks)]
    for op in variables.start:
        if op.kind is not Kind.W or variables.blocks.backward_of(op) not in fused:
            orders[problem.rank_of(op)].append(op)
    for on_rank in orders:
        names = {op: op_name(op) for op in on_rank}
        place: dict[Op, int] = {}
        for op, name in names.items():
            place[op] = sum(_comes_first(variables, chosen, other, name) for other in names.values() if other != name)
        on_rank.sort(key=place.__getitem__)
    named = tuple(tuple(op._replace(kind=Kind.BW) if op in fused else op for op in on_rank) for on_rank in orders)
    schedule = Schedule(orders=named, parts=variables.blocks.parts)
    return with_late_begins(problem, variables.blocks, schedule, lambda op: value(variables.start[op]))


def _comes_first(variables: MilpVariables, chosen: dict[tuple[str, str], bool], a: str, b: str) -> bool:
    if (a, b) in chosen:
        return chosen[a, b]
    return not chosen[b, a] if (b, a) in chosen else variables.before[a, b] == 1
