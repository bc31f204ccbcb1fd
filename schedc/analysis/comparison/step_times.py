"""One step of a plan on all ranks, planned or measured, as one shape that both can be compared in.

`planned_times` makes StepTimes of the simulator's Timeline; `measured_steps` makes them of a Trace. Ops are numbered flat, rank
after rank in the plan's order, as in the Timeline; a transfer has the number of the op that produced it. Times are nanoseconds
from the begin of the step, which is when the first rank began it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from schedc.ir.ops import WHOLE, Kind, Op

if TYPE_CHECKING:
    from schedc.analysis.simulation.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """The plan's ops and transfers, numbered flat."""

    ops: tuple[Op, ...]
    bounds: tuple[tuple[int, int], ...]
    """Per rank, its ops: from and to."""
    rank_of: tuple[int, ...]
    taken_from: tuple[int, ...]
    """Per op, the transfer that it takes, or -1."""
    taken_by: tuple[int, ...]
    """Per op, the op that takes its transfer, or -1."""
    sends: tuple[int, ...]
    """The ops that produce a transfer."""
    number: dict[Op, int]
    """Per transfer's name."""

    def link(self, transfer: int) -> tuple[int, int]:
        """The ranks from which and to which it goes."""
        return self.rank_of[transfer], self.rank_of[self.taken_by[transfer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """When everything of one step happened."""

    iteration_ns: int
    """To the end of the last op on any rank; with data-parallel collectives, of the last of them."""
    begin_ns: tuple[int, ...]
    """Per rank, when it began the step."""
    asked_ns: tuple[int, ...]
    """Per op, when its rank was free for it."""
    begun_ns: tuple[int, ...]
    ended_ns: tuple[int, ...]
    sent_ns: tuple[int | None, ...]
    """Per op, when its transfer was handed to its channel; None: it has none."""
    taken_ns: tuple[int | None, ...]
    """Per op, when its transfer was taken."""
    awaited: frozenset[int] = frozenset()
    """The transfers whose op was there before them: they were taken when they came. The others came no later than taken."""

    def moved(self, transfer: int) -> tuple[int, int] | None:
        """When the transfer was sent and taken; None where one of the two is not known."""
        sent_ns, taken_ns = self.sent_ns[transfer], self.taken_ns[transfer]
        return None if sent_ns is None or taken_ns is None else (sent_ns, taken_ns)


def lanes_of(timeline: Timeline) -> Lanes:
    """The ops and transfers of the timeline's plan."""
    kinds = tuple(Kind)
    ops = tuple(Op(kinds[kind], stage, microbatch, part) for kind, stage, microbatch, part in timeline.ops.tolist())
    bounds = tuple(pairwise(timeline.begin.tolist()))
    taken_by: list[int] = timeline.consumer.tolist()
    taken_from = [-1] * len(ops)
    sends = tuple(transfer for transfer, consumer in enumerate(taken_by) if consumer >= 0)
    for transfer in sends:
        taken_from[taken_by[transfer]] = transfer
    return Lanes(
        ops=ops,
        bounds=bounds,
        rank_of=tuple(rank for rank, (begin, end) in enumerate(bounds) for _ in range(begin, end)),
        taken_from=tuple(taken_from),
        taken_by=tuple(taken_by),
        sends=sends,
        number={ops[transfer]._replace(part=WHOLE): transfer for transfer in sends},
    )


def planned_times(timeline: Timeline, lanes: Lanes) -> StepTimes:
    """The step as the simulator says."""
    begun_ns, ended_ns = timeline.starts_ns.tolist(), timeline.ends_ns.tolist()
    asked_ns: list[int] = []
    for begin, end in lanes.bounds:
        asked_ns += [0, *ended_ns[begin : end - 1]] if end > begin else []
    sent_ns: list[int | None] = [None] * len(lanes.ops)
    taken_ns = sent_ns.copy()
    for transfer in lanes.sends:
        sent_ns[transfer] = ended_ns[transfer]
        taken_ns[transfer] = max(asked_ns[lanes.taken_by[transfer]], int(timeline.arrival_ns[transfer]))
    return StepTimes(
        iteration_ns=timeline.makespan_ns,
        begin_ns=(0,) * len(lanes.bounds),
        asked_ns=tuple(asked_ns),
        begun_ns=tuple(begun_ns),
        ended_ns=tuple(ended_ns),
        sent_ns=tuple(sent_ns),
        taken_ns=tuple(taken_ns),
        awaited=frozenset(
            transfer for transfer in lanes.sends if timeline.arrival_ns[transfer] >= asked_ns[lanes.taken_by[transfer]]
        ),
    )
