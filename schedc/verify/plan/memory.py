"""What each rank of a Plan holds at most: a walk along its compute queue, and of a graph the values that wait, by a replay's times.

Takes a plan whose queues are sound and its replay; gives per rank its peak, and where that is. What ops hold depends on their order
alone; a value counts besides from its arrival until the op starts that needs it with others ("Graphs and slices", "Memory").
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from schedc.ir import WHOLE, Kind, Op, Plan, Problem, Schedule, sent_to
from schedc.verify.plan.channels import crossings_of
from schedc.verify.schedule.checks import besides_along, held_by_slice
from schedc.verify.schedule.updates import run_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.verify.plan.replay import Replay


class Peak(NamedTuple):
    """The most that a rank holds."""

    size_bytes: int
    at: int
    """The index in its compute queue of the op that runs then, or before which it waits then."""
    waiting_bytes: int
    """What of it are values that wait."""


def as_run(plan: Plan) -> tuple[Problem, Schedule]:
    """What the plan's ranks do: of a period, in a run that is long enough."""
    return run_of(plan.problem, plan.schedule()) if plan.is_period else (plan.problem, plan.schedule())


def peaks_of(plan: Plan, replayed: Replay) -> list[Peak]:
    """The peak of each rank; the first, where it is reached again."""
    problem, schedule = as_run(plan)
    waiting = _waiting(plan, replayed) if problem.edges else [[] for _ in plan.ranks]
    return [_peak(problem, schedule, replayed, rank, values) for rank, values in enumerate(waiting)]


def _peak(problem: Problem, schedule: Schedule, replayed: Replay, rank: int, values: list[tuple[int, int, int]]) -> Peak:
    peak, levels = Peak(0, 0, 0), list(_held(problem, schedule, rank))
    if not values:
        for index, (during, _) in enumerate(levels):
            if during > peak.size_bytes:
                peak = Peak(during, index, 0)
        return peak
    changes: dict[int, int] = {-1: 0}
    for begin_ns, end_ns, size_bytes in values:
        changes[begin_ns] = changes.get(begin_ns, 0) + size_bytes
        changes[end_ns] = changes.get(end_ns, 0) - size_bytes
    times_ns = sorted(changes)
    waits = list(accumulate(changes[time_ns] for time_ns in times_ns))
    ended_ns = before = 0
    for index, (start_ns, end_ns, (during, after)) in enumerate(
        zip(replayed.starts_ns[rank], replayed.ends_ns[rank], levels, strict=True)
    ):
        # The time before it, in which the rank waits; then its own, which has at least the nanosecond in which it starts.
        for held, begin_ns, until_ns in ((before, ended_ns, start_ns), (during, start_ns, max(end_ns, start_ns + 1))):
            if begin_ns < until_ns:
                most = max(waits[bisect_right(times_ns, begin_ns) - 1 : bisect_left(times_ns, until_ns)])
                peak = max(peak, Peak(held + most, index, most), key=lambda each: each.size_bytes)
        ended_ns, before = end_ns, after
    return peak


def _held(problem: Problem, schedule: Schedule, rank: int) -> Iterator[tuple[int, int]]:
    """Per op of the rank's queue, what ops hold while it runs, and after it."""
    last_part = {(parts.kind, parts.stage): len(parts.shares) - 1 for parts in schedule.parts}
    slices = [held_by_slice(problem, index) for index in range(len(problem.slices) or 1)]
    takes, leaves = list[dict[int, dict[Kind, int]]](), list[dict[int, dict[Kind, int]]]()
    for of_slice in slices:
        takes.append({})
        leaves.append({})
        for index in problem.stages_on(rank):
            begun, again, kept, state = of_slice[index]
            needs, whole = again + max(0, state), begun + again + max(0, -state)
            takes[-1][index] = {Kind.F: begun, Kind.B: needs, Kind.W: 0, Kind.BW: needs, Kind.U: 0}
            leaves[-1][index] = {Kind.F: 0, Kind.B: whole - kept, Kind.W: kept, Kind.BW: whole, Kind.U: 0}
    order = schedule.orders[rank]
    held, number = 0, len(slices)
    for (kind, index, microbatch, part), more in zip(order, besides_along(problem, schedule, rank), strict=True):
        if part in (WHOLE, 0):
            held += takes[microbatch % number][index][kind]
        during = held + more
        if part == WHOLE or part == last_part[kind, index]:
            held -= leaves[microbatch % number][index][kind]
        yield during, held + more


def _waiting(plan: Plan, replayed: Replay) -> list[list[tuple[int, int, int]]]:
    """Per rank, the values on it that wait for others: from which nanosecond, until which, and their bytes."""
    problem = plan.problem
    began: dict[tuple[int, int, int], int] = {}
    ended: dict[tuple[int, int, int], int] = {}
    for rank, starts_ns, ends_ns in zip(plan.ranks, replayed.starts_ns, replayed.ends_ns, strict=True):
        for (kind, stage, microbatch, _), start_ns, end_ns in zip(rank.compute, starts_ns, ends_ns, strict=True):
            began.setdefault((kind, stage, microbatch), start_ns)
            ended[kind, stage, microbatch] = end_ns
    named = {
        (crossing.forward, crossing.sender, receiver): crossing.receivers[0]
        for crossing in crossings_of(problem, 0)
        for receiver in crossing.receivers
    }
    inputs: dict[tuple[bool, int], list[tuple[int, int]]] = {}
    for edge in problem.edges:
        inputs.setdefault((True, edge.destination), []).append((edge.source, edge.message_bytes))
        if edge.gradient_message_bytes is not None:
            inputs.setdefault((False, edge.source), []).append((edge.destination, edge.gradient_message_bytes))
    lengths, whole = problem.slices or (1,), sum(problem.slices) or 1
    waiting: list[list[tuple[int, int, int]]] = [[] for _ in plan.ranks]
    for (forward, stage), senders in inputs.items():
        for microbatch in range(problem.microbatches if len(senders) > 1 else 0):
            takes, length = _kind(began, microbatch, stage, forward=forward), lengths[microbatch % len(lengths)]
            start_ns = began[takes, stage, microbatch]
            for sender, size_bytes in senders:
                sends = _kind(began, microbatch, sender, forward=forward)
                to = named.get((forward, sender, stage))
                if to is None:
                    arrival_ns = ended[sends, sender, microbatch]
                else:
                    arrival_ns = replayed.arrival_ns[sent_to(Op(sends, sender, microbatch), to)]
                if arrival_ns < start_ns:
                    share_bytes = (size_bytes * length + whole - 1) // whole
                    waiting[problem.stages[stage].rank].append((arrival_ns, start_ns, share_bytes))
    return waiting


def _kind(blocks: dict[tuple[int, int, int], int], microbatch: int, stage: int, *, forward: bool) -> Kind:
    return Kind.F if forward else Kind.B if (Kind.B, stage, microbatch) in blocks else Kind.BW
