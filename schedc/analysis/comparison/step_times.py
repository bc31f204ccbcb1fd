"""One step of a plan on all ranks, planned or measured, as one shape that both can be compared in, and where its time went.

`planned_times` makes StepTimes of the simulator's Timeline; `measured_steps` makes them of a Trace. Ops are numbered flat, rank
after rank in the plan's order, as in the Timeline; a transfer has the number of the op that produced it. Times are nanoseconds
from the begin of the step, which is when the first rank began it. The five parts of an Account add up to the iteration exactly.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The time of one rank in one step."""

    compute_ns: int
    late_ns: int
    """Waiting for transfers whose producer had not sent them yet."""
    transfer_ns: int
    """Waiting for transfers that were under way."""
    other_ns: int
    """Between ops, waiting for no transfer: before the rank began the step, handing over, posting, collectives before it."""
    idle_ns: int
    """After the rank's last op, until the iteration ended."""

    @property
    def waiting_ns(self) -> int:
        """All time between the begin of the iteration and the rank's last op without compute."""
        return self.late_ns + self.transfer_ns + self.other_ns


def accounts(timeline: Timeline, times: StepTimes) -> tuple[Account, ...]:
    """Each rank's account of a step of the timeline's plan.

    Waiting is counted from when the rank was free to when the op began. Up to when the transfer was sent the producer is to
    blame, from then to when it was taken the transfer; sends and takes on two clocks are held within that time.
    """
    result = []
    taken_from = timeline.taken_from.tolist()
    for begin, end in timeline.bounds:
        compute_ns = late_ns = transfer_ns = other_ns = free_ns = 0
        for index in range(begin, end):
            asked_ns, begun_ns = times.asked_ns[index], times.begun_ns[index]
            transfer = taken_from[index]
            moved = times.moved(transfer) if transfer in times.awaited else None
            sent_ns, taken_ns = moved or (asked_ns, asked_ns)
            sent_ns = min(max(sent_ns, asked_ns), begun_ns)
            taken_ns = min(max(taken_ns, sent_ns), begun_ns)
            late_ns += sent_ns - asked_ns
            transfer_ns += taken_ns - sent_ns
            other_ns += (asked_ns - free_ns) + (begun_ns - taken_ns)
            compute_ns += times.ended_ns[index] - begun_ns
            free_ns = times.ended_ns[index]
        result.append(
            Account(
                compute_ns=compute_ns,
                late_ns=late_ns,
                transfer_ns=transfer_ns,
                other_ns=other_ns,
                idle_ns=times.iteration_ns - free_ns,
            )
        )
    return tuple(result)
