"""Between schedules and the variables of the CP-SAT model: hints in, orders out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir import WHOLE, Kind, Op, Problem, Schedule
from schedc.models.blocks import followers_of
from schedc.models.cpsat.sharding import hint_stays
from schedc.models.start_windows import with_late_begins

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortools.sat.python import cp_model

    from schedc.analysis.simulation.timeline import Timeline
    from schedc.models.blocks import TimeGrid
    from schedc.models.cpsat.variables import CpSatVariables


def add_hint(variables: CpSatVariables, schedule: Schedule, timeline: Timeline, grid: TimeGrid, objective_ns: int) -> None:
    """Hint every variable with the schedule's times; a fused backward that the model does not have hints its two halves."""
    model, start, fused = variables.model, variables.start, variables.fused
    hinted: dict[Op, int] = {}
    is_fused: dict[Op, bool] = {}
    for rank, order in enumerate(schedule.orders):
        for op, start_ns in zip(order, timeline.start_ns(rank), strict=True):
            at = grid.ticks(start_ns)
            backward = op._replace(kind=Kind.B, part=WHOLE)
            if op.kind is not Kind.F and backward in fused:
                is_fused[backward] = op.kind is Kind.BW
            for target in _targets(op, start):
                hinted.setdefault(target, at)
                at += variables.blocks.duration[target]
    for chain in variables.blocks.chains:
        end = 0
        for op in chain:
            backward = variables.blocks.backward_of(op)
            if op.kind is Kind.W and is_fused.get(backward, False):
                hinted[op] = max(end, hinted[backward] + variables.blocks.fused[backward])
                end = hinted[op]
            elif op in hinted:
                end = hinted[op] + variables.blocks.duration[op]
    for op, at in hinted.items():
        model.add_hint(start[op], at)
    for backward, value in is_fused.items():
        model.add_hint(fused[backward], value)
    for move in timeline.transfers:
        name = move.op._replace(kind=Kind.B) if move.op.kind is Kind.BW and move.op not in variables.send else move.op
        if name in variables.send:
            model.add_hint(variables.send[name], grid.ticks(move.start_ns))
    if variables.stays:
        hint_stays(variables, schedule, timeline, grid)
    model.add_hint(variables.objective, grid.ticks(objective_ns))


def _targets(op: Op, start: dict[Op, cp_model.IntVar]) -> list[Op]:
    """The variables of an op of some schedule, in the order in which they follow each other."""
    if op in start:
        return [op]
    kinds = (Kind.B, Kind.W) if op.kind is Kind.BW else (op.kind,)
    targets: list[Op] = []
    for block in (op._replace(kind=kind, part=WHOLE) for kind in kinds if op.part <= 0):
        part = block if block in start else block._replace(part=0)
        while part in start:
            targets.append(part)
            part = part._replace(part=part.part + 1) if part.part != WHOLE else part._replace(stage=-1)
    return targets


def schedule_of_cpsat(variables: CpSatVariables, problem: Problem, value: Callable[[cp_model.IntVar], int]) -> Schedule:
    """The orders of a solution; ops that start together are ordered by their end, then as their needs ask."""
    blocks = variables.blocks
    by_needs = list(followers_of(blocks)) if problem.edges or problem.slices else _by_needs(variables)
    depth = {op: number for number, op in enumerate(by_needs)}
    orders: list[list[Op]] = [[] for _ in range(problem.ranks)]
    times = {op: value(start) for op, start in variables.start.items()}
    fused = {op for op, literal in variables.fused.items() if value(literal)}
    length = blocks.duration | {op: blocks.fused[op] for op in fused}
    for op in sorted(times, key=lambda op: (times[op], times[op] + length[op], depth[op])):
        if op in fused:
            orders[problem.rank_of(op)].append(op._replace(kind=Kind.BW))
        elif op.kind is not Kind.W or blocks.backward_of(op) not in fused:
            orders[problem.rank_of(op)].append(op)
    schedule = Schedule(orders=tuple(map(tuple, orders)), parts=variables.blocks.parts)
    return with_late_begins(problem, blocks, schedule, times.__getitem__)


def _by_needs(variables: CpSatVariables) -> list[Op]:
    """All ops of chains, each after what it needs: forwards along the path, backwards against it."""

    def key(op: Op) -> tuple[int, int, int, int]:
        backward = op.kind is not Kind.F
        return (op.microbatch, int(backward), -op.stage if backward else op.stage, op.part)

    return sorted(variables.start, key=key)
