"""The idle time of each rank by cause.

Before a rank's first op it *warms up*, after its last one it *cools down*. Between two ops, each moment of idle time has one cause:

- **memory** of the rank, as `memory_waits` defines it;
- else, where the op that the rank waits for takes a message: its **latency**, its **transmission**, or its **queue**, while its
  link or trunk served others; and before it was ready, the **compute** of the rank that produces it, if that rank computes then;
- if that rank is idle itself at that moment, whatever it waits for then: so a late link is named on all ranks that feel it;
- an **all-gather**, of the rank or of one that it waits for.

The causes of a rank add up to makespan - busy time exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from schedc.analysis.attribution.memory_waits import memory_from_ns
from schedc.analysis.attribution.waits import Awaited, Waits

if TYPE_CHECKING:
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

Numbers = int | NDArray[np.int64]


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
    """Per rank, its idle time by cause, the largest first; causes of 0 ns are left out.

    Args:
        problem: what the ops cost.
        schedule: the orders.
        timeline: when everything happens.
        waits: of the timeline.
    """
    account = _Account(timeline.ranks)
    bounds = timeline.begin
    for rank in range(timeline.ranks):
        first, end = bounds[rank : rank + 2].tolist()
        begun_ns, ended_ns = (int(timeline.starts_ns[first]), int(timeline.ends_ns[end - 1])) if end > first else (0, 0)
        account.add(rank, IdleCause.WARM_UP, rank, -1, begun_ns)
        account.add(rank, IdleCause.COOL_DOWN, rank, -1, timeline.makespan_ns - ended_ns)
    _between_ops(timeline, waits, memory_from_ns(problem, schedule, timeline, waits), account)
    return account.result()


class _Account:
    """Idle times that are added up by rank and cause."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._keys: list[NDArray[np.int64]] = []
        self._idle_ns: list[NDArray[np.int64]] = []

    def add(self, victim: Numbers, cause: IdleCause, rank: Numbers, destination: Numbers, idle_ns: Numbers) -> None:
        """Add times, as numbers or as arrays of one length: whose, why, at which ranks, how long; -1 is no destination."""
        columns = np.broadcast_arrays(*(np.atleast_1d(each) for each in (victim, int(cause), rank, destination, idle_ns)))
        found = columns[4] > 0
        self._keys.append(np.stack([column[found] for column in columns[:4]], axis=1).astype(np.int64))
        self._idle_ns.append(columns[4][found].astype(np.int64))

    def result(self) -> tuple[tuple[Idle, ...], ...]:
        """Per rank, one Idle for each cause."""
        keys, at = np.unique(np.concatenate(self._keys), axis=0, return_inverse=True)
        total_ns = np.zeros(len(keys), np.int64)
        np.add.at(total_ns, at.reshape(-1), np.concatenate(self._idle_ns))
        found: list[list[Idle]] = [[] for _ in range(self._ranks)]
        for (victim, cause, rank, destination), idle_ns in zip(keys.tolist(), total_ns.tolist(), strict=True):
            ends = rank, None if destination < 0 else destination
            found[victim].append(Idle(cause=IdleCause(cause), rank=ends[0], destination=ends[1], idle_ns=idle_ns))
        return tuple(tuple(sorted(each, key=lambda idle: -idle.idle_ns)) for each in found)


def _between_ops(timeline: Timeline, waits: Waits, memory_ns: NDArray[np.int64], account: _Account) -> None:
    """Account for the idle time between ops.

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
        account.add(victim, IdleCause.MEMORY, at, -1, until_ns - np.maximum(from_ns, memory_ns[op]))
        until_ns = np.minimum(until_ns, memory_ns[op])
        gather = waits.cause[op] == Awaited.ALL_GATHER
        account.add(victim[gather], IdleCause.ALL_GATHER, at[gather], -1, (until_ns - from_ns)[gather])

        message = (waits.cause[op] == Awaited.MESSAGE) & (until_ns > from_ns)
        op, victim, at, from_ns, until_ns = op[message], victim[message], at[message], from_ns[message], until_ns[message]
        producer = waits.awaited[op]
        source = rank_of[producer]
        phases = (
            (IdleCause.QUEUE, ends_ns, timeline.transfer_start_ns),
            (IdleCause.TRANSMISSION, timeline.transfer_start_ns, timeline.transfer_left_ns),
            (IdleCause.LATENCY, timeline.transfer_left_ns, timeline.arrival_ns),
        )
        for cause, phase_from_ns, phase_until_ns in phases:
            taken = np.minimum(phase_until_ns[producer], until_ns) - np.maximum(phase_from_ns[producer], from_ns)
            account.add(victim, cause, source, at, taken)
        until_ns = np.minimum(until_ns, ends_ns[producer])

        before = until_ns > from_ns
        victim, source, producer, from_ns, until_ns = (
            victim[before],
            source[before],
            producer[before],
            from_ns[before],
            until_ns[before],
        )
        low = np.searchsorted(gap_keys, source * far_ns + from_ns, side="right")  # the gaps of the source that end after
        high = np.searchsorted(gaps, producer, side="right")
        count = np.maximum(0, high - low)
        piece = np.repeat(np.arange(len(count)), count)
        inner = np.arange(len(piece)) - np.repeat(np.cumsum(count) - count, count) + low[piece]
        op = gaps[inner]
        inner_from_ns = np.maximum(gap_begin_ns[op], from_ns[piece])
        inner_until_ns = np.minimum(starts_ns[op], until_ns[piece])
        idle = inner_until_ns > inner_from_ns
        op, piece, inner_from_ns, inner_until_ns = op[idle], piece[idle], inner_from_ns[idle], inner_until_ns[idle]
        idle_ns = np.zeros(len(count), np.int64)
        np.add.at(idle_ns, piece, inner_until_ns - inner_from_ns)
        account.add(victim, IdleCause.COMPUTE, source, -1, until_ns - from_ns - idle_ns)
        victim, from_ns, until_ns = victim[piece], inner_from_ns, inner_until_ns
