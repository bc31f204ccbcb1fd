"""One step of a plan on all ranks, planned or measured, as one shape that both can be compared in.

`planned_times` makes StepTimes of the simulator's Timeline; `measured_steps` makes them of a Trace. Ops are numbered flat, rank
after rank in the plan's order, as in the Timeline; a transfer has the number of the op that produced it. Times are nanoseconds
from the begin of the step, which is when the first rank began it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedc.analysis.simulation.timeline import Timeline


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


def planned_times(timeline: Timeline) -> StepTimes:
    """The step as the simulator says."""
    begun_ns, ended_ns = timeline.starts_ns.tolist(), timeline.ends_ns.tolist()
    asked_ns: list[int] = []
    for begin, end in timeline.bounds:
        asked_ns += [0, *ended_ns[begin : end - 1]] if end > begin else []
    sent_ns: list[int | None] = [None] * len(begun_ns)
    taken_ns = sent_ns.copy()
    awaited = set()
    for transfer in timeline.sent.tolist():
        arrival_ns, taker_asked_ns = int(timeline.arrival_ns[transfer]), asked_ns[timeline.consumer[transfer]]
        sent_ns[transfer], taken_ns[transfer] = ended_ns[transfer], max(taker_asked_ns, arrival_ns)
        if arrival_ns >= taker_asked_ns:
            awaited.add(transfer)
    return StepTimes(
        iteration_ns=timeline.makespan_ns,
        begin_ns=(0,) * timeline.ranks,
        asked_ns=tuple(asked_ns),
        begun_ns=tuple(begun_ns),
        ended_ns=tuple(ended_ns),
        sent_ns=tuple(sent_ns),
        taken_ns=tuple(taken_ns),
        awaited=frozenset(awaited),
    )
