"""What each rank did with the time of a step: compute, three kinds of waiting, and the idle time after its last op.

Takes the StepTimes of a step, planned or measured; gives one Account for each rank. The five add up to the iteration exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedc.analysis.comparison.step_times import StepTimes
    from schedc.analysis.simulation.timeline import Timeline


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
