"""The memory limit of the MILP: what every forward finds held when it starts, by the order variables (CrossPipe 4.1)."""

from __future__ import annotations

import pulp

from schedc.ir import WHOLE, Kind, Op, Problem
from schedc.models.blocks import unit_bytes
from schedc.models.milp.variables import MilpVariables, op_name

MOST_UNITS = 1 << 20
"""No row adds up more than this: each unit may be off by HiGHS's tolerance of 1e-9, and together they must stay far below one."""


def add_memory_limit(variables: MilpVariables, problem: Problem) -> None:
    """On each rank, what is held never exceeds its limit.

    What is held only grows at the start of an F, and of the backwards of stages that recompute. For each of these: what it takes,
    and what the F before it took, less what the B before it release (all that W does not need; a B that recomputes may leave more
    than it found) and the W before it (the rest), fit. One formula serves any number of stages on a rank.
    """
    for rank, limit_bytes in enumerate(problem.memory_limit_bytes):
        forwards = [Op(Kind.F, stage, m) for stage, m in problem.blocks() if problem.stages[stage].rank == rank]
        if limit_bytes is None or limit_bytes >= sum(problem.stages[op.stage].most_bytes for op in forwards):
            continue
        held_bytes = [held for op in forwards for held in _held_bytes(problem, op.stage)]
        unit = unit_bytes(held_bytes, limit_bytes, MOST_UNITS)
        changes = [change for forward in forwards for change in _changes(problem, variables, forward, unit)]
        backward = Kind.B if problem.split_backward else Kind.BW
        again = [op._replace(kind=backward) for op in forwards if problem.stages[op.stage].recomputed_bytes]
        for taking in (*forwards, *again):
            taken = 0 if taking.kind is Kind.F else problem.stages[taking.stage].recomputed_bytes // unit
            held = [change * _done(variables, op, taking) for op, change in changes if change]
            variables.model += pulp.LpAffineExpression(pulp.lpSum(held)) + taken <= limit_bytes // unit


def _done(variables: MilpVariables, op: Op, taking: Op) -> pulp.LpAffineExpression | int:
    """Whether the op comes before the one that takes bytes, or is it, a forward; a W that is fused, where its backward does."""
    if op[1:3] == taking[1:3]:
        return int(op.kind is Kind.F)
    before = variables.before[op_name(op), op_name(taking)]
    fused = variables.vanishes(op)
    if fused is None:
        return before
    released = variables.model.add_variable(f"{op_name(op)}_released_{op_name(taking)}", 0, 1)
    variables.model += released <= before + fused
    variables.model += released <= variables.before[op_name(variables.blocks.backward_of(op)), op_name(taking)]
    return released


def _changes(problem: Problem, variables: MilpVariables, forward: Op, unit: int) -> list[tuple[Op, int]]:
    """What each op of the block adds to what is held, in units, once it has ended; for F, once it has started."""
    _, stage, microbatch, _ = forward
    whole, kept, _ = (held_bytes // unit for held_bytes in _held_bytes(problem, stage))
    if not problem.split_backward:
        return [(forward, whole), (Op(Kind.BW, stage, microbatch), -whole)]
    last_part = len(variables.blocks.parts[stage].shares) - 1 if variables.blocks.parts else WHOLE
    return [(forward, whole), (Op(Kind.B, stage, microbatch), kept - whole), (Op(Kind.W, stage, microbatch, last_part), -kept)]


def _held_bytes(problem: Problem, stage: int) -> tuple[int, int, int]:
    """What a microbatch holds after F, and between B and W, where they are apart; and what its backward takes besides."""
    costs = problem.stages[stage]
    return costs.activation_bytes, costs.activation_after_input_bytes if problem.split_backward else 0, costs.recomputed_bytes
