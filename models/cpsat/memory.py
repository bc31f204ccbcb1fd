"""The memory limit in CP-SAT: precedences for one stage per rank and whole microbatches in order, else a cumulative constraint.

A stage that recomputes has precedences only where no backward splits: the backward that starts next finds all inputs that are held,
so what it takes is as well taken off the limit.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from schedc.ir import WHOLE, Kind, Op, Problem
from schedc.models.blocks import may_be_held_up, most_bytes, unit_bytes

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from schedc.models.cpsat.variables import CpSatVariables

MOST_ENERGY = 1 << 58
"""CP-SAT multiplies what is held by ticks in 64 bits, and says INFEASIBLE where that overflows; its sums get this much at most."""
MOST_UNITS = 1 << 30
"""Nor is more than this held: of some rows its presolve adds the coefficients in 32 bits (google/or-tools, issue 5293)."""


def add_memory_limit(variables: CpSatVariables, problem: Problem, horizon: int) -> None:
    """On each rank, what is held never exceeds its limit; everything ends by the horizon."""
    of_stage: dict[int, list[tuple[Op, ...]]] = defaultdict(list)
    for chain in variables.blocks.chains:
        of_stage[chain[0].stage].append(chain)
    for rank, limit_bytes in enumerate(problem.memory_limit_bytes):
        stages = problem.stages_on(rank)
        microbatches = [microbatch for microbatch in range(problem.microbatches) if set(stages) & set(problem.path(microbatch))]
        whole_bytes = len(microbatches) * sum(problem.stages[s].most_bytes for s in stages)
        besides_bytes = sum(size_bytes for _, size_bytes in variables.besides[rank])
        if limit_bytes is None or limit_bytes >= max(whole_bytes, most_bytes(problem, variables.blocks, rank)) + besides_bytes:
            continue
        chains, again_bytes = of_stage[stages[0]], problem.stages[stages[0]].recomputed_bytes
        in_order = len(stages) == 1 and len(chains) == len({chain[0].kind for chain in chains})
        in_order &= not problem.slices and all(problem.rank_of(value.consumer) != rank for value in variables.blocks.waiting)
        if in_order and not besides_bytes and not (again_bytes and problem.split_backward):
            forwards = next(chain for chain in chains if chain[0].kind is Kind.F)
            _add_precedences(variables, problem, stages[0], [op.microbatch for op in forwards], limit_bytes - again_bytes)
        else:
            _add_cumulative(variables, problem, rank, limit_bytes, horizon)


def release_pairs(count: int, whole: int, kept: int, limit: int) -> list[tuple[int, int]]:
    """Which releases let the forward number `count` (from 0) start: minimal pairs (b, w) of B's and W's that must have ended.

    As the ops of a kind run in microbatch order, the forwards 0 to `count` hold (count + 1) × whole less b × (whole − kept) and
    w × kept; w ≤ b ≤ count. One of the pairs must be met; [(0, 0)] says that nothing needs to be.
    """
    pairs: list[tuple[int, int]] = []
    for inputs in range(count + 1):
        over = (count + 1) * whole - inputs * (whole - kept) - limit
        weights = 0 if over <= 0 else -(-over // kept) if kept else inputs + 1
        if weights <= inputs and (not pairs or weights < pairs[-1][1]):
            pairs.append((inputs, weights))
        if weights == 0:
            break
    return pairs


def _backward(problem: Problem, stage: int, microbatch: int) -> Op:
    return Op(Kind.B if problem.split_backward else Kind.BW, stage, microbatch)


def _last_release(variables: CpSatVariables, backward: Op) -> Op:
    """The op whose end releases the rest: the last part of W, or the fused backward itself where the problem does not split."""
    if backward.kind is Kind.BW:
        return backward
    parts = variables.blocks.parts
    return backward._replace(kind=Kind.W, part=len(parts[backward.stage].shares) - 1 if parts else WHOLE)


def _add_precedences(variables: CpSatVariables, problem: Problem, stage: int, microbatches: list[int], limit_bytes: int) -> None:
    """Where the rank has one stage, which takes microbatches in order: each F starts after one of the pairs of releases.

    W run in microbatch order, so the w-th of them ends after those before it. A fused backward releases all at once, while W of
    earlier microbatches may still wait: where backwards may be fused, the microbatches that have released all are counted.
    """
    model, costs = variables.model, problem.stages[stage]
    kept = costs.activation_after_input_bytes if problem.split_backward else 0
    backwards = [_backward(problem, stage, microbatch) for microbatch in microbatches]
    weights = [_last_release(variables, backward) for backward in backwards]
    may_fuse = any(backward in variables.fused for backward in backwards)
    before: list[cp_model.IntVar] = []
    for count, microbatch in enumerate(microbatches):
        forward = variables.start[Op(Kind.F, stage, microbatch)]
        pairs = release_pairs(count, costs.activation_bytes, kept, limit_bytes)
        chosen = [model.new_bool_var("") for _ in pairs] if len(pairs) > 1 else []
        counted: list[cp_model.IntVar] = []
        if may_fuse and any(done for _, done in pairs):
            counted = [_released(variables, forward, *both) for both in zip(backwards[:count], weights[:count], strict=True)]
            if may_fuse and chosen and pairs[0][0]:
                variables.add_after(forward, backwards[pairs[0][0] - 1])  # whichever pair is met: it is part of all
            for earlier, later in zip(before, counted, strict=False):
                model.add_implication(earlier, later)  # what had been released when the forward before this one started
            before = counted
        for index, (inputs, done) in enumerate(pairs):
            literals = [chosen[index]] if chosen else []
            if inputs:
                variables.add_after(forward, backwards[inputs - 1], only_if=literals)
            if done and counted:
                model.add(sum(counted) >= done).only_enforce_if(literals)
            elif done:
                variables.add_after(forward, weights[done - 1], only_if=literals)
        if chosen:
            model.add_bool_or(chosen)
        elif not pairs:
            model.add_bool_or([])  # no release makes room: infeasible


def _released(variables: CpSatVariables, forward: cp_model.IntVar, backward: Op, weight: Op) -> cp_model.IntVar:
    """A literal that is true only where the microbatch has released all that it held when the forward starts."""
    released = variables.model.new_bool_var("")
    variables.add_after(forward, backward, only_if=[released])
    split = [~variables.fused[backward]] if backward in variables.fused else []
    variables.add_after(forward, weight, only_if=[released, *split])
    return released


def _add_cumulative(variables: CpSatVariables, problem: Problem, rank: int, limit_bytes: int, horizon: int) -> None:
    """Any other: what B releases is held from F's start to B's end, the rest to W's end; what B takes, from its own start.

    The gradient of a slice's state is held from the start of the last slice's backward to the end of its own. A value that waits
    for others is held from its arrival to its consumer's start; an op may wait here so that less does, which no schedule does.
    """
    model = variables.model
    intervals, demands = [], []
    for stage, microbatch in problem.blocks():
        costs = problem.stages[stage]
        if costs.rank != rank:
            continue
        sizes = costs.activation_bytes, costs.activation_after_input_bytes, costs.recomputed_bytes, costs.state_gradient_bytes
        whole, kept, again, state = (problem.share_bytes(size, microbatch) for size in sizes)
        kept = kept if problem.split_backward else 0
        backward = _backward(problem, stage, microbatch)
        weight = _last_release(variables, backward)
        forward_at, backward_at = variables.start[Op(Kind.F, stage, microbatch)], variables.start[backward]
        old = max(0, kept - again)  # of what W needs, what F took
        stays = [
            (forward_at, backward, whole - old),
            (forward_at, weight, old),
            (backward_at, backward, again - kept + old),
            (backward_at, weight, kept - old),
        ]
        if not problem.is_last_slice(microbatch):
            last = backward._replace(microbatch=microbatch - problem.slice_of(microbatch) + len(problem.slices) - 1)
            stays.append((variables.start[last], backward, state))
        for begin, released_by, held in stays:
            if held:
                length = model.new_int_var(0, horizon, "")
                fused = variables.fused.get(backward)
                if fused is None:
                    end = variables.start[released_by] + variables.blocks.duration[released_by]
                    intervals.append(model.new_interval_var(begin, length, end, ""))
                else:
                    end = model.new_int_var(0, horizon, "")
                    if released_by is backward:
                        variables.add_after(end, backward)
                    else:
                        variables.add_after(end, backward)
                        variables.add_after(end, weight, only_if=[~fused])
                    intervals.append(model.new_interval_var(begin, length, end, ""))
                demands.append(held)
    for value in variables.blocks.waiting:
        if problem.rank_of(value.consumer) == rank and value.held_bytes:
            arrival = _arrival(variables, problem, value.brought_by)
            if arrival is not None:
                begin = model.new_int_var(0, horizon, "")
                model.add(begin == arrival)
                length = model.new_int_var(0, horizon, "")
                intervals.append(model.new_interval_var(begin, length, variables.start[value.consumer], ""))
                demands.append(value.held_bytes)
    for interval, size_bytes in variables.besides[rank]:
        intervals.append(interval)
        demands.append(size_bytes)
    limit_bytes = min(limit_bytes, sum(demands))
    unit = unit_bytes(demands, limit_bytes, most=max(1, min(MOST_UNITS, MOST_ENERGY // max(1, horizon))))
    model.add_cumulative(intervals, [held // unit for held in demands], limit_bytes // unit)


def _arrival(variables: CpSatVariables, problem: Problem, brought_by: Op) -> cp_model.LinearExprT | None:
    """When the value is there that this transfer brings, or this op of the same rank makes; None: that is not known.

    A backward that is B and W at once here, though a schedule fuses it, has its gradient ready no later, but sooner.
    """
    blocks = variables.blocks
    move = next((move for move in blocks.transfers if move.name == brought_by and move.producer != brought_by), None)
    if move is not None and move.name in variables.send:
        return variables.send[move.name] + move.occupancy + move.latency
    producer = brought_by if move is None else move.producer
    if producer.kind is Kind.B and producer not in variables.fused:
        return None
    if move is not None and may_be_held_up(problem, blocks, move):
        return None
    return variables.end(producer) + (0 if move is None else move.latency)
