"""What every op of a timeline waited for, and what every transfer and collective queued behind.

Takes a Problem and the Timeline of one of its schedules; gives one Waits. Everything here follows from the times alone: what starts
at t waited for what came to it at t. Where several did, the rank's own previous op is named, then the message, then the all-gather.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from schedc.ir.index import tables_of
from schedc.ir.ops import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.problem import Problem


class Awaited(IntEnum):
    """What an op waited for last."""

    NOTHING = 0
    """It starts at 0, the first of its rank."""
    OP = 1
    """The op before it on its rank: the rank was not idle."""
    MESSAGE = 2
    """A transfer from another rank."""
    ALL_GATHER = 3
    """The all-gather of its stage's weights."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waits:
    """Per op, flat as in the Timeline, what it waited for."""

    idle_ns: NDArray[np.int64]
    """How long the rank was idle before the op."""
    cause: NDArray[np.int64]
    """A value of `Awaited`."""
    awaited: NDArray[np.int64]
    """The op before, the op that produced the message, the index of the all-gather in `Timeline.collectives`, or -1."""
    computing_ns: NDArray[np.int64]
    """Of a message: the part of `idle_ns` before its producer ended. This part and the next three add up to `idle_ns`."""
    queue_ns: NDArray[np.int64]
    """The part in which the message was ready and its link or trunk was busy."""
    transmission_ns: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    collective_after: NDArray[np.int64]
    """Per collective of the Timeline, the op that makes it ready, or -1 for an all-gather."""
    line_before: NDArray[np.int64]
    """Per op, what took time before its transfer on the same link or trunk, and last; after these, the same per collective of the
    Timeline. An op's number means its transfer, number of ops + c the collective c, and -1 nothing."""
    behind: NDArray[np.int64]
    """The same where the transfer or collective queued behind it: it starts when that leaves; -1 where it did not queue."""


def waits_of(problem: Problem, timeline: Timeline) -> Waits:
    """What everything of the timeline waited for; the timeline is of a schedule of the problem, with decoupled transfers."""
    count = len(timeline.ops)
    first, taken_from = timeline.is_first, timeline.taken_from
    free_ns = np.where(first, 0, np.roll(timeline.ends_ns, 1))
    idle_ns = timeline.starts_ns - free_ns

    message = (idle_ns > 0) & (taken_from >= 0) & (timeline.arrival_ns[taken_from] == timeline.starts_ns)
    gather = (idle_ns > 0) & ~message
    cause = np.select(
        [message, gather, ~first], [int(Awaited.MESSAGE), int(Awaited.ALL_GATHER), int(Awaited.OP)], int(Awaited.NOTHING)
    )
    gathers = {span.collective.stage: at for at, span in enumerate(timeline.collectives) if span.collective.kind == "AG"}
    awaited = np.select([message, cause == Awaited.OP], [taken_from, np.arange(count) - 1], -1)
    for op in np.flatnonzero(gather).tolist():
        awaited[op] = gathers[int(timeline.ops[op, 1])]

    def part(begin_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """How much of [begin, end) of the awaited message the rank was idle."""
        taken = np.minimum(end_ns[taken_from], timeline.starts_ns) - np.maximum(begin_ns[taken_from], free_ns)
        return np.where(message, np.maximum(0, taken), 0)

    line_before, behind = _lines(problem, timeline)
    return Waits(
        idle_ns=idle_ns,
        cause=cause,
        awaited=awaited,
        computing_ns=part(np.zeros(count, np.int64), timeline.ends_ns),
        queue_ns=part(timeline.ends_ns, timeline.transfer_start_ns),
        transmission_ns=part(timeline.transfer_start_ns, timeline.transfer_left_ns),
        latency_ns=part(timeline.transfer_left_ns, timeline.arrival_ns),
        collective_after=_collective_after(timeline),
        line_before=line_before,
        behind=behind,
    )


def _collective_after(timeline: Timeline) -> NDArray[np.int64]:
    """Per collective, the op that makes it ready: of a reduce-scatter the stage's last W or BW."""
    after = np.full(len(timeline.collectives), -1, np.int64)
    weights = np.flatnonzero(timeline.ops[:, 0] >= Kind.W) if len(after) else after
    last = dict(zip(timeline.ops[weights, 1].tolist(), weights.tolist(), strict=True))
    for at, span in enumerate(timeline.collectives):
        if span.collective.kind == "RS":
            after[at] = last[span.collective.stage]
    return after


def _lines(problem: Problem, timeline: Timeline) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`Waits.line_before` and `Waits.behind`.

    Who queues starts when something leaves that takes time. It may queue behind transfers that take none, but these began at the
    same nanosecond, and queued there as well: they were served before it, so they were ready no later.
    """
    count, spans, sent = len(timeline.ops), timeline.collectives, timeline.sent
    lane = tables_of(problem).collective_resource if spans else np.zeros(0, np.int64)
    times = np.array([[span.ready_ns, span.start_ns, span.end_ns] for span in spans], np.int64).reshape(-1, 3)
    items = np.concatenate([sent, count + np.arange(len(spans))])
    resource = np.concatenate([timeline.resource[sent], np.array([lane[span.rank] for span in spans], np.int64)])
    ready_ns = np.concatenate([timeline.ends_ns[sent], times[:, 0]])
    start_ns = np.concatenate([timeline.transfer_start_ns[sent], times[:, 1]])
    left_ns = np.concatenate([timeline.transfer_left_ns[sent], times[:, 2]])

    by_time = np.lexsort((left_ns, start_ns, resource))
    items, resource = items[by_time], resource[by_time]
    last_long = np.maximum.accumulate(np.where((left_ns > start_ns)[by_time], np.arange(len(items)), -1))
    before = np.concatenate([[-1], last_long])[: len(items)]
    before[(before < 0) | (resource[before] != resource)] = -1
    line_before = np.full(count + len(spans), -1, np.int64)
    line_before[items] = np.where(before >= 0, items[before], -1)
    behind = line_before.copy()
    behind[items[(start_ns == ready_ns)[by_time]]] = -1
    return line_before, behind
