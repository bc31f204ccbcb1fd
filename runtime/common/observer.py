"""What a pipe reports of a step while it runs: when each op asked, began and ended, when each transfer was sent and had come.

Times are on `time.perf_counter_ns` of the rank's process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from schedc.ir.ops import Op
    from schedc.ir.plan import Plan


class OpTimes(NamedTuple):
    """One op of a step."""

    op: Op
    asked_ns: int
    """When the rank was free for it: the op before it had ended."""
    begun_ns: int
    """When its work began: what it waited for had come."""
    ended_ns: int


class Observer:
    """Called with what happens in the steps of one rank; these methods do nothing, override those that matter.

    They run in the thread of the step, between its ops: keep them short.
    """

    joint = False
    """Whether it agrees with those of other ranks while they train: then all ranks load with one that does, or none."""

    def begin_step(self, step: int, now_ns: int) -> None:
        """Step number `step` of this pipe begins; the first is 0."""

    def op(self, times: OpTimes) -> None:
        """An op has run. On a GPU this is called after the step, when its events are known; always in the order of the queue."""

    def sent(self, transfer: Op, peer: int, now_ns: int) -> None:
        """At this time the rank began to hand a transfer, named by the op that produced it, to its channel to rank `peer`."""

    def taken(self, transfer: Op, peer: int, now_ns: int) -> None:
        """A transfer from rank `peer` had come by now, when an op takes it; it may have come earlier."""

    def swapped(self, plan: Plan) -> None:
        """From the next step on, another plan runs."""

    def end_step(self, step: int, now_ns: int) -> None:
        """The step has ended on this rank, losses and collectives included."""
