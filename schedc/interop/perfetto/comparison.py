"""A plan and one measured step of it in one file for Perfetto: for each rank the planned lanes, below them the measured ones.

Beside the lanes of `schedc.text.trace_events` each rank has a curve of the activations that it holds, by the plan's sizes, and the
planned links and trunks are below all ranks with what occupies them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from schedc.analysis.comparison.step_times import lanes_of, planned_times
from schedc.analysis.simulation.memory import memory_curve
from schedc.ir.index import tables_of
from schedc.ir.ops import token
from schedc.ir.trace import RankTrace, StepTrace, Trace
from schedc.text.trace_events import counter_events, lane_name, perfetto_json, process_name, slice_event, trace_events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.analysis.comparison.compare import Comparison
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.plan import Plan
    from schedc.text.trace_events import Event

__all__ = ["comparison_json", "planned_trace"]


def comparison_json(plan: Plan, trace: Trace, comparison: Comparison) -> bytes:
    """The file's bytes; they end with a newline."""
    planned = comparison.planned_timeline
    events = trace_events(planned_trace(plan, planned), label=", planned", first_pid=1, pids=2)
    events += trace_events(_only_step(trace, comparison.shown_step), label=", measured", first_pid=2, pids=2)
    for rank in range(planned.ranks):
        for pid, timeline in ((1 + 2 * rank, planned), (2 + 2 * rank, comparison.measured_timeline)):
            curve = memory_curve(plan.problem, plan.schedule(), timeline, rank)
            events += counter_events(pid, "activations", "bytes", curve)
    events += _link_events(plan, planned, 1 + 2 * planned.ranks)
    return perfetto_json(events, {})


def planned_trace(plan: Plan, timeline: Timeline) -> Trace:
    """The simulated step as a trace, with the number 0."""
    lanes = lanes_of(timeline)
    times = planned_times(timeline, lanes)
    ranks = []
    for rank, (begin, end) in zip(plan.ranks, lanes.bounds, strict=True):
        channels = tuple(replace(channel, post_before=()) for channel in rank.channels)
        step = StepTrace(
            step=0,
            step_begin_ns=0,
            step_end_ns=times.iteration_ns,
            asked_ns=times.asked_ns[begin:end],
            begun_ns=times.begun_ns[begin:end],
            ended_ns=times.ended_ns[begin:end],
            channels_ns=tuple(
                tuple((times.taken_ns if channel.receives else times.sent_ns)[lanes.number[op]] for op in channel.transfers)
                for channel in channels
            ),
        )
        ranks.append(
            RankTrace(rank=rank.rank, clock_offset_ns=0, clock_error_ns=0, compute=rank.compute, channels=channels, steps=(step,))
        )
    return Trace(plan_name=plan.name, plan_sha256="", ranks=tuple(ranks))


def _only_step(trace: Trace, number: int) -> Trace:
    """The trace of one step, from its begin."""
    at = trace.steps.index(number)
    origin_ns = min(rank.steps[at].step_begin_ns for rank in trace.ranks)
    return replace(trace, ranks=tuple(replace(rank, steps=(_earlier(rank.steps[at], origin_ns),)) for rank in trace.ranks))


def _earlier(step: StepTrace, by_ns: int) -> StepTrace:
    return StepTrace(
        step=step.step,
        step_begin_ns=step.step_begin_ns - by_ns,
        step_end_ns=step.step_end_ns - by_ns,
        asked_ns=tuple(time_ns - by_ns for time_ns in step.asked_ns),
        begun_ns=tuple(time_ns - by_ns for time_ns in step.begun_ns),
        ended_ns=tuple(time_ns - by_ns for time_ns in step.ended_ns),
        channels_ns=tuple(
            tuple(None if time_ns is None else time_ns - by_ns for time_ns in times_ns) for times_ns in step.channels_ns
        ),
    )


def _link_events(plan: Plan, timeline: Timeline, pid: int) -> Iterator[Event]:
    """What occupies the links and trunks, as planned."""
    yield from process_name(pid, "links, planned")
    resources = tables_of(plan.problem).resources
    lanes = lanes_of(timeline)
    for resource in sorted(set(timeline.resource.tolist()) - {-1}):
        yield from lane_name(pid, resource + 1, resources[resource].label)
    for transfer in lanes.sends:
        start_ns, left_ns = int(timeline.transfer_start_ns[transfer]), int(timeline.transfer_left_ns[transfer])
        if left_ns > start_ns:
            name = token(lanes.ops[transfer])
            yield slice_event(pid, int(timeline.resource[transfer]) + 1, name, start_ns, left_ns, "transfer")
