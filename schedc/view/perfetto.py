"""A plan, alone or beside a measured step of it, in a file for Perfetto: when everything happens, what ranks hold, what links do.

Each rank is a process with lanes for its compute, its waiting and its channels, arrows from sends to receives, and a curve of the
activations that it holds. Below them is one process for links, trunks and collectives: what occupies each, and for each link
between two ranks how many messages, and bytes where the plan has sizes, have entered the link and have not arrived. Beside a
measured step each rank has its planned lanes, and below them the measured ones.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from schedc.analysis.comparison.steps import NEVER, Step, planned_step
from schedc.analysis.simulation.memory import memory_curve
from schedc.formats.trace_events import Event, counter_events, lane_name, perfetto_json, process_name, slice_event, trace_events
from schedc.ir import Plan, RankPlan, RankTrace, StepTrace, Trace
from schedc.ir.index import tables_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from schedc.analysis.comparison.compare import Comparison
    from schedc.analysis.simulation.timeline import Timeline


def perfetto_of_plan(plan: Plan, timeline: Timeline) -> bytes:
    """The file's bytes; they end with a newline."""
    events = trace_events(
        _trace(plan.name, plan.ranks, timeline, planned_step(plan.problem, timeline), 0), slices=len(plan.problem.slices)
    )
    return perfetto_json([*events, *memory_events(plan, timeline), *link_events(plan, timeline, 1 + timeline.ranks)], {})


def perfetto_of_comparison(plan: Plan, trace: Trace, comparison: Comparison) -> bytes:
    """The file's bytes, of the plan and the step that the comparison shows."""
    timeline, measured = comparison.planned_step.timeline, comparison.measured_step
    traces = (
        _trace(plan.name, plan.ranks, timeline, comparison.planned_step, 0),
        _trace(plan.name, trace.ranks, timeline, measured, comparison.shown_step),
    )
    slices = len(plan.problem.slices)
    events = trace_events(traces[0], label=", planned", pids=2, slices=slices)
    events += trace_events(traces[1], label=", measured", first_pid=2, pids=2, slices=slices)
    events += memory_events(plan, timeline, pids=2)
    events += memory_events(plan, measured.timeline, first_pid=2, pids=2)
    return perfetto_json([*events, *link_events(plan, timeline, 1 + 2 * timeline.ranks)], {})


def _trace(name: str, ranks: Sequence[RankPlan | RankTrace], planned: Timeline, step: Step, number: int) -> Trace:
    """One step, planned or measured, as a trace with the queues of these ranks; the timeline is the plan's."""
    asked_ns, begun_ns, ended_ns, sent_ns, taken_ns = (
        times_ns.tolist()
        for times_ns in (step.asked_ns, step.timeline.starts_ns, step.timeline.ends_ns, step.sent_ns, step.taken_ns)
    )
    found = []
    for rank, (begin, end) in zip(ranks, planned.bounds, strict=True):
        moved_ns = [
            [(taken_ns if channel.receives else sent_ns)[planned.number_of_transfer[op]] for op in channel.transfers]
            for channel in rank.channels
        ]
        of_rank = StepTrace(
            step=number,
            step_begin_ns=0,
            step_end_ns=step.iteration_ns,
            asked_ns=tuple(asked_ns[begin:end]),
            begun_ns=tuple(begun_ns[begin:end]),
            ended_ns=tuple(ended_ns[begin:end]),
            channels_ns=tuple(tuple(None if ns == NEVER else ns for ns in times_ns) for times_ns in moved_ns),
        )
        found.append(
            RankTrace(
                rank=rank.rank,
                clock_offset_ns=0,
                clock_error_ns=0,
                compute=rank.compute,
                channels=rank.channels,
                steps=(of_rank,),
            )
        )
    return Trace(plan_name=name, plan_sha256="", ranks=tuple(found))


def memory_events(plan: Plan, timeline: Timeline, *, first_pid: int = 1, pids: int = 1) -> Iterator[Event]:
    """For each rank the activations that it holds over time, as a curve of its process.

    The plan's sizes count. The process id of rank 0 is `first_pid`; those of neighbouring ranks are `pids` apart.
    """
    schedule = plan.schedule()
    for rank in range(timeline.ranks):
        curve = memory_curve(plan.problem, schedule, timeline, rank)
        yield from counter_events(first_pid + rank * pids, "activations", "bytes", curve)


def link_events(plan: Plan, timeline: Timeline, pid: int) -> Iterator[Event]:
    """What occupies links, trunks and the lanes of collectives, as planned, and what is under way on each link: one process."""
    yield from process_name(pid, "links, planned")
    problem = plan.problem
    tables = tables_of(problem)
    of_collectives = [int(tables.collective_resource[span.rank]) for span in timeline.collectives]
    for resource in sorted({*timeline.resource.tolist(), *of_collectives} - {-1}):
        yield from lane_name(pid, resource + 1, tables.resources[resource].label)
    for transfer in timeline.sent.tolist():
        start_ns, left_ns = int(timeline.transfer_start_ns[transfer]), int(timeline.transfer_left_ns[transfer])
        if left_ns > start_ns:
            to = timeline.to_stage[transfer] >= 0
            name = problem.token(timeline.transfer_names[transfer] if to else timeline.named_ops[timeline.sender[transfer]])
            yield slice_event(pid, int(timeline.resource[transfer]) + 1, name, start_ns, left_ns, "transfer")
    for resource, span in zip(of_collectives, timeline.collectives, strict=True):
        if span.end_ns > span.start_ns:
            yield slice_event(pid, resource + 1, span.collective.token, span.start_ns, span.end_ns, "collective")
    under_way: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for message in timeline.transfers:
        changes = under_way.setdefault((message.source, message.destination), [])
        size_bytes = problem.message_bytes(message.op)
        changes += [(message.start_ns, 1, size_bytes), (message.arrival_ns, -1, -size_bytes)]
    for (source, destination), changes in sorted(under_way.items()):
        name = f"under way {source}>{destination}"
        yield from counter_events(pid, f"{name}, messages", "messages", _curve((time_ns, more) for time_ns, more, _ in changes))
        if any(size_bytes for _, _, size_bytes in changes):
            yield from counter_events(pid, f"{name}, bytes", "bytes", _curve((time_ns, more) for time_ns, _, more in changes))


def _curve(changes: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """(time_ns, value from then on) of changes in any order; it begins with 0 at 0."""
    value = 0
    for time_ns, group in groupby(sorted([(0, 0), *changes]), key=lambda change: change[0]):
        value += sum(more for _, more in group)
        yield time_ns, value
