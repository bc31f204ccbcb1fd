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

from schedc.analysis.comparison.link_model import on_links

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.analysis.comparison.step_times import StepTimes
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.ops import Op

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


class Chains:
    """The chains of one measured step."""

    def __init__(self, timeline: Timeline, times: StepTimes) -> None:
        """Compare the step with the plan's timeline."""
        self._timeline, self._times = timeline, times
        self._rank_of, self._taken_from = timeline.rank_of.tolist(), timeline.taken_from.tolist()
        starts_ns, ends_ns = timeline.starts_ns.tolist(), timeline.ends_ns.tolist()
        self._late_begin = [found - planned for found, planned in zip(times.begun_ns, starts_ns, strict=True)]
        self._late_end = [found - planned for found, planned in zip(times.ended_ns, ends_ns, strict=True)]
        self._on_links = on_links(timeline, times)
        self._late_arrival = self._arrivals(timeline)

    def worst(self, indices: Sequence[int]) -> int:
        """Of these ops, the one that ended latest against the plan; of several, the first in time."""
        return min(indices, key=lambda index: (-self._late_end[index], self._times.ended_ns[index], index))

    def delay(self, index: int) -> Delay:
        """Why the op ended when it did."""
        chain = self._walk(index)
        late_ns = self._late_end[index]
        return Delay(
            op=self._timeline.named_ops[index],
            rank=self._rank_of[index],
            late_ns=late_ns,
            first=_first(chain, late_ns),
            causes=_together(chain),
        )

    def _arrivals(self, timeline: Timeline) -> dict[int, int]:
        """Per transfer, the delay of its arrival."""
        late: dict[int, int] = {}
        for transfer, on_link in self._on_links.items():
            _, arrival_ns = self._times.moved(transfer) or (0, 0)
            planned_ns = int(timeline.arrival_ns[transfer])
            if transfer not in self._times.awaited:  # then it came before it was taken; the plan's costs say when
                arrival_ns = min(arrival_ns, on_link.left_ns + planned_ns - int(timeline.transfer_left_ns[transfer]))
            late[transfer] = arrival_ns - planned_ns
        return late

    def _walk(self, index: int) -> list[Cause]:
        """The chain that ends with the op, in the order of time."""
        timeline, times = self._timeline, self._times
        chain: list[Cause] = []
        passed: set[int] = set()
        while True:
            passed.add(index)
            op, rank = timeline.named_ops[index], self._rank_of[index]
            late_begin = self._late_begin[index]
            chain.append(Cause(what="compute", op=op, rank=rank, added_ns=self._late_end[index] - late_begin))
            transfer = self._taken_from[index]
            if transfer in times.awaited:
                chain.append(Cause(what="rank", op=op, rank=rank, added_ns=late_begin - self._late_arrival[transfer]))
                index = self._walk_links(transfer, chain, passed)
            elif index > timeline.bounds[rank][0]:
                chain.append(Cause(what="rank", op=op, rank=rank, added_ns=late_begin - self._late_end[index - 1]))
                index -= 1
            else:
                begin_ns = times.begin_ns[rank]
                chain.append(Cause(what="rank", op=op, rank=rank, added_ns=late_begin - begin_ns))
                chain.append(Cause(what="begin", op=None, rank=rank, added_ns=begin_ns))
                return chain[::-1]

    def _walk_links(self, transfer: int, chain: list[Cause], passed: set[int]) -> int:
        """Walk back over the transfers that queued behind each other; gives the op that produced the first of them."""
        while True:
            before = self._on_links[transfer].behind
            if before in passed:  # on a trunk, clocks of several ranks that are a little apart could make a cycle
                before = -1
            earlier_ns = self._late_end[transfer] if before < 0 else self._late_arrival[before]
            chain.append(
                Cause(
                    what="transfer",
                    op=self._timeline.named_ops[transfer],
                    rank=self._timeline.links[transfer][0],
                    destination=self._timeline.links[transfer][1],
                    added_ns=self._late_arrival[transfer] - earlier_ns,
                )
            )
            if before < 0:
                return transfer
            transfer = before


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
    groups: dict[tuple[object, ...], list[Cause]] = {}
    for cause in chain:
        groups.setdefault(_source(cause), []).append(cause)
    return groups


def _source(cause: Cause) -> tuple[object, ...]:
    """What causes have in common that are taken together: the stage and kind, the link, or the rank."""
    block = (cause.op.kind, cause.op.stage) if cause.op is not None and cause.what == "compute" else None
    return cause.what, cause.rank, cause.destination, block
