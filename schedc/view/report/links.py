"""What the links of a plan do and tolerate: how long each is busy, and how much later its messages could come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from schedc.analysis.attribution.slack import slacks_of
from schedc.analysis.attribution.tolerance import Tolerance, lengthened_ns

if TYPE_CHECKING:
    from schedc.analysis.attribution.waits import Waits
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.plan import Plan

ALLOWED = 0.01
"""By which share the step may be longer, for the second tolerated delay."""
MOST_SIMULATED, MOST_BISECTED = 100_000, 20_000
"""Tolerated delays are found by simulating the plan again and again: up to this many ops times links, which takes a few seconds.
Where links share trunks, each takes more simulations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFigures:
    """One link that messages cross."""

    source: int
    destination: int
    messages: int
    busy_ns: int
    """For how long its messages occupy it, or its trunk."""
    slack_ns: int
    """How much later one of its messages could leave, whichever, so that the step ends no later."""
    free_ns: int | None
    """The latency that can be added to all of its messages so that the step ends no later. None: not computed."""
    allowed_ns: int | None
    """The same so that the step becomes at most `ALLOWED` longer."""


def link_figures(plan: Plan, timeline: Timeline, waits: Waits) -> tuple[LinkFigures, ...]:
    """The links that messages cross, by source and destination."""
    slacks = slacks_of(timeline, waits).of_links(timeline, waits)
    sent = np.flatnonzero(timeline.consumer >= 0)
    ends = list(zip(waits.rank_of[sent].tolist(), waits.rank_of[timeline.consumer[sent]].tolist(), strict=True))
    busy_ns: dict[tuple[int, int], int] = dict.fromkeys(slacks, 0)
    messages = busy_ns.copy()
    for link, occupied_ns in zip(ends, (timeline.transfer_left_ns - timeline.transfer_start_ns)[sent].tolist(), strict=True):
        busy_ns[link] += occupied_ns
        messages[link] += 1
    tolerance = Tolerance(plan.problem, plan.schedule())
    computed = len(timeline.ops) * len(slacks) <= (MOST_SIMULATED if tolerance.exact else MOST_BISECTED)
    longer_ns = lengthened_ns(timeline.makespan_ns, ALLOWED)
    found = []
    for link, slack_ns in slacks.items():
        free_ns = tolerance.extra_latency_ns(link) if computed and slack_ns else 0
        found.append(
            LinkFigures(
                source=link[0],
                destination=link[1],
                messages=messages[link],
                busy_ns=busy_ns[link],
                slack_ns=slack_ns,
                free_ns=free_ns if computed else None,
                allowed_ns=tolerance.extra_latency_ns(link, longer_ns) if computed else None,
            )
        )
    return tuple(found)
