"""Periods of few microbatches, repeated until a step is whole: near the optimum where memory is short or packing is hard.

A problem whose microbatches are alike, and a planner, go in; schedules come out that run the period planned for fewer microbatches,
without updates, again and again, with each U as soon as its step has ended. Stashed versions then take memory that the planner did
not count: it plans again with what the schedule held too much taken off the limits. Not all keep the rules.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from schedc.analysis.simulation.memory import peak_bytes
from schedc.errors import CheckFailed
from schedc.ir import Kind, Schedule, Versions, groups_of
from schedc.models.modulo_orders import turned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from schedc.ir import Problem

MOST_MICROBATCHES = 4
"""No step of more is repeated: it is nearly as hard to plan as the problem."""
TRIES = 4
"""Plans with less and less memory, per number of microbatches."""


def repeats(problem: Problem, planned: Callable[[Problem], Schedule]) -> Iterator[Schedule]:
    """Per number of microbatches that divides the step, the periods that are tried, to the first that fits."""
    updates = problem.updates
    assert updates is not None
    if len(set(groups_of(problem))) > 1 or problem.in_order or updates.most_delay == 0:
        return
    for fewer in range(1, min(MOST_MICROBATCHES, problem.microbatches // 2) + 1):
        if problem.microbatches % fewer:
            continue
        short = shorter_step(problem, fewer)
        for _ in range(TRIES):
            if any(limit is not None and limit < 0 for limit in short.memory_limit_bytes):
                break
            schedule = repeated(problem, fewer, planned(short))
            yield schedule
            try:
                peaks = peak_bytes(problem, schedule)
            except CheckFailed:
                break
            more = [
                0 if limit is None else max(0, peak - limit) for peak, limit in zip(peaks, problem.memory_limit_bytes, strict=True)
            ]
            if not any(more):
                break
            limits = zip(short.memory_limit_bytes, more, strict=True)
            short = replace(short, memory_limit_bytes=tuple(None if limit is None else limit - each for limit, each in limits))


def shorter_step(problem: Problem, fewer: int) -> Problem:
    """With fewer microbatches in a step and nothing to update; as many may be under way as in as many steps of the problem."""
    updates = problem.updates
    assert updates is not None
    two_buffered = updates.versions is Versions.TWO_BUFFERED
    delay = 1 if two_buffered else updates.most_delay
    used = set().union(*problem.paths)
    limits = [
        None
        if limit is None
        else limit - two_buffered * sum(problem.stages[stage].version_bytes for stage in problem.stages_on(rank) if stage in used)
        for rank, limit in enumerate(problem.memory_limit_bytes)
    ]
    return replace(
        problem,
        microbatches=fewer,
        path_of=problem.path_of[:fewer],
        stages=tuple(replace(stage, update_ns=0, version_bytes=0) for stage in problem.stages),
        memory_limit_bytes=tuple(limits),
        updates=replace(
            updates,
            versions=Versions.STASH if delay is None else Versions.BOUNDED,
            microbatches=fewer,
            most_delay=None if delay is None else delay * problem.microbatches // fewer,
        ),
    )


def repeated(problem: Problem, fewer: int, schedule: Schedule) -> Schedule:
    """The period of fewer microbatches, as often as a step takes."""
    count = problem.microbatches
    orders = []
    for order in schedule.orders:
        blocks = [op for op in order if op.kind is not Kind.U]
        ops = [op._replace(microbatch=op.microbatch + first) for first in range(0, count, fewer) for op in blocks]
        own = [(op.microbatch // count, op._replace(microbatch=op.microbatch % count)) for op in ops]
        last: dict[int, tuple[int, int]] = {}
        for place, (step, op) in enumerate(own):
            if op.kind is not Kind.F:  # what is of fewer steps runs in a later period
                last[op.stage] = max(last.get(op.stage, (-step, place)), (-step, place))
        whole = []
        for place, (step, op) in enumerate(own):
            whole.append((step, op))
            if last[op.stage] == (-step, place):
                whole.append((step, op._replace(kind=Kind.U, microbatch=0)))
        orders.append(turned(problem, whole))
    return Schedule(orders=tuple(orders))
