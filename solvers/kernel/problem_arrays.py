"""A Problem as the arrays of the order evaluator's kernel."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from schedc.ir.index import tables_of
from schedc.ir.problem import Objective, Problem

UNLIMITED = np.int64(1) << 60


class ProblemArrays(NamedTuple):
    """A problem as flat arrays, or lists; per stage unless it says otherwise.

    Transfers are per kind and stage, entry kind × stages + stage.
    """

    stage_rank: Any
    count: Any
    """How many microbatches visit the stage."""
    fed_by: Any
    """The stage before on the path, or -1."""
    feeds: Any
    occupancy: Any
    latency: Any
    resource: Any
    """The link or trunk of what the block sends, or -1."""
    gather: Any
    """What its all-gather takes."""
    scatter: Any
    """What its reduce-scatter takes; -1: it has none."""
    gathered: Any
    """Per link, trunk or lane for collectives: when all all-gathers have left it."""
    collectives: Any
    """Per rank, the resource of its collectives."""
    gathering: Any
    """Per rank, when the first of its all-gathers starts."""
    held: Any
    kept: Any
    again: Any
    """What a backward takes besides when it starts."""
    limit: Any
    """Per rank, bytes."""
    in_turn: bool
    """Whether a trunk serves several ranks, so that ops are to be timed in the order of their ends."""
    span: bool
    """Whether each rank's clock starts with its first op (stage span), or at 0 (makespan)."""
    in_order: bool
    """Whether microbatches enter in the order of their numbers."""


def example_facts() -> ProblemArrays:
    """ProblemArrays of no problem, but of the right types."""
    row = np.zeros(1, np.int64)
    return ProblemArrays(*(row,) * 16, False, False, False)


def microbatches_by_stage(problem: Problem) -> list[list[int]]:
    """Per stage, the microbatches that visit it, in order: the kernels count them from 0 on each stage."""
    visits: list[list[int]] = [[] for _ in problem.stages]
    for microbatch in range(problem.microbatches):
        for stage in problem.path(microbatch):
            visits[stage].append(microbatch)
    return visits


def problem_arrays_of(problem: Problem) -> ProblemArrays:
    """The problem as the kernel's arrays, but for durations."""
    tables = tables_of(problem)
    stages = len(problem.stages)
    visits = microbatches_by_stage(problem)
    count = np.array([len(each) for each in visits], np.int64)
    path_of = [problem.path_of[each[0]] if each else 0 for each in visits]
    fed_by = np.array([tables.previous_stage[path, stage] for stage, path in enumerate(path_of)], np.int64)
    feeds = np.array([tables.next_stage[path, stage] for stage, path in enumerate(path_of)], np.int64)
    columns = np.arange(stages)
    occupancy, latency = np.zeros((3, stages), np.int64), np.zeros((3, stages), np.int64)
    resource = np.full((3, stages), -1, np.int64)
    for direction in (0, 1):
        occupancy[direction] = tables.occupancy_ns[direction, path_of, columns]
        latency[direction] = tables.latency_ns[direction, path_of, columns]
        resource[direction] = tables.resource[direction, path_of, columns]
    rank_of_stage, parallel = tables.rank_of_stage, problem.data_parallel
    gather = np.array(parallel.all_gather_ns if parallel and parallel.all_gather_ns else [0] * stages, np.int64)
    scatter = np.array(parallel.reduce_scatter_ns if parallel else [-1] * stages, np.int64)
    gathered, gathering = np.zeros(len(tables.resources), np.int64), np.zeros(problem.ranks, np.int64)
    for rank, lane in enumerate(tables.collective_resource):  # on a trunk, those of lower ranks go first
        gathering[rank] = gathered[lane]
        gathered[lane] += gather[(rank_of_stage == rank) & (count > 0)].sum()
    users = {(on, rank) for row in resource for on, rank in zip(row, rank_of_stage, strict=True) if on >= 0}
    users |= set(zip(tables.collective_resource, range(problem.ranks), strict=True))
    return ProblemArrays(
        stage_rank=rank_of_stage,
        count=count,
        fed_by=fed_by,
        feeds=feeds,
        occupancy=occupancy.ravel(),
        latency=latency.ravel(),
        resource=resource.ravel(),
        gather=gather,
        scatter=scatter,
        gathered=gathered,
        collectives=tables.collective_resource,
        gathering=gathering,
        held=np.array([stage.activation_bytes for stage in problem.stages], np.int64),
        kept=np.array([stage.activation_after_input_bytes for stage in problem.stages], np.int64),
        again=np.array([stage.recomputed_bytes for stage in problem.stages], np.int64),
        limit=np.array([UNLIMITED if limit is None else limit for limit in problem.memory_limit_bytes], np.int64),
        in_turn=len({on for on, _ in users}) < len(users),
        span=problem.objective is Objective.STAGE_SPAN,
        in_order=problem.in_order,
    )
