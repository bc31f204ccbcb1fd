"""The critical path of a timeline: a chain of events from 0 to the end of the step, each of which starts when the one before ends.

Takes a Timeline and its Waits; gives the segments in the order of time. They tile [0, makespan] exactly. A transfer that queued is
preceded by the transmission that it queued behind, so queueing has no segment of its own: it is the other transmissions' time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from schedc.analysis.attribution.waits import Awaited, Waits
from schedc.ir.ops import KIND_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.analysis.simulation.timeline import Timeline


class SegmentKind(StrEnum):
    """What happens in a segment."""

    F = "F"
    B = "B"
    W = "W"
    BW = "BW"
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
    collective: int | None = None
    """Its index in `Timeline.collectives`."""

    @property
    def length_ns(self) -> int:
        """How long it takes."""
        return self.end_ns - self.start_ns


def critical_path(timeline: Timeline, waits: Waits) -> tuple[Segment, ...]:
    """The chain that ends when the step ends; of several, the one that stays on its rank where it can."""
    return tuple(segment for segment in _walk(timeline, waits) if segment.length_ns)[::-1]


def _walk(timeline: Timeline, waits: Waits) -> Iterator[Segment]:
    """The segments from the end of the step on, back to 0."""
    count, makespan_ns = len(timeline.ops), timeline.makespan_ns
    last = [at for at, span in enumerate(timeline.collectives) if span.end_ns == makespan_ns]
    if makespan_ns == 0:
        return
    op_ends = (timeline.ends_ns == makespan_ns).nonzero()[0].tolist()
    event = op_ends[0] if op_ends else 2 * count + last[0]
    while True:  # an op's number; count + op for its transfer; 2 × count + c for the collective c
        if event >= 2 * count:
            at = event - 2 * count
            span = timeline.collectives[at]
            kind = SegmentKind.ALL_GATHER if span.collective.kind == "AG" else SegmentKind.REDUCE_SCATTER
            yield Segment(kind=kind, rank=span.rank, start_ns=span.start_ns, end_ns=span.end_ns, collective=at)
            if span.start_ns == 0:
                return
            behind = int(waits.behind[count + at])
            event = count + behind if behind >= 0 else int(waits.collective_after[at])
        elif event >= count:
            op = event - count
            start_ns, left_ns = int(timeline.transfer_start_ns[op]), int(timeline.transfer_left_ns[op])
            yield _transfer(SegmentKind.TRANSMISSION, timeline.links[op], op, start_ns, left_ns)
            if start_ns == 0:
                return
            behind = int(waits.behind[op])
            event = count + behind if behind >= 0 else op
        else:
            start_ns, end_ns = int(timeline.starts_ns[event]), int(timeline.ends_ns[event])
            kind = SegmentKind(KIND_NAMES[timeline.ops[event, 0]])
            yield Segment(kind=kind, rank=int(timeline.rank_of[event]), start_ns=start_ns, end_ns=end_ns, op=event)
            if start_ns == 0:
                return
            awaited = int(waits.awaited[event])
            if waits.cause[event] == Awaited.ALL_GATHER:
                event = 2 * count + awaited
            elif waits.cause[event] == Awaited.MESSAGE:
                left_ns, arrival_ns = int(timeline.transfer_left_ns[awaited]), int(timeline.arrival_ns[awaited])
                yield _transfer(SegmentKind.LATENCY, timeline.links[awaited], awaited, left_ns, arrival_ns)
                event = count + awaited
            else:
                event = awaited


def _transfer(kind: SegmentKind, ends: tuple[int, int], op: int, start_ns: int, end_ns: int) -> Segment:
    return Segment(kind=kind, rank=ends[0], destination=ends[1], start_ns=start_ns, end_ns=end_ns, op=op)
