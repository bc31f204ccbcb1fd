"""One measured step of a plan in the shape in which planned ones are shown.

A trace says when an op began and ended, and when a message was sent and taken. When a message left its link, and when it came if no
op waited for it, follows from the plan's costs (`analysis.comparison.link_model`). What an op waited for is what the comparison
says: its message if it was there before it came, else the op before it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from schedc.analysis.attribution.waits import Awaited
from schedc.analysis.comparison.link_model import on_links
from schedc.analysis.comparison.measured_steps import measured_times
from schedc.view.report.chart import ChartStep

if TYPE_CHECKING:
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.plan import Plan
    from schedc.ir.trace import Trace


def measured_step(plan: Plan, timeline: Timeline, trace: Trace, step: int) -> ChartStep:
    """The step's ops and messages where they were measured, and what they waited for.

    Args:
        plan: the plan.
        timeline: when the simulator says that it happens.
        trace: a trace that `check_trace` accepts.
        step: the number of one of its steps.
    """
    times = measured_times(plan, timeline, trace)[trace.steps.index(step)]
    count, first, taken_from = len(timeline.ops), timeline.is_first, timeline.taken_from
    begun_ns, ended_ns = np.array(times.begun_ns, np.int64), np.array(times.ended_ns, np.int64)
    consumer, behind = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    start_ns, left_ns, arrival_ns = (np.zeros(count, np.int64) for _ in range(3))
    for transfer, on_link in on_links(timeline, times).items():
        _, taken_ns = times.moved(transfer) or (0, 0)
        came_ns = on_link.left_ns + int(timeline.arrival_ns[transfer] - timeline.transfer_left_ns[transfer])
        consumer[transfer], behind[transfer] = timeline.consumer[transfer], on_link.behind
        arrival_ns[transfer] = taken_ns if transfer in times.awaited else min(came_ns, taken_ns)
        start_ns[transfer] = min(on_link.start_ns, arrival_ns[transfer])
        left_ns[transfer] = min(on_link.left_ns, arrival_ns[transfer])
    free_ns = np.where(first, 0, np.roll(ended_ns, 1))
    awaited = np.isin(taken_from, np.array(sorted(times.awaited), np.int64)) & (taken_from >= 0)
    measured = replace(
        timeline,
        starts_ns=begun_ns,
        ends_ns=ended_ns,
        consumer=consumer,
        resource=np.where(consumer >= 0, timeline.resource, -1),
        transfer_start_ns=start_ns,
        transfer_left_ns=left_ns,
        arrival_ns=arrival_ns,
        collectives=(),
    )
    return ChartStep(
        name="measured",
        timeline=measured,
        idle_ns=begun_ns - free_ns,
        cause=np.select([awaited, ~first], [int(Awaited.MESSAGE), int(Awaited.OP)], int(Awaited.NOTHING)),
        awaited=np.select([awaited, ~first], [taken_from, np.arange(count) - 1], -1),
        collective_after=np.zeros(0, np.int64),
        behind=behind,
    )
