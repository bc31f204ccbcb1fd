"""Why an op was late: its critical chain as measured, walked back to the begin of the step, and who added what to the delay.

The delay of an event is its measured time less its planned one. On the chain each op, transfer and rank adds the difference between
its event's delay and that of what it waited for; what they add is the delay of the op at the chain's end, exactly. Where the
plan had slack, or something was faster than planned, less than nothing is added. An op waited for its transfer if it was there
before it came, else for the op before it on its rank; a transfer waited for its producer, or for another on its link or trunk
that by the plan's costs had not left it yet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from schedc.analysis.attribution.waits import awaited_events
from schedc.ir import Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from schedc.analysis.comparison.steps import Step
    from schedc.analysis.simulation.timeline import Timeline

SIGNIFICANT = 10
"""A stage's kind of block, a link or a rank matters if it adds the delay's tenth part or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One event of a chain and what it added."""

    what: Literal["compute", "transfer", "rank", "begin"]
    """An op that took longer; a transfer that took longer; a rank that began an op late though all was there; a rank that
    began the step late."""
    op: Op | None
    """The op, or the one that produced the transfer; for a rank, the op that it began late; None for the begin of the step."""
    rank: int
    """Where it happened; of a transfer, the source."""
    destination: int | None = None
    """Of a transfer."""
    added_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """An op, by how much it ended later than planned, and why."""

    op: Op
    rank: int
    late_ns: int
    first: Cause | None
    """Where the delay came in: the first event that matters after the chain was last as good as in time. Its stage's blocks of a
    kind, its link or its rank added a tenth of the delay or more. None: many small ones."""
    causes: tuple[Cause, ...]
    """The whole chain's causes, those of one stage and kind, link or rank taken together, the largest first."""


def delays_of(planned: Timeline, step: Step, ops: Iterable[int]) -> list[Delay]:
    """Why these ops of a measured step ended when they did, against the plan."""
    measured, transfers = step.timeline, planned.first_transfer
    late_begin = (measured.starts_ns - planned.starts_ns).tolist()
    late = np.concatenate([measured.ends_ns - planned.ends_ns, measured.arrival_ns - planned.arrival_ns]).tolist()
    """Of the end of each op, then of the arrival of each transfer."""
    found = []
    for index in ops:
        chain: list[Cause] = []
        events = list(awaited_events(measured, step.waits, index))
        for event, before in zip(events, [*events[1:], None], strict=True):
            producer = event if event < transfers else int(planned.sender[event - transfers])
            op, rank = planned.named_ops[producer], int(planned.rank_of[producer])
            earlier_ns = int(step.begin_ns[rank]) if before is None else late[before]
            if event >= transfers:
                ends = planned.links[event - transfers]
                added_ns = late[event] - earlier_ns
                chain.append(Cause(what="transfer", op=op, rank=ends[0], destination=ends[1], added_ns=added_ns))
            else:
                chain.append(Cause(what="compute", op=op, rank=rank, added_ns=late[event] - late_begin[event]))
                chain.append(Cause(what="rank", op=op, rank=rank, added_ns=late_begin[event] - earlier_ns))
        chain = [*chain, Cause(what="begin", op=None, rank=rank, added_ns=earlier_ns)][::-1]
        first = _first(chain, late[index])
        op, rank = planned.named_ops[index], int(planned.rank_of[index])
        found.append(Delay(op=op, rank=rank, late_ns=late[index], first=first, causes=_together(chain)))
    return found


def _first(chain: Sequence[Cause], late_ns: int) -> Cause | None:
    """The first event that matters, of those after the chain was last as good as in time again."""
    if late_ns <= 0:
        return None
    running_ns, begin = 0, 0
    for at, cause in enumerate(chain[:-1], start=1):
        running_ns += cause.added_ns
        if cause.added_ns <= 0 and running_ns * SIGNIFICANT <= late_ns:
            begin = at
    groups = _groups(chain[begin:])
    for cause in chain[begin:]:
        group = groups[_source(cause)]
        most_ns = max(other.added_ns for other in group)
        if sum(other.added_ns for other in group) * SIGNIFICANT >= late_ns and cause.added_ns * SIGNIFICANT >= most_ns:
            return cause
    return None


def _together(chain: Sequence[Cause]) -> tuple[Cause, ...]:
    """One cause for all of the same source, with the op that added most; those that added nothing go."""
    result = []
    for group in _groups(chain).values():
        most = max(group, key=lambda cause: cause.added_ns)
        added_ns = sum(cause.added_ns for cause in group)
        if added_ns:
            result.append(replace(most, added_ns=added_ns))
    return tuple(sorted(result, key=lambda cause: -cause.added_ns))


def _groups(chain: Sequence[Cause]) -> dict[tuple[object, ...], list[Cause]]:
    """The causes that are taken together: of a stage and kind, a link, or a rank."""
    groups: dict[tuple[object, ...], list[Cause]] = {}
    for cause in chain:
        groups.setdefault(_source(cause), []).append(cause)
    return groups


def _source(cause: Cause) -> tuple[object, ...]:
    block = (cause.op.kind, cause.op.stage) if cause.op is not None and cause.what == "compute" else None
    return cause.what, cause.rank, cause.destination, block
