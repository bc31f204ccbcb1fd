"""A plan and one measured step of it in one file for Perfetto: for each rank the planned lanes, below them the measured ones.

Beside the lanes of `schedc.formats.trace_events` each rank has a curve of the activations that it holds, by the plan's sizes. Below
all ranks is what `planned` says of links, trunks and collectives.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from schedc.formats.trace_events import perfetto_json, trace_events
from schedc.ir.trace import StepTrace
from schedc.view.perfetto.planned import link_events, memory_events, planned_trace

if TYPE_CHECKING:
    from schedc.analysis.comparison.compare import Comparison
    from schedc.ir.plan import Plan
    from schedc.ir.trace import Trace


def comparison_json(plan: Plan, trace: Trace, comparison: Comparison) -> bytes:
    """The file's bytes; they end with a newline."""
    planned = comparison.planned_timeline
    events = trace_events(planned_trace(plan, planned), label=", planned", first_pid=1, pids=2)
    events += trace_events(_only_step(trace, comparison.shown_step), label=", measured", first_pid=2, pids=2)
    events += memory_events(plan, planned, first_pid=1, pids=2)
    events += memory_events(plan, comparison.measured_timeline, first_pid=2, pids=2)
    events += link_events(plan, planned, 1 + 2 * planned.ranks)
    return perfetto_json(events, {})


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
