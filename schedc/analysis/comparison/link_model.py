"""Which transfers of a step queued, and which were awaited: what a trace does not say, by the plan's costs and by comparison.

A trace has when a transfer was sent and when it was taken. It may have queued on its link before it left, which the plan's
occupancies tell; and it may have come long before it was taken. It was taken when it came, so that its time is known, only if
the op that took it was there before.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.analysis.comparison.step_times import StepTimes
    from schedc.analysis.simulation.timeline import Timeline

LONG_AGO = 2
"""An op that asks this many times later than transfers of the link take finds its transfer there, however long the taking lasts."""


class OnLink(NamedTuple):
    """A transfer on its link or trunk, by the plan's occupancies."""

    start_ns: int
    left_ns: int
    behind: int
    """The transfer that it waited for there, or -1."""


def on_links(timeline: Timeline, times: StepTimes) -> dict[int, OnLink]:
    """Every transfer of the step that was sent and taken; a link serves them in the order in which they were sent.

    Of those that were sent at the same nanosecond, the one that the plan serves first goes first.
    """
    found: dict[int, OnLink] = {}
    last: dict[int, int] = {}
    planned_ns: list[int] = timeline.transfer_start_ns.tolist()
    moved = ((transfer, times.moved(transfer)) for transfer in timeline.sent.tolist())
    sent = [(when[0], planned_ns[transfer], transfer) for transfer, when in moved if when is not None]
    for sent_ns, _, transfer in sorted(sent):
        resource = int(timeline.resource[transfer])
        before = last.get(resource, -1)
        free_ns = found[before].left_ns if before >= 0 else sent_ns
        start_ns = max(sent_ns, free_ns)
        left_ns = start_ns + int(timeline.transfer_left_ns[transfer]) - int(timeline.transfer_start_ns[transfer])
        found[transfer] = OnLink(start_ns, left_ns, before if free_ns > sent_ns else -1)
        last[resource] = transfer
    return found


def awaited_transfers(timeline: Timeline, steps: Sequence[StepTimes], floor_ns: int) -> tuple[frozenset[int], ...]:
    """For each recorded step, the transfers that were taken when they came.

    Certainly so are those that were sent when their op was there already. Of the others those are taken for awaited whose op spent
    more time on taking them than `floor_ns`, unless it came so late that such a transfer is there: later than twice what it takes
    in the plan, queueing included, and than twice what the certain ones of its link take in the median, or, where there are none,
    the shortest of all.

    Args:
        timeline: the plan's, for the occupancies.
        steps: all recorded steps.
        floor_ns: going on to an op takes no longer than this where nothing is awaited.
    """
    taken_by, links = timeline.consumer.tolist(), timeline.links
    models = [on_links(timeline, times) for times in steps]
    certain: dict[tuple[int, int], list[int]] = {}
    shortest_ns: dict[tuple[int, int], int] = {}
    for times, model in zip(steps, models, strict=True):
        for transfer, on_link in model.items():
            sent_ns, taken_ns = times.moved(transfer) or (0, 0)
            link, time_ns = links[transfer], max(0, taken_ns - on_link.start_ns)
            shortest_ns[link] = min(time_ns, shortest_ns.get(link, time_ns))
            if sent_ns >= times.asked_ns[taken_by[transfer]]:
                certain.setdefault(link, []).append(time_ns)
    usual_ns = {link: median(certain[link]) if link in certain else least for link, least in shortest_ns.items()}
    result = []
    for times, model in zip(steps, models, strict=True):
        awaited = set()
        for transfer, on_link in model.items():
            sent_ns, taken_ns = times.moved(transfer) or (0, 0)
            asked_ns = times.asked_ns[taken_by[transfer]]
            planned_ns = int(timeline.arrival_ns[transfer] - timeline.ends_ns[transfer])  # behind collectives, too
            soon = asked_ns - on_link.start_ns <= LONG_AGO * max(usual_ns[links[transfer]], planned_ns)
            if sent_ns >= asked_ns or (taken_ns - asked_ns > floor_ns and soon):
                awaited.add(transfer)
        result.append(frozenset(awaited))
    return tuple(result)
