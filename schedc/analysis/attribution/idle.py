"""The idle time of each rank by cause.

Before a rank's first op it *warms up*, after its last one it *cools down*. Between two ops, each moment of idle time has one cause:

- **memory** of the rank, as defined below;
- else, where the op that the rank waits for takes a message (of several, the one that arrives last): its **latency**, its
  **transmission**, or its **queue**, while its link or trunk served others; and before it was ready, the **compute** of the rank
  that produces it, if that rank computes then;
- if that rank is idle itself at that moment, whatever it waits for then: so a late link is named on all ranks that feel it;
- an **all-gather**, of the rank or of one that it waits for.

The causes of a rank add up to makespan - busy time exactly.

A rank that idles before an op *waits for memory* from the moment at which there is an F, this op or a later one, so that

- it is the next F of its stage in the rank's order, and a whole block or the first part of one;
- its input is there, and its stage's weights are gathered;
- what its ops hold, with the F's activation and the most that a backward of the rank takes (its recomputation), is more than its
  limit.

With room for one more activation of this stage the rank could have run it then. What follows later in the order would hold more,
too, and might not fit. So this says what the rank could have done with the time, not that the step would be shorter.
An F that fits, and is later in the order all the same, is no wait for memory: the order chose so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from schedc.analysis.attribution.waits import Awaited, Waits
from schedc.analysis.simulation.memory import memory_changes, sharded_bytes
from schedc.ir import Kind, Problem, Schedule
from schedc.ir.index import tables_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.analysis.simulation.timeline import Timeline

Numbers = int | NDArray[np.int64]
Piece = tuple[Numbers, int, Numbers, Numbers, Numbers]
"""Idle time, as numbers or as arrays of one length: whose, why, at which ranks (-1 is no destination), how long if more than 0."""


class IdleCause(IntEnum):
    """Why a rank is idle."""

    WARM_UP = 0
    COOL_DOWN = 1
    COMPUTE = 2
    """Another rank computes what leads to the awaited message."""
    QUEUE = 3
    TRANSMISSION = 4
    LATENCY = 5
    MEMORY = 6
    ALL_GATHER = 7

    @property
    def text(self) -> str:
        """For people and files: `warm-up`."""
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """How long a rank is idle for one cause."""

    cause: IdleCause
    rank: int
    """Whose warm-up, cool-down, compute, memory or all-gather it is; of a message, the source."""
    destination: int | None
    """Of a message, the rank that receives it."""
    idle_ns: int


def idle_of(problem: Problem, schedule: Schedule, timeline: Timeline, waits: Waits) -> tuple[tuple[Idle, ...], ...]:
    """Per rank, its idle time by cause, the largest first; causes of 0 ns are left out."""
    memory_ns = _memory_from_ns(problem, schedule, timeline, waits)
    pieces = chain(_at_the_ends(timeline), _between_ops(timeline, waits, memory_ns))
    columns = (np.stack(np.broadcast_arrays(*map(np.atleast_1d, piece)), axis=1) for piece in pieces)
    rows = np.concatenate([of_piece[of_piece[:, 4] > 0] for of_piece in columns]).astype(np.int64)
    keys, at = np.unique(rows[:, :4], axis=0, return_inverse=True)
    total_ns = np.zeros(len(keys), np.int64)
    np.add.at(total_ns, at.reshape(-1), rows[:, 4])
    found: list[list[Idle]] = [[] for _ in range(timeline.ranks)]
    for (victim, cause, rank, destination), idle_ns in zip(keys.tolist(), total_ns.tolist(), strict=True):
        receiver = None if destination < 0 else destination
        found[victim].append(Idle(cause=IdleCause(cause), rank=rank, destination=receiver, idle_ns=idle_ns))
    return tuple(tuple(sorted(each, key=lambda idle: -idle.idle_ns)) for each in found)


def _at_the_ends(timeline: Timeline) -> Iterator[Piece]:
    """What comes before the first op of each rank, and after the last."""
    for rank, (first, end) in enumerate(timeline.bounds):
        begun_ns, ended_ns = (int(timeline.starts_ns[first]), int(timeline.ends_ns[end - 1])) if end > first else (0, 0)
        yield rank, IdleCause.WARM_UP, rank, -1, begun_ns
        yield rank, IdleCause.COOL_DOWN, rank, -1, timeline.makespan_ns - ended_ns


def _between_ops(timeline: Timeline, waits: Waits, memory_ns: NDArray[np.int64]) -> Iterator[Piece]:
    """The idle time between ops.

    A piece is a rank that is idle, an op, and a time in which the rank of this op is idle before it. It begins with each rank's own
    idle times. The time of a piece in which the op's producer has not ended goes on as pieces of the producer's rank. As needs and
    orders have no cycle, this ends.
    """
    starts_ns, ends_ns, rank_of = timeline.starts_ns, timeline.ends_ns, timeline.rank_of
    gaps = np.flatnonzero(waits.idle_ns)
    gap_begin_ns = starts_ns - waits.idle_ns
    far_ns = timeline.makespan_ns + 1
    gap_keys = rank_of[gaps] * far_ns + starts_ns[gaps]  # ascending: by rank, then by the gap's end
    op = gaps[~timeline.is_first[gaps]]
    victim, from_ns, until_ns = rank_of[op], gap_begin_ns[op], starts_ns[op]
    while len(op):
        at = rank_of[op]
        yield victim, IdleCause.MEMORY, at, -1, until_ns - np.maximum(from_ns, memory_ns[op])
        until_ns = np.minimum(until_ns, memory_ns[op])
        gather = waits.cause[op] == Awaited.ALL_GATHER
        yield victim[gather], IdleCause.ALL_GATHER, at[gather], -1, (until_ns - from_ns)[gather]

        message = (waits.cause[op] == Awaited.MESSAGE) & (until_ns > from_ns)
        op, victim, at, from_ns, until_ns = (each[message] for each in (op, victim, at, from_ns, until_ns))
        transfer = waits.awaited[op]
        producer = timeline.sender[transfer]
        source = rank_of[producer]
        phases = (
            (IdleCause.QUEUE, ends_ns[timeline.sender], timeline.transfer_start_ns),
            (IdleCause.TRANSMISSION, timeline.transfer_start_ns, timeline.transfer_left_ns),
            (IdleCause.LATENCY, timeline.transfer_left_ns, timeline.arrival_ns),
        )
        for cause, phase_from_ns, phase_until_ns in phases:
            taken = np.minimum(phase_until_ns[transfer], until_ns) - np.maximum(phase_from_ns[transfer], from_ns)
            yield victim, cause, source, at, taken
        until_ns = np.minimum(until_ns, ends_ns[producer])

        before = until_ns > from_ns
        victim, source, producer, from_ns, until_ns = (each[before] for each in (victim, source, producer, from_ns, until_ns))
        low = np.searchsorted(gap_keys, source * far_ns + from_ns, side="right")  # the gaps of the source that end after
        high = np.searchsorted(gaps, producer, side="right")
        count = np.maximum(0, high - low)
        piece = np.repeat(np.arange(len(count)), count)
        inner = np.arange(len(piece)) - np.repeat(np.cumsum(count) - count, count) + low[piece]
        op = gaps[inner]
        inner_from_ns = np.maximum(gap_begin_ns[op], from_ns[piece])
        inner_until_ns = np.minimum(starts_ns[op], until_ns[piece])
        idle = inner_until_ns > inner_from_ns
        op, piece, inner_from_ns, inner_until_ns = (each[idle] for each in (op, piece, inner_from_ns, inner_until_ns))
        idle_ns = np.zeros(len(count), np.int64)
        np.add.at(idle_ns, piece, inner_until_ns - inner_from_ns)
        yield victim, IdleCause.COMPUTE, source, -1, until_ns - from_ns - idle_ns
        victim, from_ns, until_ns = victim[piece], inner_from_ns, inner_until_ns


def _memory_from_ns(problem: Problem, schedule: Schedule, timeline: Timeline, waits: Waits) -> NDArray[np.int64]:
    """Per op, from when on its rank waited for memory; the op's start where it did not."""
    from_ns = timeline.starts_ns.copy()
    if all(limit is None for limit in problem.memory_limit_bytes):
        return from_ns
    taken, released = memory_changes(problem, schedule, timeline.ops)
    held = np.cumsum(taken - released) - (taken - released)  # before the op; all ranks before included
    ready_ns = _forwards_ready_ns(problem, timeline)
    for rank, limit_bytes in enumerate(problem.memory_limit_bytes):
        first, end = timeline.begin[rank : rank + 2].tolist()
        idle = np.flatnonzero(waits.idle_ns[first:end]) + first
        if limit_bytes is None or not len(idle):
            continue
        held_bytes = held[idle] - held[first] + taken[first:end][timeline.ops[first:end, 0] != Kind.F].max(initial=0)
        if problem.is_sharded:
            held_bytes += sharded_bytes(problem, schedule, rank)[idle - first]
        for stage in problem.stages_on(rank):
            rows = timeline.ops[first:end]
            forwards = np.flatnonzero((rows[:, 0] == Kind.F) & (rows[:, 1] == stage) & (rows[:, 3] <= 0)) + first
            at, takes = np.searchsorted(forwards, idle), taken[forwards]
            next_bytes = takes[np.minimum(at, len(forwards) - 1)] if len(forwards) else 0
            full = (at < len(forwards)) & (held_bytes + next_bytes > limit_bytes)
            op, following = idle[full], forwards[at[full]]
            since_ns = np.maximum(ready_ns[following], timeline.starts_ns[op] - waits.idle_ns[op])
            from_ns[op] = np.minimum(from_ns[op], since_ns)
    return from_ns


def _forwards_ready_ns(problem: Problem, timeline: Timeline) -> NDArray[np.int64]:
    """Per op that is the first piece of an F, when its input and its stage's weights are there; 0 for others."""
    kind, stage, microbatch, _ = timeline.ops.T
    tables = tables_of(problem)
    ready_ns = timeline.of_taken(timeline.arrival_ns, 0)
    forward = kind == Kind.F
    end_ns = np.zeros((len(problem.stages), problem.microbatches), np.int64)
    np.maximum.at(end_ns, (stage[forward], microbatch[forward]), timeline.ends_ns[forward])
    for path in range(len(problem.paths)):
        on_path = forward & (tables.path_of[microbatch] == path)
        for edge in problem.edges_of(path):
            if problem.stages[edge.source].rank == problem.stages[edge.destination].rank:
                here = on_path & (stage == edge.destination)
                ready_ns[here] = np.maximum(ready_ns[here], end_ns[edge.source, microbatch[here]])
    if problem.slices:  # the slice before is on the same rank
        here = forward & (microbatch % len(problem.slices) > 0)
        ready_ns[here] = np.maximum(ready_ns[here], end_ns[stage[here], microbatch[here] - 1])
    for span, taker in zip(timeline.collectives, timeline.collective_taker.tolist(), strict=True):
        ready_ns[taker] = max(ready_ns[taker], span.end_ns) if taker >= 0 else ready_ns[taker]
    return np.where(forward, ready_ns, 0)
