"""The memory limit of the MILP: what every forward finds held when it starts, by the order variables (CrossPipe 4.1)."""

from __future__ import annotations

import pulp

from schedc.ir import WHOLE, Kind, Op, Problem
from schedc.models.blocks import most_bytes, unit_bytes
from schedc.models.milp.variables import MilpVariables, op_name

MOST_UNITS = 1 << 20
"""No row adds up more than this: each unit may be off by HiGHS's tolerance of 1e-9, and together they must stay far below one."""


def add_memory_limit(variables: MilpVariables, problem: Problem) -> None:
    """On each rank, what is held never exceeds its limit; values that wait for others are left out.

    What is held only grows at the start of an F, and of the backwards of stages that recompute and of last slices. For each of
    these: what it takes, and what the F before it took, less what the B before it release (all that W does not need; a B that
    recomputes, or takes gradients of states, may leave more than it found) and the W before it (the rest), fit. One formula serves
    any number of stages on a rank.
    """
    backward = Kind.B if problem.split_backward else Kind.BW
    for rank, limit_bytes in enumerate(problem.memory_limit_bytes):
        forwards = [Op(Kind.F, stage, m) for stage, m in problem.blocks() if problem.stages[stage].rank == rank]
        if limit_bytes is None or limit_bytes >= most_bytes(problem, variables.blocks, rank):
            continue
        held_bytes = [held for op in forwards for held in _held_bytes(problem, op)]
        unit = unit_bytes(held_bytes, limit_bytes, MOST_UNITS)
        changes = [change for forward in forwards for change in _changes(problem, variables, forward, unit)]
        again = [op._replace(kind=backward) for op in forwards if problem.taken_bytes(backward, *op[1:3])]
        for taking in (*forwards, *again):
            taken = 0
            if taking.kind is not Kind.F:
                taken = _held_bytes(problem, taking)[2] // unit + max(0, _state_units(problem, taking, unit))
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
    whole, kept, *_ = (held_bytes // unit for held_bytes in _held_bytes(problem, forward))
    state = _state_units(problem, forward, unit)
    if not problem.split_backward:
        return [(forward, whole), (Op(Kind.BW, stage, microbatch), state - whole)]
    last_part = len(variables.blocks.parts[stage].shares) - 1 if variables.blocks.parts else WHOLE
    backward, weight = Op(Kind.B, stage, microbatch), Op(Kind.W, stage, microbatch, last_part)
    return [(forward, whole), (backward, state + kept - whole), (weight, -kept)]


def _held_bytes(problem: Problem, op: Op) -> tuple[int, int, int, int]:
    """What the op's microbatch holds after F, and between B and W, where they are apart; what its backward takes besides.

    And the gradient of its state, if slices follow it.
    """
    costs = problem.stages[op.stage]
    sizes = costs.activation_bytes, costs.activation_after_input_bytes, costs.recomputed_bytes, costs.state_gradient_bytes
    whole, kept, again, state = (problem.share_bytes(size, op.microbatch) for size in sizes)
    return whole, kept if problem.split_backward else 0, again, 0 if problem.is_last_slice(op.microbatch) else state


def _state_units(problem: Problem, op: Op, unit: int) -> int:
    """How many units of states' gradients the op's microbatch takes, the last slice of several, or gives back, below 0."""
    if not problem.is_last_slice(op.microbatch):
        return -(_held_bytes(problem, op)[3] // unit)
    begin = op.microbatch - problem.slice_of(op.microbatch)
    return sum(_held_bytes(problem, op._replace(microbatch=each))[3] // unit for each in range(begin, op.microbatch))
