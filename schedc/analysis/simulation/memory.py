"""Memory: what a schedule holds on each rank (cost model, "Memory").

F holds its activation from its start; the end of B releases
all but what W needs, the end of W the rest, the end of BW all. Where a stage recomputes, B and BW take the activations when they
start. A rank runs one op at a time, so its peak follows from its order alone; a Timeline only says when. Where steps overlap,
versions of weights beside the newest count, too. Where stages are a graph, values that wait for others count (docs/graphs.md,
"Memory"), and peaks follow from times. Where weights are sharded, what is gathered and gradients that are not reduced count, by
the places that the schedule gives the collectives.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from schedc.analysis.simulation.simulate import simulate
from schedc.analysis.simulation.unroll import shown
from schedc.analysis.simulation.versions import versions_of
from schedc.ir import Collective, Kind, Problem, Schedule
from schedc.ir.index import ops_array

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from schedc.analysis.simulation.timeline import Timeline


def peak_bytes(problem: Problem, schedule: Schedule, timeline: Timeline | None = None) -> tuple[int, ...]:
    """Per rank, the most that is held at any moment; of a period, at any moment of a run of any number of steps.

    `verify_schedule` accepts the schedule. Where peaks follow from times and no timeline is given, it is simulated.

    Raises:
        CheckFailed: peaks follow from times, and the ranks wait for each other in a cycle.
    """
    if problem.updates is not None and problem.updates.is_period:
        problem, schedule = shown(problem, schedule)
    held_at_start, released_at_end = memory_changes(problem, schedule, ops_array(schedule.orders))
    peaks, begin = [0] * len(schedule.orders), 0
    before = np.cumsum(held_at_start) - np.cumsum(released_at_end) + released_at_end  # while the op runs, all ranks before included
    versions = versions_of(problem, schedule).more if problem.updates is not None else None
    waiting = None if problem.is_chain else WaitingValues.of(problem, timeline or simulate(problem, schedule))
    for rank, order in enumerate(schedule.orders):
        if order:
            end = begin + len(order)
            others = before[begin] - held_at_start[begin]
            held = before[begin:end] - others
            if problem.is_sharded:
                held = held + sharded_bytes(problem, schedule, rank)
            if versions is not None:
                held = held + versions[rank]
            if waiting is not None:
                held = waiting.beside(rank, held, held - released_at_end[begin:end])
            peaks[rank] = max(0, int(held.max()))
            begin = end
    return tuple(peaks)


def exceeded_limit(problem: Problem, schedule: Schedule, timeline: Timeline | None = None) -> tuple[int, int, int] | None:
    """The first rank that holds more than its memory limit, with its peak and the limit in bytes; None: none does."""
    for rank, (peak, limit) in enumerate(zip(peak_bytes(problem, schedule, timeline), problem.memory_limit_bytes, strict=True)):
        if limit is not None and peak > limit:
            return rank, peak, limit
    return None


def memory_curve(problem: Problem, schedule: Schedule, timeline: Timeline, rank: int) -> list[tuple[int, int]]:
    """What the rank holds over time: (time_ns, bytes from then on), one entry for each change, times ascending."""
    held_at_start, released_at_end = memory_changes(problem, schedule, ops_array((schedule.orders[rank],)))
    versions = np.array(versions_of(problem, schedule).more[rank] if problem.updates is not None else [0] * len(held_at_start))
    held_at_start = held_at_start + np.diff(versions, prepend=0)
    changes = [
        change
        for start_ns, end_ns, more, less in zip(
            timeline.start_ns(rank), timeline.end_ns(rank), held_at_start.tolist(), released_at_end.tolist(), strict=True
        )
        for change in ((start_ns, more), (end_ns, -less))
    ]
    if problem.is_sharded:
        starts_ns, ends_ns = timeline.start_ns(rank), [0, *timeline.end_ns(rank)]
        spans = {span.collective: span for span in timeline.collectives if span.rank == rank}
        for each, begin, size_bytes in _kept(problem, schedule, rank):
            gathers = each.kind == "AG"  # a reduction that an op waits for ends before a gather that has its room begins
            begin_ns, end_ns = (spans[each].start_ns, 0) if gathers else (starts_ns[begin], spans[each].end_ns)
            changes += [(begin_ns, size_bytes), (max(ends_ns[each.until], end_ns), -size_bytes)]
        changes.sort(key=lambda change: change[0])
    if not problem.is_chain:
        waiting = WaitingValues.of(problem, timeline)
        here = timeline.rank_of[waiting.op] == rank
        for times_ns, sign in ((waiting.from_ns[here], 1), (timeline.starts_ns[waiting.op[here]], -1)):
            changes += zip(times_ns.tolist(), (sign * waiting.size_bytes[here]).tolist(), strict=True)
        changes.sort(key=lambda change: change[0])
    curve: list[tuple[int, int]] = [(0, 0)]
    held = 0
    for time_ns, change in changes:
        if change:
            held += change
            if curve[-1][0] == time_ns:
                curve.pop()
            curve.append((time_ns, held))
    return curve


def sharded_bytes(problem: Problem, schedule: Schedule, rank: int) -> NDArray[np.int64]:
    """Per op of the rank, what gathered weights and gradients that are not reduced take while it runs, in bytes."""
    changes = np.zeros(len(schedule.orders[rank]) + 1, np.int64)
    for each, begin, size_bytes in _kept(problem, schedule, rank):
        changes[[begin, each.until]] += size_bytes, -size_bytes
    return np.cumsum(changes[:-1])


def _kept(problem: Problem, schedule: Schedule, rank: int) -> Iterator[tuple[Collective, int, int]]:
    """Per collective of the rank, the first op that runs beside what it holds, and that in bytes.

    A gather holds weights from its issue on, a reduction gradients from the start of the stage's first W or BW.
    """
    parallel = problem.data_parallel
    assert parallel is not None
    first = {op.stage: at for at, op in reversed(list(enumerate(schedule.orders[rank]))) if op.kind in (Kind.W, Kind.BW)}
    for each in schedule.collectives[rank]:
        if each.kind == "AG":
            yield each, each.before, parallel.gathered_bytes[each.stage]
        elif parallel.gradient_bytes:
            yield each, first[each.stage], parallel.gradient_bytes[each.stage]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WaitingValues:
    """The values that wait for others, of a graph: each from `from_ns` until the op starts that needs several and it among them."""

    timeline: Timeline
    op: NDArray[np.int64]
    """Per value, the op that needs it."""
    from_ns: NDArray[np.int64]
    """When it arrives; where it does not leave its rank, when the op that makes it ends."""
    size_bytes: NDArray[np.int64]

    @classmethod
    def of(cls, problem: Problem, timeline: Timeline) -> WaitingValues:
        """The values of a timeline of the problem; those of a recording that lacks their transfer do not wait."""
        kind, stage, microbatch, part = timeline.ops.T
        direction = np.array([0, 1, -1, 1, -1], np.int64)[kind]
        shape = (2, len(problem.stages), problem.microbatches)
        first, end_ns = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for way in (0, 1):
            of_way = np.flatnonzero(direction == way)
            end_ns[way, stage[of_way], microbatch[of_way]] = timeline.ends_ns[of_way]  # the last part's
            starting = of_way[part[of_way] <= 0]
            first[way, stage[starting], microbatch[starting]] = starting
        source, destination = stage[timeline.sender[timeline.taken]], stage[timeline.taker]
        arrival_ns, of_taker = timeline.arrival_ns[timeline.taken], microbatch[timeline.taker]
        ops, since_ns, held_bytes = ([np.zeros(0, np.int64)] for _ in range(3))
        forth = [(edge.source, edge.destination, edge.message_bytes) for edge in problem.edges]
        back = [(edge.destination, edge.source, edge.gradient_message_bytes) for edge in problem.edges if edge.has_gradient]
        for way, needs in ((0, forth), (1, back)):
            inputs = Counter(to for _, to, _ in needs)
            for maker, to, size_bytes in needs:
                if inputs[to] < 2 or not size_bytes:
                    continue
                if problem.stages[maker].rank == problem.stages[to].rank:
                    from_ns = end_ns[way, maker]
                else:
                    from_ns, arrived = timeline.starts_ns[first[way, to]], (source == maker) & (destination == to)
                    from_ns[of_taker[arrived]] = arrival_ns[arrived]
                ops.append(first[way, to])
                since_ns.append(from_ns)
                held_bytes.append(np.array([problem.share_bytes(size_bytes, number) for number in range(problem.microbatches)]))
        op, from_ns, sizes_bytes = map(np.concatenate, (ops, since_ns, held_bytes))
        return cls(timeline=timeline, op=op, from_ns=from_ns, size_bytes=sizes_bytes)

    def beside(self, rank: int, held: NDArray[np.int64], left: NDArray[np.int64]) -> NDArray[np.int64]:
        """The most that the rank holds in the time around each of its ops, with what waits there.

        Between the starts of two ops nothing leaves what waits. So the most is held in the last nanosecond of an op, in its own
        where it takes no time, and in the last one before the next op. `held` is in bytes, per op of the rank, while it runs;
        `left` after it.
        """
        begin, end = self.timeline.bounds[rank]
        starts_ns, ends_ns = self.timeline.starts_ns[begin:end], self.timeline.ends_ns[begin:end]
        here = self.timeline.rank_of[self.op] == rank
        times_ns = np.concatenate([self.from_ns[here], self.timeline.starts_ns[self.op[here]]])
        in_time = np.argsort(times_ns, kind="stable")
        sizes = np.concatenate([self.size_bytes[here], -self.size_bytes[here]])[in_time]
        waits_bytes = np.concatenate([[0], np.cumsum(sizes)])

        def waiting(at_ns: NDArray[np.int64]) -> NDArray[np.int64]:
            found: NDArray[np.int64] = waits_bytes[np.searchsorted(times_ns[in_time], at_ns, side="right")]
            return found

        before = np.concatenate([[0], left[:-1]])
        idle = starts_ns > np.concatenate([[0], ends_ns[:-1]])
        while_idle = np.where(idle, before + waiting(starts_ns - 1), 0)
        most: NDArray[np.int64] = np.maximum(held + waiting(np.maximum(ends_ns - 1, starts_ns)), while_idle)
        return most


def memory_changes(problem: Problem, schedule: Schedule, ops: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Per op, the bytes that it takes when it starts and gives back when it ends."""
    kind, stage, microbatch, part = ops.T
    used, stage_at = np.unique(stage, return_inverse=True)  # a rank has few of all stages
    number = microbatch % len(problem.slices) if problem.slices else 0
    slices, stages = range(len(problem.slices) or 1), used.tolist()
    takes = np.array([problem.taken_bytes(of, each, at) for at in slices for each in stages for of in Kind], np.int64)
    gives = np.array([problem.released_bytes(of, each, at) for at in slices for each in stages for of in Kind], np.int64)
    block = (number * len(stages) + stage_at) * len(Kind) + kind
    last_part = part < 0
    for parts in schedule.parts:
        last_part |= (kind == parts.kind) & (stage == parts.stage) & (part == len(parts.shares) - 1)
    return np.where(part <= 0, takes[block], 0), np.where(last_part, gives[block], 0)
