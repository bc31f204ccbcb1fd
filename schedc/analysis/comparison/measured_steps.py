"""The recorded steps of a plan: a Trace, checked against the plan and brought into the shape of StepTimes."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from schedc.analysis.comparison.link_model import awaited_transfers
from schedc.analysis.comparison.step_times import StepTimes
from schedc.errors import InvalidInput
from schedc.ir.ops import Op, token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.plan import Plan
    from schedc.ir.trace import Trace


def measured_times(plan: Plan, timeline: Timeline, trace: Trace) -> tuple[StepTimes, ...]:
    """The recorded steps of a trace that `check_trace` accepts, in its order; the timeline is the plan's."""
    collectives = plan.problem.data_parallel is not None
    number = timeline.number_of_transfer
    steps = []
    for at in range(len(trace.steps)):
        of_ranks = [rank.steps[at] for rank in trace.ranks]
        origin_ns = min(step.step_begin_ns for step in of_ranks)
        sent_ns: list[int | None] = [None] * len(timeline.ops)
        taken_ns = sent_ns.copy()
        for rank, step in zip(trace.ranks, of_ranks, strict=True):
            for channel, times_ns in zip(rank.channels, step.channels_ns, strict=True):
                side = taken_ns if channel.receives else sent_ns
                for op, time_ns in zip(channel.transfers, times_ns, strict=True):
                    side[number[op]] = None if time_ns is None else time_ns - origin_ns
        ends_ns = [step.step_end_ns if collectives else max(step.ended_ns, default=step.step_begin_ns) for step in of_ranks]
        steps.append(
            StepTimes(
                iteration_ns=max(ends_ns) - origin_ns,
                begin_ns=tuple(step.step_begin_ns - origin_ns for step in of_ranks),
                asked_ns=tuple(time_ns - origin_ns for step in of_ranks for time_ns in step.asked_ns),
                begun_ns=tuple(time_ns - origin_ns for step in of_ranks for time_ns in step.begun_ns),
                ended_ns=tuple(time_ns - origin_ns for step in of_ranks for time_ns in step.ended_ns),
                sent_ns=tuple(sent_ns),
                taken_ns=tuple(taken_ns),
            )
        )
    awaited = awaited_transfers(timeline, steps, _floor_ns(timeline, trace))
    return tuple(replace(times, awaited=found) for times, found in zip(steps, awaited, strict=True))


def _floor_ns(timeline: Timeline, trace: Trace) -> int:
    """What going on takes where nothing is awaited: four times the median of the ops that take no transfer.

    Taking a transfer that has come is a few calls more than taking none; waiting for one is seldom so short. The first op of each
    stage does not count, as an all-gather may be before it.
    """
    gaps_ns = []
    for rank, (begin, end) in zip(trace.ranks, timeline.bounds, strict=True):
        ops = timeline.named_ops[begin:end]
        first = {op.stage: at for at, op in reversed(tuple(enumerate(ops)))}
        alone = [at for at, op in enumerate(ops) if timeline.taken_from[begin + at] < 0 and first[op.stage] != at]
        gaps_ns += [step.begun_ns[at] - step.asked_ns[at] for step in rank.steps for at in alone]
    return int(4 * median(gaps_ns)) if gaps_ns else 0


def measured_timeline(planned: Timeline, times: StepTimes) -> Timeline:
    """The planned timeline with the ops where they were measured, for pictures; transfers last from their send to their take."""

    def known(values: Sequence[int | None]) -> NDArray[np.int64]:
        return np.array([value or 0 for value in values], np.int64)

    sent_ns, taken_ns = known(times.sent_ns), known(times.taken_ns)
    return replace(
        planned,
        starts_ns=np.array(times.begun_ns, np.int64),
        ends_ns=np.array(times.ended_ns, np.int64),
        transfer_start_ns=sent_ns,
        transfer_left_ns=taken_ns,
        arrival_ns=taken_ns,
        collectives=(),
    )


def check_trace(plan: Plan, trace: Trace) -> None:
    """Refuse a trace whose ops or transfers are not the plan's.

    Raises:
        InvalidInput: says where the first difference is.
    """
    if len(trace.ranks) != len(plan.ranks):
        raise InvalidInput(f"the trace has {len(trace.ranks)} ranks, expected the {len(plan.ranks)} of the plan")
    for planned, found in zip(plan.ranks, trace.ranks, strict=True):
        _check_equal(planned.compute, found.compute, f"rank {planned.rank} ran")
        channels = {(channel.name, channel.peer): channel.transfers for channel in found.channels}
        for channel in planned.channels:
            moved = channels.pop((channel.name, channel.peer), ())
            _check_equal(channel.transfers, moved, f"rank {planned.rank} moved on {channel.name}")
        for name, peer in channels:
            raise InvalidInput(f"rank {planned.rank} has a channel {name} with rank {peer} in the trace, and none in the plan")


def _check_equal(planned: Sequence[Op], found: Sequence[Op], what: str) -> None:
    if tuple(planned) == tuple(found):
        return
    at = next(
        (at for at, (one, other) in enumerate(zip(planned, found, strict=False)) if one != other), min(len(planned), len(found))
    )
    shown = [token(ops[at]) if at < len(ops) else "nothing more" for ops in (found, planned)]
    raise InvalidInput(f"{what} {shown[0]} at place {at}, expected {shown[1]}; the trace is not of this plan")
