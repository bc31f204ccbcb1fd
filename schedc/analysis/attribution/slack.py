"""Slack: how much later an op, transfer or collective could start, with the rest in time, so that the step ends no later.

Takes a Timeline and its Waits. All orders are kept: of ops on ranks, and of what takes time on links and trunks. Latest starts
are found from the end of the step back: longest paths over what starts after what.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from schedc.analysis.attribution.waits import Waits
    from schedc.analysis.simulation.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slacks:
    """How much later each could start; 0 on a critical path."""

    op_ns: NDArray[np.int64]
    """Per op."""
    transfer_ns: NDArray[np.int64]
    """Per transfer."""
    collective_ns: NDArray[np.int64]
    """Per collective of the Timeline."""

    def of_links(self, timeline: Timeline) -> dict[tuple[int, int], int]:
        """Per link that transfers cross, (source, destination): the least slack of its transfers."""
        least: dict[tuple[int, int], int] = {}
        for link, slack_ns in zip(timeline.links, self.transfer_ns.tolist(), strict=True):
            least[link] = min(slack_ns, least.get(link, slack_ns))
        return dict(sorted(least.items()))


def slacks_of(timeline: Timeline, waits: Waits) -> Slacks:
    """The slack of everything in the timeline."""
    transfers, collectives, spans = timeline.first_transfer, timeline.first_collective, timeline.collectives
    span_start_ns = np.array([span.start_ns for span in spans], np.int64)
    span_ns = np.array([span.end_ns for span in spans], np.int64) - span_start_ns
    start_ns = np.concatenate([timeline.starts_ns, timeline.transfer_start_ns, span_start_ns])
    op_ns = timeline.ends_ns - timeline.starts_ns
    duration_ns = np.concatenate([op_ns, timeline.transfer_left_ns - timeline.transfer_start_ns, span_ns])
    before, after, lag_ns = (np.concatenate(columns) for columns in zip(*_edges(timeline, waits), strict=True))
    latest_ns = _latest_starts(duration_ns, before, after, lag_ns, timeline.makespan_ns)
    slack_ns = latest_ns - start_ns
    return Slacks(
        op_ns=slack_ns[:transfers],
        transfer_ns=slack_ns[transfers:collectives],
        collective_ns=slack_ns[collectives:],
    )


Edge = tuple["NDArray[np.int64]", "NDArray[np.int64]", "NDArray[np.int64]"]


def _edges(timeline: Timeline, waits: Waits) -> Iterator[Edge]:
    """What starts after what: (before, after, lag between the end of one and the start of the other).

    All are numbered as events of the Timeline. On a link, only what takes time holds up what comes after it.
    """
    transfers, collectives, sent = timeline.first_transfer, timeline.first_collective, np.arange(len(timeline.sender))
    following = np.flatnonzero(timeline.rank_of[1:] == timeline.rank_of[:-1])
    yield following, following + 1, np.zeros(len(following), np.int64)
    yield timeline.sender, transfers + sent, np.zeros(len(sent), np.int64)
    yield transfers + timeline.taken, timeline.taker, (timeline.arrival_ns - timeline.transfer_left_ns)[timeline.taken]
    scatters = np.flatnonzero(waits.collective_after >= 0)
    yield waits.collective_after[scatters], collectives + scatters, np.zeros(len(scatters), np.int64)

    awaited = np.flatnonzero(timeline.collective_taker >= 0)
    yield collectives + awaited, timeline.collective_taker[awaited], np.zeros(len(awaited), np.int64)

    behind = np.flatnonzero(waits.line_before >= 0)
    yield transfers + waits.line_before[behind], transfers + behind, np.zeros(len(behind), np.int64)


def _latest_starts(
    duration_ns: NDArray[np.int64], before: NDArray[np.int64], after: NDArray[np.int64], lag_ns: NDArray[np.int64], end_ns: int
) -> NDArray[np.int64]:
    """The latest start of each event so that everything ends by `end_ns`; what an event is before is settled first."""
    order = np.argsort(after, kind="stable")
    rows = np.searchsorted(after[order], np.arange(len(duration_ns) + 1)).tolist()
    earlier, lags = before[order].tolist(), lag_ns[order].tolist()
    open_after = np.bincount(before, minlength=len(duration_ns)).tolist()
    durations = duration_ns.tolist()
    latest = [end_ns - duration for duration in durations]
    settled = [event for event, number in enumerate(open_after) if not number]
    for event in settled:
        start_ns = latest[event]
        for row in range(rows[event], rows[event + 1]):
            other = earlier[row]
            latest[other] = min(latest[other], start_ns - lags[row] - durations[other])
            open_after[other] -= 1
            if not open_after[other]:
                settled.append(other)
    return np.array(latest, np.int64)
