"""The memory limit of the MILP: what every forward finds held when it starts, by the order variables (CrossPipe 4.1)."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

import pulp

from schedc.ir.ops import WHOLE, Kind, Op
from schedc.models.milp.variables import op_name

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.models.milp.variables import Variables

__all__ = ["add_memory_limit"]


def add_memory_limit(variables: Variables, problem: Problem) -> None:
    """On each rank, what is held never exceeds its limit.

    What is held only grows at the start of an F. For each F: its activation, and those of the F before it, less what the B before
    it release (all that W does not need) and the W before it (the rest), fit. One formula serves any number of stages on a rank.
    """
    for rank, limit_bytes in enumerate(problem.memory_limit_bytes):
        forwards = [Op(Kind.F, stage, m) for stage, m in problem.blocks() if problem.stages[stage].rank == rank]
        if limit_bytes is None or limit_bytes >= sum(problem.stages[op.stage].activation_bytes for op in forwards):
            continue
        changes = [change for forward in forwards for change in _changes(problem, variables, forward)]
        unit = gcd(*(held for _, held in changes)) or 1
        for forward in forwards:
            held = [change // unit * _done(variables, op, forward) for op, change in changes if change]
            variables.model += pulp.LpAffineExpression(pulp.lpSum(held)) <= limit_bytes // unit


def _done(variables: Variables, op: Op, forward: Op) -> pulp.LpAffineExpression | int:
    """Whether the op comes before the forward, or is it; a W that is fused, where its backward does."""
    if op == forward:
        return 1
    before = variables.before[op_name(op), op_name(forward)]
    fused = variables.vanishes(op)
    if fused is None:
        return before
    released = variables.model.add_variable(f"{op_name(op)}_released_{op_name(forward)}", 0, 1)
    variables.model += released <= before + fused
    variables.model += released <= variables.before[op_name(variables.blocks.backward_of(op)), op_name(forward)]
    return released


def _changes(problem: Problem, variables: Variables, forward: Op) -> list[tuple[Op, int]]:
    """What each op of the block adds to what is held, once it has ended; for F, once it has started."""
    _, stage, microbatch, _ = forward
    whole = problem.stages[stage].activation_bytes
    if not problem.split_backward:
        return [(forward, whole), (Op(Kind.BW, stage, microbatch), -whole)]
    kept = problem.stages[stage].activation_after_input_bytes
    last_part = len(variables.blocks.parts[stage].shares) - 1 if variables.blocks.parts else WHOLE
    return [(forward, whole), (Op(Kind.B, stage, microbatch), kept - whole), (Op(Kind.W, stage, microbatch, last_part), -kept)]
