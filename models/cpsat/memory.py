"""The memory limit in CP-SAT: precedences for one stage per rank, a cumulative constraint for several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir.ops import WHOLE, Kind, Op

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from schedc.ir.problem import Problem
    from schedc.models.blocks import Blocks

__all__ = ["add_memory_limit", "release_pairs"]


def add_memory_limit(
    model: cp_model.CpModel, start: dict[Op, cp_model.IntVar], problem: Problem, blocks: Blocks, horizon: int
) -> None:
    """On each rank, what is held never exceeds its limit; everything ends by the horizon."""
    for rank, limit_bytes in enumerate(problem.memory_limit_bytes):
        stages = problem.stages_on(rank)
        microbatches = [microbatch for microbatch in range(problem.microbatches) if set(stages) & set(problem.path(microbatch))]
        if limit_bytes is None or limit_bytes >= len(microbatches) * sum(problem.stages[s].activation_bytes for s in stages):
            continue
        if len(stages) == 1:
            _add_precedences(model, start, problem, blocks, stages[0], microbatches, limit_bytes)
        else:
            _add_cumulative(model, start, problem, blocks, stages, limit_bytes, horizon)


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


def _ends(
    start: dict[Op, cp_model.IntVar], problem: Problem, blocks: Blocks, stage: int, microbatch: int
) -> tuple[cp_model.LinearExprT, cp_model.LinearExprT]:
    """The end of the block's B and of its W; twice BW's, where the backward is fused."""
    backward = Op(Kind.B if problem.split_backward else Kind.BW, stage, microbatch)
    weight = backward
    if problem.split_backward:
        weight = Op(Kind.W, stage, microbatch, len(blocks.parts[stage].shares) - 1 if blocks.parts else WHOLE)
    return start[backward] + blocks.duration[backward], start[weight] + blocks.duration[weight]


def _add_precedences(
    model: cp_model.CpModel,
    start: dict[Op, cp_model.IntVar],
    problem: Problem,
    blocks: Blocks,
    stage: int,
    microbatches: list[int],
    limit_bytes: int,
) -> None:
    """Where the rank has one stage: each F starts after one of the pairs of releases that make room for it."""
    costs = problem.stages[stage]
    kept = costs.activation_after_input_bytes if problem.split_backward else 0
    for count, microbatch in enumerate(microbatches):
        forward = start[Op(Kind.F, stage, microbatch)]
        pairs = release_pairs(count, costs.activation_bytes, kept, limit_bytes)
        chosen = [model.new_bool_var("") for _ in pairs] if len(pairs) > 1 else []
        for index, (inputs, weights) in enumerate(pairs):
            for released, needed in enumerate((inputs, weights)):
                if needed:
                    end = _ends(start, problem, blocks, stage, microbatches[needed - 1])[released]
                    constraint = model.add(forward >= end)
                    if chosen:
                        constraint.only_enforce_if(chosen[index])
        if chosen:
            model.add_bool_or(chosen)
        elif not pairs:
            model.add_bool_or([])  # no release makes room: infeasible


def _add_cumulative(
    model: cp_model.CpModel,
    start: dict[Op, cp_model.IntVar],
    problem: Problem,
    blocks: Blocks,
    stages: tuple[int, ...],
    limit_bytes: int,
    horizon: int,
) -> None:
    """Where it has several: what B releases is held from F's start to B's end, the rest to W's end."""
    intervals, demands = [], []
    for stage, microbatch in problem.blocks():
        if stage not in stages:
            continue
        costs = problem.stages[stage]
        kept = costs.activation_after_input_bytes if problem.split_backward else 0
        begin = start[Op(Kind.F, stage, microbatch)]
        for end, held in zip(_ends(start, problem, blocks, stage, microbatch), (costs.activation_bytes - kept, kept), strict=True):
            if held:
                length = model.new_int_var(0, horizon, "")
                intervals.append(model.new_interval_var(begin, length, end, ""))
                demands.append(held)
    model.add_cumulative(intervals, demands, limit_bytes)
