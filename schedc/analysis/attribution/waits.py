"""What every op of a timeline waited for, what every transfer and collective queued behind, and the critical path.

`waits_of` takes a Problem and the Timeline of one of its schedules; gives one Waits. Everything there follows from the times alone:
what starts at t waited for what came to it at t. Where several did, the rank's own previous op is named, then the message, then the
all-gather.

`critical_path` takes a Timeline and its Waits; gives a chain of events from 0 to the end of the step, each of which starts when the
one before ends, as segments in the order of time. They tile [0, makespan] exactly. A transfer that queued is preceded by the
transmission that it queued behind, so queueing has no segment of its own: it is the other transmissions' time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

import numpy as np

from schedc.ir import KIND_NAMES, Problem
from schedc.ir.index import tables_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from schedc.analysis.simulation.timeline import Timeline


class Awaited(IntEnum):
    """What an op waited for last."""

    NOTHING = 0
    """It starts at 0, the first of its rank."""
    OP = 1
    """The op before it on its rank: the rank was not idle."""
    MESSAGE = 2
    """A transfer from another rank."""
    ALL_GATHER = 3
    """A collective of its rank: the all-gather of its stage's weights, or of sharded ones a reduction whose room is needed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waits:
    """Per op, flat as in the Timeline, what it waited for; of several transfers, the one that arrived last."""

    idle_ns: NDArray[np.int64]
    """How long the rank was idle before the op."""
    cause: NDArray[np.int64]
    """A value of `Awaited`."""
    awaited: NDArray[np.int64]
    """The op before, the transfer, the index of the collective in `Timeline.collectives`, or -1."""
    collective_after: NDArray[np.int64]
    """Per collective of the Timeline, the op that makes it ready, or -1 where it is ready at the begin."""
    line_before: NDArray[np.int64]
    """Per transfer, what took time before it on the same link or trunk, and last; after these, the same per collective of the
    Timeline. A transfer has its number, the collective c the number of transfers + c, and -1 is nothing."""
    behind: NDArray[np.int64]
    """The same where the transfer or collective queued behind it: it starts when that leaves; -1 where it did not queue."""


def waits_of(problem: Problem, timeline: Timeline) -> Waits:
    """What everything of the timeline waited for; the timeline is of a schedule of the problem, with decoupled transfers."""
    count = len(timeline.ops)
    first, taken_from = timeline.is_first, timeline.taken_from
    free_ns = np.where(first, 0, np.roll(timeline.ends_ns, 1))
    idle_ns = timeline.starts_ns - free_ns

    message = (idle_ns > 0) & (timeline.of_taken(timeline.arrival_ns, -1) == timeline.starts_ns)
    gather = (idle_ns > 0) & ~message
    cause = np.select(
        [message, gather, ~first], [int(Awaited.MESSAGE), int(Awaited.ALL_GATHER), int(Awaited.OP)], int(Awaited.NOTHING)
    )
    ended = {
        op: at
        for at, op in enumerate(timeline.collective_taker.tolist())
        if timeline.collectives[at].end_ns == timeline.starts_ns[op]
    }
    awaited = np.select([message, cause == Awaited.OP], [taken_from, np.arange(count) - 1], -1)
    for op in np.flatnonzero(gather).tolist():
        awaited[op] = ended[op]
    line_before, behind = _lines(problem, timeline)
    return Waits(
        idle_ns=idle_ns,
        cause=cause,
        awaited=awaited,
        collective_after=timeline.collective_after,
        line_before=line_before,
        behind=behind,
    )


def _lines(problem: Problem, timeline: Timeline) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`Waits.line_before` and `Waits.behind`.

    Who queues starts when something leaves that takes time. It may queue behind transfers that take none, but these began at the
    same nanosecond, and queued there as well: they were served before it, so they were ready no later.
    """
    count, spans, sent = len(timeline.sender), timeline.collectives, timeline.sent
    lane = tables_of(problem).collective_resource if spans else np.zeros(0, np.int64)
    times = np.array([[span.ready_ns, span.start_ns, span.end_ns] for span in spans], np.int64).reshape(-1, 3)
    items = np.concatenate([sent, count + np.arange(len(spans))])
    resource = np.concatenate([timeline.resource[sent], np.array([lane[span.rank] for span in spans], np.int64)])
    ready_ns = np.concatenate([timeline.ends_ns[timeline.sender[sent]], times[:, 0]])
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


class SegmentKind(StrEnum):
    """What happens in a segment."""

    F = "F"
    B = "B"
    W = "W"
    BW = "BW"
    U = "U"
    TRANSMISSION = "transmission"
    """A transfer occupies its link or trunk."""
    LATENCY = "latency"
    """A transfer has left its link and has not arrived."""
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of the critical path; it takes more than 0 ns."""

    kind: SegmentKind
    rank: int
    """Of a transfer, the source."""
    destination: int | None = None
    """Of a transfer, the rank that receives it."""
    start_ns: int
    end_ns: int
    op: int | None = None
    """The op, flat as in the Timeline, or the one that produced the transfer; None for a collective."""
    transfer: int | None = None
    """Its number in the Timeline."""
    collective: int | None = None
    """Its index in `Timeline.collectives`."""

    @property
    def length_ns(self) -> int:
        """How long it takes."""
        return self.end_ns - self.start_ns


def awaited_events(timeline: Timeline, waits: Waits, event: int) -> Iterator[int]:
    """An event, numbered as in the Timeline, and before it what it waited for, and so on, back to what waited for nothing."""
    transfers, collectives = timeline.first_transfer, timeline.first_collective
    passed: set[int] = set()
    while event >= 0:
        yield event
        if event >= collectives:
            behind = int(waits.behind[event - transfers])
            event = transfers + behind if behind >= 0 else int(waits.collective_after[event - collectives])
        elif event >= transfers:
            behind, transfer = int(waits.behind[event - transfers]), event - transfers
            # on a trunk, clocks that are a little apart could make a cycle
            known = behind >= 0 and not (behind < len(timeline.sender) and int(timeline.sender[behind]) in passed)
            event = transfers + behind if known else int(timeline.sender[transfer])
        else:
            passed.add(event)
            cause = waits.cause[event]
            kind = collectives if cause == Awaited.ALL_GATHER else transfers if cause == Awaited.MESSAGE else 0
            event = kind + int(waits.awaited[event])


def critical_path(timeline: Timeline, waits: Waits) -> tuple[Segment, ...]:
    """The chain that ends when the step ends; of several, the one that stays on its rank where it can."""
    return tuple(segment for segment in _segments(timeline, waits) if segment.length_ns)[::-1]


def _segments(timeline: Timeline, waits: Waits) -> Iterator[Segment]:
    """The segments from the end of the step on, back to 0."""
    transfers, collectives, makespan_ns = timeline.first_transfer, timeline.first_collective, timeline.makespan_ns
    if makespan_ns == 0:
        return
    op_ends = (timeline.ends_ns == makespan_ns).nonzero()[0].tolist()
    last = [collectives + at for at, span in enumerate(timeline.collectives) if span.end_ns == makespan_ns]
    later = -1
    for event in awaited_events(timeline, waits, [*op_ends, *last][0]):
        if event >= collectives:
            span = timeline.collectives[event - collectives]
            kind = SegmentKind.ALL_GATHER if span.collective.kind == "AG" else SegmentKind.REDUCE_SCATTER
            yield Segment(kind=kind, rank=span.rank, start_ns=span.start_ns, end_ns=span.end_ns, collective=event - collectives)
        elif event >= transfers:
            transfer = event - transfers
            start_ns, left_ns, arrival_ns = (
                int(each[transfer]) for each in (timeline.transfer_start_ns, timeline.transfer_left_ns, timeline.arrival_ns)
            )
            if later < transfers:  # an op took it; what queued behind it waited until it had left
                yield _transfer(SegmentKind.LATENCY, timeline, transfer, left_ns, arrival_ns)
            yield _transfer(SegmentKind.TRANSMISSION, timeline, transfer, start_ns, left_ns)
        else:
            start_ns, end_ns = int(timeline.starts_ns[event]), int(timeline.ends_ns[event])
            kind = SegmentKind(KIND_NAMES[timeline.ops[event, 0]])
            yield Segment(kind=kind, rank=int(timeline.rank_of[event]), start_ns=start_ns, end_ns=end_ns, op=event)
        later = event


def _transfer(kind: SegmentKind, timeline: Timeline, transfer: int, start_ns: int, end_ns: int) -> Segment:
    source, destination = timeline.links[transfer]
    op = int(timeline.sender[transfer])
    return Segment(kind=kind, rank=source, destination=destination, start_ns=start_ns, end_ns=end_ns, op=op, transfer=transfer)
