"""The simulator: a Problem and a Schedule in, a Timeline out, exact to the nanosecond.

It implements the cost model's "Time", "Transfers" and "Data parallelism": a rank runs one op at a time in its order; a transfer is
ready when its producer ends, occupies its link or trunk in the order in which transfers become ready, and arrives after the
latency; collectives run beside compute. This module turns the schedule into arrays; `event_loop` runs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from schedc.analysis.simulation.event_loop import event_loop_for
from schedc.analysis.simulation.timeline import CollectiveSpan, Timeline
from schedc.errors import CheckFailed
from schedc.ir.index import ops_array, tables_of
from schedc.ir.ops import Kind, token
from schedc.ir.plan import Collective

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from schedc.ir.index import Tables
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

__all__ = ["simulate"]

NOT_RUN = -1


def simulate(problem: Problem, schedule: Schedule, *, tables: Tables | None = None) -> Timeline:
    """When every op, transfer and collective of the schedule happens.

    Args:
        problem: what the ops cost.
        schedule: a schedule that `verify_schedule` accepts; needs between ops of one rank are taken as met by its order.
        tables: the problem's lookups, where the caller has them already.

    Raises:
        CheckFailed: the ranks wait for each other in a cycle, or for an op that the schedule does not have.
    """
    tables = tables or tables_of(problem)
    ops = ops_array(schedule.orders)
    count = len(ops)
    begin = np.cumsum([0, *map(len, schedule.orders)], dtype=np.int64)
    kind, stage, microbatch, part = ops.T
    path = tables.path_of[microbatch]
    duration_ns, last_part = _durations(schedule, tables, ops)
    first_part = part <= 0

    backward = np.array([0, 1, 0, 1], np.int64)[kind]  # F sends forward, B and BW backward; W sends nothing
    sends = last_part & (kind != Kind.W) & (tables.resource[backward, path, stage] >= 0)
    toward = np.where(backward == 1, tables.previous_stage[path, stage], tables.next_stage[path, stage])
    comes_from = np.where(backward == 1, tables.next_stage[path, stage], tables.previous_stage[path, stage])
    rank_of_stage = tables.rank_of_stage
    receives = first_part & (kind != Kind.W) & (comes_from >= 0) & (rank_of_stage[comes_from] != rank_of_stage[stage])

    first_op = np.full((2, len(problem.stages), problem.microbatches), -1, np.int64)
    starting = np.flatnonzero(first_part & (kind != Kind.W))
    first_op[backward[starting], stage[starting], microbatch[starting]] = starting
    consumer = np.where(sends, first_op[backward, toward, microbatch], -1)

    spans, gates, free = _all_gathers(problem, tables, ops, begin)
    scatters, collective_after = _reduce_scatters(problem, ops)
    starts_ns = np.full(count, NOT_RUN, np.int64)
    transfer_start_ns, arrival_ns = np.zeros(count, np.int64), np.zeros(count, np.int64)
    scatter_start_ns = np.zeros(len(scatters), np.int64)
    parallel = problem.data_parallel
    scatter_ns = np.array([parallel.reduce_scatter_ns[index] for index in scatters] if parallel else [], np.int64)
    arrays = [
        begin,
        duration_ns,
        *gates,
        receives.astype(np.int64),
        consumer,
        np.repeat(np.arange(problem.ranks), np.diff(begin)),
        tables.resource[backward, path, stage],
        tables.occupancy_ns[backward, path, stage],
        tables.latency_ns[backward, path, stage],
        collective_after,
        tables.collective_resource[rank_of_stage[scatters]],
        scatter_ns,
        *free,
    ]
    results = [starts_ns, transfer_start_ns, arrival_ns, scatter_start_ns]
    loop, compiled = event_loop_for(count)
    if compiled:
        ended = loop(*arrays, *results)
    else:
        lists = [array.tolist() for array in results]
        ended = loop(*(array.tolist() for array in arrays), *lists)
        for array, values in zip(results, lists, strict=True):
            array[:] = values
    if ended < count:
        raise CheckFailed(_deadlock(schedule, starts_ns, begin))
    ends_ns = starts_ns + duration_ns
    for op in np.flatnonzero(collective_after >= 0).tolist():
        at = collective_after[op]
        scatter, start_ns = int(scatters[at]), int(scatter_start_ns[at])
        end_ns = start_ns + scatter_ns[at]
        spans.append(
            CollectiveSpan(Collective("RS", scatter), int(rank_of_stage[scatter]), int(ends_ns[op]), start_ns, int(end_ns))
        )
    return Timeline(
        ops=ops,
        begin=begin,
        starts_ns=starts_ns,
        ends_ns=ends_ns,
        consumer=consumer,
        resource=np.where(sends, tables.resource[backward, path, stage], -1),
        transfer_start_ns=transfer_start_ns,
        transfer_left_ns=np.where(sends, transfer_start_ns + tables.occupancy_ns[backward, path, stage], 0),
        arrival_ns=arrival_ns,
        collectives=tuple(spans),
    )


def _durations(schedule: Schedule, tables: Tables, ops: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Per op, its duration and whether it ends its block."""
    kind, stage, microbatch, part = ops.T
    duration_ns = tables.duration_ns[kind, stage, microbatch]
    last_part = part < 0
    for parts in schedule.parts:
        cut = (kind == parts.kind) & (stage == parts.stage) & (part >= 0)
        edges = np.cumsum([0, *parts.shares])
        done, block_ns = part[cut], duration_ns[cut]
        duration_ns[cut] = block_ns * edges[done + 1] // edges[-1] - block_ns * edges[done] // edges[-1]
        last_part |= cut & (part == len(parts.shares) - 1)
    return duration_ns, last_part


def _all_gathers(
    problem: Problem, tables: Tables, ops: NDArray[np.int64], begin: NDArray[np.int64]
) -> tuple[list[CollectiveSpan], NDArray[np.int64], NDArray[np.int64]]:
    """The all-gathers, all ready at 0; per op, the earliest start that they leave; per resource, when they leave it.

    The last two hold moments: a row of nanoseconds and a row of deltas.
    """
    gates = np.zeros((2, len(ops)), np.int64)
    free = np.zeros((2, len(tables.resources)), np.int64)
    spans: list[CollectiveSpan] = []
    parallel = problem.data_parallel
    if parallel is None or not parallel.all_gather_ns:
        return spans, gates, free
    for rank in range(problem.ranks):
        forwards = np.flatnonzero(ops[begin[rank] : begin[rank + 1], 0] == Kind.F) + begin[rank]
        for stage in dict.fromkeys(ops[forwards, 1].tolist()):  # in order of first use, so the first needed is gathered first
            resource = tables.collective_resource[rank]
            start_ns, delta = free[:, resource].tolist()
            duration_ns = parallel.all_gather_ns[stage]
            end_ns = start_ns + duration_ns
            free[:, resource] = end_ns, 0 if duration_ns else delta + 1
            gates[:, forwards[ops[forwards, 1] == stage]] = free[:, [resource]]
            spans.append(CollectiveSpan(Collective("AG", stage), rank, 0, start_ns, end_ns))
    return spans, gates, free


def _reduce_scatters(problem: Problem, ops: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The stages that reduce-scatter, and per op the index of the one that its end makes ready, or -1."""
    after = np.full(len(ops), -1, np.int64)
    stages: list[int] = []
    if problem.data_parallel is not None:
        weights = np.flatnonzero(ops[:, 0] >= Kind.W)
        for stage in np.unique(ops[weights, 1]).tolist():
            after[weights[ops[weights, 1] == stage][-1]] = len(stages)
            stages.append(stage)
    return np.array(stages, np.int64), after


def _deadlock(schedule: Schedule, starts_ns: NDArray[np.int64], begin: NDArray[np.int64]) -> str:
    waiting = []
    for rank, order in enumerate(schedule.orders):
        stuck = np.flatnonzero(starts_ns[begin[rank] : begin[rank + 1]] == NOT_RUN)
        if len(stuck):
            waiting.append(f"rank {rank} before {token(order[stuck[0]])}")
    return f"the ranks wait for each other indefinitely: {', '.join(waiting)}; `schedc.verify` names the cycle"
