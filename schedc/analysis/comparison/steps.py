"""One step of a plan on all ranks, planned or measured, in one shape: a Timeline, what everything waited for, and when.

`planned_step` takes the simulator's Timeline; `measured_steps` a Trace, checked against the plan. A trace has when a transfer was
sent and when it was taken. It may have queued on its link before it left, which the plan's occupancies tell; and it may have come
long before it was taken. It was taken when it came, so that its time is known, only if the op that took it was there before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from schedc.analysis.attribution.waits import Awaited, Waits, waits_of
from schedc.errors import InvalidInput
from schedc.ir import Op, Plan, Problem, StepTrace, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from schedc.analysis.simulation.timeline import Timeline

NEVER = -(2**62)
"""When a transfer was sent or taken that never was."""
LONG_AGO = 2
"""An op that asks this many times later than transfers of the link take finds its transfer there, however long the taking lasts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """When everything of one step happened, in nanoseconds from when the first rank began it.

    Arrays are per op or per transfer, numbered as in the Timeline; per transfer: `sent_ns`, `taken_ns`, `awaited`. An op that needs
    several transfers takes one after the other.
    """

    timeline: Timeline
    """Of a measured step, when a transfer had its link and, if no op waited for it, when it came follow from the plan's costs;
    transfers that never were are not in it, nor are collectives."""
    waits: Waits
    iteration_ns: int
    """To the end of the last op on any rank; with data-parallel collectives, of the last of them."""
    begin_ns: NDArray[np.int64]
    """Per rank, when it began the step."""
    asked_ns: NDArray[np.int64]
    """When its rank was free for the op."""
    sent_ns: NDArray[np.int64]
    """When the transfer was handed to its channel, or `NEVER`."""
    taken_ns: NDArray[np.int64]
    """When it was taken, or `NEVER`."""
    awaited: NDArray[np.bool_]
    """Whether the taking op was there before it: it was taken when it came. Others came no later than taken."""


def planned_step(problem: Problem, timeline: Timeline) -> Step:
    """The step as the simulator says."""
    asked_ns = np.where(timeline.is_first, 0, np.roll(timeline.ends_ns, 1))
    taker_asked_ns = asked_ns[timeline.first_taker]
    return Step(
        timeline=timeline,
        waits=waits_of(problem, timeline),
        iteration_ns=timeline.makespan_ns,
        begin_ns=np.zeros(timeline.ranks, np.int64),
        asked_ns=asked_ns,
        sent_ns=timeline.ends_ns[timeline.sender],
        taken_ns=np.maximum(taker_asked_ns, timeline.arrival_ns),
        awaited=timeline.arrival_ns >= taker_asked_ns,
    )


def measured_steps(plan: Plan, planned: Timeline, trace: Trace) -> tuple[Step, ...]:
    """The recorded steps of a trace of the plan, in its order; the timeline is the plan's.

    Raises:
        InvalidInput: the trace is not of the plan.
    """
    check_trace(plan, trace)
    numbers = range(len(trace.steps))
    origin_ns = [min(rank.steps[at].step_begin_ns for rank in trace.ranks) for at in numbers]

    def times(of_step: Callable[[StepTrace], Iterable[int]]) -> NDArray[np.int64]:
        """By step, all ranks' times one after another."""
        rows = [[time_ns - origin_ns[at] for rank in trace.ranks for time_ns in of_step(rank.steps[at])] for at in numbers]
        return np.array(rows, np.int64).reshape(len(rows), -1)

    sent_ns = np.full((len(numbers), len(planned.sender)), NEVER, np.int64)
    taken_ns = sent_ns.copy()
    for rank in trace.ranks:
        for place, channel in enumerate(rank.channels):
            transfers = [planned.number_of_transfer[op] for op in channel.transfers]
            for at, step in enumerate(rank.steps):
                side = (taken_ns if channel.receives else sent_ns)[at]
                side[transfers] = [NEVER if ns is None else ns - origin_ns[at] for ns in step.channels_ns[place]]
    asked_ns, begun_ns, ended_ns = (times(lambda s: s.asked_ns), times(lambda s: s.begun_ns), times(lambda s: s.ended_ns))
    collectives = plan.problem.data_parallel is not None
    over_ns = times(lambda s: [s.step_end_ns if collectives else max(s.ended_ns, default=s.step_begin_ns)]).max(axis=1)
    begin_ns, moved = times(lambda s: [s.step_begin_ns]), (sent_ns != NEVER) & (taken_ns != NEVER)
    on_links = [_on_links(planned, sent_ns[at], moved[at]) for at in numbers]
    start_ns = np.array([each[0] for each in on_links], np.int64)
    awaited = _awaited(planned, asked_ns, sent_ns, taken_ns, start_ns, moved, _floor_ns(planned, begun_ns - asked_ns))

    came_ns = start_ns + (planned.arrival_ns - planned.transfer_start_ns)
    arrival_ns = np.where(moved, np.where(awaited, taken_ns, np.minimum(came_ns, taken_ns)), 0)
    left_ns = np.minimum(start_ns + (planned.transfer_left_ns - planned.transfer_start_ns), arrival_ns)
    steps = []
    for at in numbers:
        timeline = replace(
            planned,
            starts_ns=begun_ns[at],
            ends_ns=ended_ns[at],
            taken=planned.taken[moved[at][planned.taken]],
            taker=planned.taker[moved[at][planned.taken]],
            resource=np.where(moved[at], planned.resource, -1),
            transfer_start_ns=np.minimum(start_ns, arrival_ns)[at],
            transfer_left_ns=left_ns[at],
            arrival_ns=arrival_ns[at],
            collectives=(),
        )
        steps.append(
            Step(
                timeline=timeline,
                waits=_measured_waits(timeline, awaited[at], *on_links[at][1:]),
                iteration_ns=int(over_ns[at]),
                begin_ns=begin_ns[at],
                asked_ns=asked_ns[at],
                sent_ns=sent_ns[at],
                taken_ns=taken_ns[at],
                awaited=awaited[at],
            )
        )
    return tuple(steps)


def _on_links(
    planned: Timeline, sent_ns: NDArray[np.int64], moved: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Per transfer when it had its link or trunk, by the plan's occupancies; `line_before` and `behind` as `Waits` has them.

    A link serves them in the order in which they were sent; of those of the same nanosecond, in the plan's.
    """
    start_ns, line_before, behind = sent_ns.copy(), np.full(len(sent_ns), -1, np.int64), np.full(len(sent_ns), -1, np.int64)
    occupancy_ns = (planned.transfer_left_ns - planned.transfer_start_ns).tolist()
    served: dict[int, tuple[int, int]] = {}
    """Per resource, the last transfer that it served, and when that left it."""
    transfers = np.flatnonzero(moved)
    for transfer in transfers[np.lexsort((planned.transfer_start_ns[transfers], sent_ns[transfers]))].tolist():
        resource, ready_ns = int(planned.resource[transfer]), int(sent_ns[transfer])
        last, free_ns = served.get(resource, (-1, ready_ns))
        line_before[transfer] = last if last < 0 or occupancy_ns[last] else line_before[last]
        if free_ns > ready_ns:
            start_ns[transfer], behind[transfer] = free_ns, last
        served[resource] = transfer, max(ready_ns, free_ns) + occupancy_ns[transfer]
    return start_ns, line_before, behind


def _awaited(
    planned: Timeline,
    asked_ns: NDArray[np.int64],
    sent_ns: NDArray[np.int64],
    taken_ns: NDArray[np.int64],
    start_ns: NDArray[np.int64],
    moved: NDArray[np.bool_],
    floor_ns: int,
) -> NDArray[np.bool_]:
    """By step and transfer, whether it was taken when it came.

    Certainly so are those that were sent when their op was there already. Of the others those are taken for awaited whose op spent
    more time on taking them than `floor_ns`, unless it came so late that such a transfer is there: later than twice what it takes
    in the plan, queueing included, and than twice what the certain ones of its link take in the median, or, where there are none,
    the shortest of all.
    """
    taker_asked_ns, time_ns = _taker_asked_ns(planned, asked_ns, start_ns, taken_ns), np.maximum(0, taken_ns - start_ns)
    certain = moved & (sent_ns >= taker_asked_ns)
    usual_ns = (planned.arrival_ns - planned.ends_ns[planned.sender]).astype(np.float64)  # behind collectives, too
    for transfers in transfers_of_links(planned).values():
        for those in (certain, moved):
            found_ns = time_ns[:, transfers][those[:, transfers]]
            if len(found_ns):
                usual_ns[transfers] = np.maximum(usual_ns[transfers], np.median(found_ns) if those is certain else found_ns.min())
                break
    soon = taker_asked_ns - start_ns <= LONG_AGO * usual_ns
    return certain | (moved & (taken_ns - taker_asked_ns > floor_ns) & soon)


def _taker_asked_ns(
    planned: Timeline, asked_ns: NDArray[np.int64], start_ns: NDArray[np.int64], taken_ns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """By step and transfer, when the op that takes it asked for it: when its rank was free for it, or had taken another for it.

    Of those taken in the same nanosecond the one that came last by the plan's costs was taken first: the others were there.
    """
    taker = planned.first_taker
    found_ns = asked_ns[:, taker]
    if len(np.unique(taker)) < len(taker):
        there_ns = start_ns + (planned.arrival_ns - planned.transfer_start_ns)
        for at_ns, came_ns, last_ns in zip(found_ns, taken_ns, there_ns, strict=True):
            in_turn = np.lexsort((-np.arange(len(taker)), -last_ns, came_ns, taker))
            again = np.flatnonzero(np.diff(taker[in_turn]) == 0)
            transfer, earlier = in_turn[again + 1], in_turn[again]
            at_ns[transfer] = np.maximum(at_ns[transfer], came_ns[earlier])
    return found_ns


def _floor_ns(planned: Timeline, gaps_ns: NDArray[np.int64]) -> int:
    """What going on takes where nothing is awaited: four times the median of the ops that take no transfer.

    Taking a transfer that has come is a few calls more than taking none; waiting for one is seldom so short. The first op of each
    stage does not count, as an all-gather may be before it.
    """
    _, first = np.unique(planned.ops[:, 1], return_index=True)  # a stage is on one rank
    alone = planned.taken_from < 0
    alone[first] = False
    return int(4 * np.median(gaps_ns[:, alone])) if alone.any() else 0


def _measured_waits(
    timeline: Timeline, awaited: NDArray[np.bool_], line_before: NDArray[np.int64], behind: NDArray[np.int64]
) -> Waits:
    """An op waited for a transfer if it was there before it came, else for the op before it."""
    first, message = timeline.is_first, last_awaited(timeline, awaited)
    return Waits(
        idle_ns=timeline.starts_ns - np.where(first, 0, np.roll(timeline.ends_ns, 1)),
        cause=np.select([message >= 0, ~first], [int(Awaited.MESSAGE), int(Awaited.OP)], int(Awaited.NOTHING)),
        awaited=np.select([message >= 0, ~first], [message, np.arange(len(first)) - 1], -1),
        collective_after=np.zeros(0, np.int64),
        line_before=line_before,
        behind=behind,
    )


def last_awaited(timeline: Timeline, awaited: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Per op, the last transfer to arrive of those that it was there before, or -1; one that several need, the first awaited."""
    waited = np.flatnonzero(awaited[timeline.taken] & (timeline.first_taker[timeline.taken] == timeline.taker))
    waited = waited[np.argsort(timeline.arrival_ns[timeline.taken[waited]], kind="stable")]
    found = np.full(len(timeline.ops), -1, np.int64)
    found[timeline.taker[waited]] = timeline.taken[waited]
    return found


def transfers_of_links(timeline: Timeline) -> dict[tuple[int, int], list[int]]:
    """The transfers that cross each link, by its source and destination."""
    found: dict[tuple[int, int], list[int]] = {}
    for transfer, link in enumerate(timeline.links):
        found.setdefault(link, []).append(transfer)
    return dict(sorted(found.items()))


def check_trace(plan: Plan, trace: Trace) -> None:
    """Refuse a trace whose ops or transfers are not the plan's.

    Raises:
        InvalidInput: says where the first difference is.
    """
    if len(trace.ranks) != len(plan.ranks):
        raise InvalidInput(f"the trace has {len(trace.ranks)} ranks, expected the {len(plan.ranks)} of the plan")
    for planned, found in zip(plan.ranks, trace.ranks, strict=True):
        _check_equal(plan.problem, planned.compute, found.compute, f"rank {planned.rank} ran")
        channels = {(channel.name, channel.peer): channel.transfers for channel in found.channels}
        for channel in planned.channels:
            moved = channels.pop((channel.name, channel.peer), ())
            _check_equal(plan.problem, channel.transfers, moved, f"rank {planned.rank} moved on {channel.name}")
        for name, peer in channels:
            raise InvalidInput(f"rank {planned.rank} has a channel {name} with rank {peer} in the trace, and none in the plan")


def _check_equal(problem: Problem, planned: Sequence[Op], found: Sequence[Op], what: str) -> None:
    if tuple(planned) == tuple(found):
        return
    at = next(
        (at for at, (one, other) in enumerate(zip(planned, found, strict=False)) if one != other), min(len(planned), len(found))
    )
    shown = [problem.token(ops[at]) if at < len(ops) else "nothing more" for ops in (found, planned)]
    raise InvalidInput(f"{what} {shown[0]} at place {at}, expected {shown[1]}; the trace is not of this plan")
