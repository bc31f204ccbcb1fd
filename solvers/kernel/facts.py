"""A Problem as the arrays of the order evaluator's kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from schedc.ir.index import tables_of
from schedc.ir.problem import Objective

if TYPE_CHECKING:
    from schedc.ir.problem import Problem

__all__ = ["Facts", "example_facts", "facts_of", "microbatches_by_stage"]

UNLIMITED = np.int64(1) << 60


class Facts(NamedTuple):
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
    resources: int
    gate: Any
    """When its all-gather lets its first F start."""
    tail: Any
    """What must follow its last op."""
    held: Any
    kept: Any
    limit: Any
    """Per rank, bytes."""
    first: Any
    """Per rank, its first entry of `mine`; one more at the end."""
    mine: Any
    """The stages of rank 0, those of rank 1, and so on."""
    split: bool
    span: bool
    """Whether each rank's clock starts with its first op (stage span), or at 0 (makespan)."""
    in_order: bool
    """Whether microbatches enter in the order of their numbers."""


def example_facts() -> Facts:
    """Facts of no problem, but of the right types."""
    row = np.zeros(1, np.int64)
    return Facts(row, row, row, row, row, row, row, 1, row, row, row, row, row, row, row, False, False, False)


def microbatches_by_stage(problem: Problem) -> list[list[int]]:
    """Per stage, the microbatches that visit it, in order: the kernels count them from 0 on each stage."""
    visits: list[list[int]] = [[] for _ in problem.stages]
    for microbatch in range(problem.microbatches):
        for stage in problem.path(microbatch):
            visits[stage].append(microbatch)
    return visits


def facts_of(problem: Problem) -> Facts:
    """The problem as the kernel's arrays, but for durations."""
    tables = tables_of(problem)
    stages = len(problem.stages)
    visits = microbatches_by_stage(problem)
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
    parallel = problem.data_parallel
    gate = np.array(parallel.all_gather_ns if parallel and parallel.all_gather_ns else [0] * stages, np.int64)
    tail = np.array(parallel.reduce_scatter_ns if parallel else [0] * stages, np.int64)
    rank_of_stage = tables.rank_of_stage
    return Facts(
        stage_rank=rank_of_stage,
        count=np.array([len(each) for each in visits], np.int64),
        fed_by=fed_by,
        feeds=feeds,
        occupancy=occupancy.ravel(),
        latency=latency.ravel(),
        resource=resource.ravel(),
        resources=len(tables.resources),
        gate=gate,
        tail=tail,
        held=np.array([stage.activation_bytes for stage in problem.stages], np.int64),
        kept=np.array([stage.activation_after_input_bytes for stage in problem.stages], np.int64),
        limit=np.array([UNLIMITED if limit is None else limit for limit in problem.memory_limit_bytes], np.int64),
        first=np.searchsorted(np.sort(rank_of_stage), np.arange(problem.ranks + 1)),
        mine=np.argsort(rank_of_stage, kind="stable"),
        split=problem.split_backward,
        span=problem.objective is Objective.STAGE_SPAN,
        in_order=problem.in_order,
    )
