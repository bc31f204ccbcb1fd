"""Heads and tails that know how many microbatches came before: the waves that memory, stages and links let through.

Takes the frames of one path; gives, per position of the path and per place j in line, the least time before the j-th forward or
backward can start or end there, and the least time that must follow the j-th from last. The microbatches need not come in any
particular order: "the j-th" is the j-th smallest of the times, whichever microbatch it belongs to. If every microbatch's time at
one place is at least c after its time at another, the j-th smallest there is at least c after the j-th smallest here.

With activation a and limit L a rank holds at most c = L // a activations of a stage, so its n-th forward cannot start before
the (n − c)-th backward there has ended. With remainder k, at most c' = 1 + (L − a) // k are not wholly released when a forward
starts, so the n-th cannot start before the (n − c')-th W has ended. Durations are the least over the path's microbatches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.analysis.bounds.one_machine import Job
from schedc.ir.resource import Resource

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schedc.analysis.bounds.heads_and_tails import Frame
    from schedc.ir.problem import Problem

__all__ = ["wave_jobs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """The stages of one path inside a frame, with the least costs over the microbatches that take it."""

    microbatches: int
    forward_ns: list[int]
    gradient_ns: list[int]
    rest_ns: list[int]
    """What is left of the backward after its gradient part, if it is counted."""
    there: list[tuple[int, int]]
    """Per stage, (occupancy, latency) of the transfer to the next one; one entry fewer than stages."""
    back: list[tuple[int, int]]
    """Per stage, (occupancy, latency) of the gradient that comes to it from the next one."""
    slots: list[int]
    """Per stage, how many activations fit at once; the number of microbatches if all do."""
    slots_until_weight: list[int]
    """Per stage, how many may be not wholly released when a forward starts, itself included."""
    before_ns: list[int]
    after_ns: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waves:
    """Per stage of a line and place in line: times from one end of the frame. Heads count from its start, tails from its end."""

    enter_ns: list[list[int]]
    """Heads: least start of F. Tails: least time after the end of the gradient part."""
    turn_ns: list[list[int]]
    """Heads: least end of F. Tails: least time after the start of the backward."""
    again_ns: list[list[int]]
    """Heads: least start of the backward. Tails: least time after the end of F."""
    leave_ns: list[list[int]]
    """Heads: least end of the gradient part. Tails: least time after the start of F."""


def wave_jobs(problem: Problem, frames: Sequence[Frame]) -> Iterator[tuple[Resource, Job]]:
    """The jobs of every rank, link and trunk, for all microbatches of one path.

    Jobs of one kind and stage pair the j-th head with the tail of the j-th place, though the j-th to start need not be the
    j-th to end. That is right for a bound over sets: of n blocks, at least k − j + 1 start no earlier than the j-th and end no
    later than the k-th.
    """
    line = _line(problem, frames)
    first = frames[0]
    heads = _waves(line, line.before_ns, line.forward_ns, line.gradient_ns, line.there, line.back)
    # Backwards in time the line is another one: gradient parts come first, and transfers arrive before they leave.
    mirrored_after = [rest + after for rest, after in zip(line.rest_ns, line.after_ns, strict=True)]
    tails = _waves(line, mirrored_after, line.gradient_ns, line.forward_ns, line.back, line.there)
    count = line.microbatches
    for at, position in enumerate(first.positions()):
        rank = Resource.of_rank(problem.stages[first.visit.path[position]].rank)
        for j in range(count):
            from_last = count - 1 - j
            yield rank, Job(heads.enter_ns[at][j], line.forward_ns[at], tails.again_ns[at][from_last])
            yield rank, Job(heads.again_ns[at][j], line.gradient_ns[at], tails.enter_ns[at][from_last])
            if line.rest_ns[at]:
                yield rank, Job(heads.leave_ns[at][j], line.rest_ns[at], line.after_ns[at])
            if at == len(line.there):
                continue
            there, back = first.visit.forward[position], first.visit.backward[position]
            if there.resource is not None:
                tail_ns = there.latency_ns + tails.leave_ns[at + 1][from_last]
                yield there.resource, Job(heads.turn_ns[at][j], there.occupancy_ns, tail_ns)
            if back.resource is not None:
                tail_ns = back.latency_ns + tails.turn_ns[at][from_last]
                yield back.resource, Job(heads.leave_ns[at + 1][j], back.occupancy_ns, tail_ns)


def _line(problem: Problem, frames: Sequence[Frame]) -> _Line:
    first = frames[0]
    positions = first.positions()
    visits = [frame.visit for frame in frames]
    microbatches = sum(visit.count for visit in visits)
    gradient_ns = [min(visit.costs[at].gradient_ns for visit in visits) for at in positions]
    backward_ns = [min(visit.costs[at].backward_ns for visit in visits) for at in positions]
    slots, slots_until_weight = [], []
    for at in positions:
        stage = problem.stages[first.visit.path[at]]
        limit, whole, after = problem.memory_limit_bytes[stage.rank], stage.activation_bytes, stage.activation_after_input_bytes
        slots.append(microbatches if limit is None or whole == 0 else max(1, limit // whole))
        slots_until_weight.append(microbatches if limit is None or after == 0 else max(1, 1 + (limit - whole) // after))
    return _Line(
        microbatches=microbatches,
        forward_ns=[min(visit.costs[at].forward_ns for visit in visits) for at in positions],
        gradient_ns=gradient_ns,
        rest_ns=[
            whole - part if first.counted[at] else 0 for at, whole, part in zip(positions, backward_ns, gradient_ns, strict=True)
        ],
        there=[(hop.occupancy_ns, hop.latency_ns) for hop in first.visit.forward[first.begin :]],
        back=[(hop.occupancy_ns, hop.latency_ns) for hop in first.visit.backward[first.begin :]],
        slots=slots,
        slots_until_weight=slots_until_weight,
        before_ns=[first.gather_ns[at] for at in positions],
        after_ns=[first.after_weight_ns[at] if first.counted[at] else 0 for at in positions],
    )


def _waves(
    line: _Line,
    gate_ns: Sequence[int],
    going_ns: Sequence[int],
    coming_ns: Sequence[int],
    there: Sequence[tuple[int, int]],
    back: Sequence[tuple[int, int]],
) -> _Waves:
    """Let the microbatches in one after another: along the line (`going_ns` at each stage, `there` between them), and back.

    Each end is the later of: its own start, and the end before it, plus its duration (a rank runs one at a time, and the argument
    holds for interrupted blocks: those that ended j-th or earlier, but started k-th or later, ran after the k-th start); and the
    first start plus all that its stage must have done by then. Transfers of one hop leave one after another.
    """
    size = len(going_ns)
    waves: list[list[list[int]]] = [[[] for _ in range(size)] for _ in range(4)]
    enter, turn, again, leave = waves
    left_there, left_back = [0] * size, [0] * size
    for j in range(line.microbatches):
        for at in range(size):
            start_ns = gate_ns[at]
            if at > 0:
                occupancy_ns, latency_ns = there[at - 1]
                left_there[at] = max(left_there[at], turn[at - 1][j]) + occupancy_ns
                start_ns = max(start_ns, left_there[at] + latency_ns)
            done = j + 1 - line.slots[at]  # so many must have come back before the (j+1)-th may enter
            if done > 0:
                start_ns = max(start_ns, leave[at][done - 1])
            if j >= line.slots_until_weight[at]:
                start_ns = max(start_ns, leave[at][j - line.slots_until_weight[at]] + line.rest_ns[at])
            if j > 0:
                start_ns = max(start_ns, enter[at][j - 1])
            enter[at].append(start_ns)
            end_ns = max(start_ns, turn[at][j - 1] if j > 0 else 0) + going_ns[at]
            turn[at].append(max(end_ns, enter[at][0] + (j + 1) * going_ns[at] + max(0, done) * coming_ns[at]))
        for at in reversed(range(size)):
            start_ns = turn[at][j]
            if at < size - 1:
                occupancy_ns, latency_ns = back[at]
                left_back[at] = max(left_back[at], leave[at + 1][j]) + occupancy_ns
                start_ns = max(start_ns, left_back[at] + latency_ns)
            if j > 0:
                start_ns = max(start_ns, again[at][j - 1])
            again[at].append(start_ns)
            end_ns = max(start_ns, leave[at][j - 1] if j > 0 else 0) + coming_ns[at]
            leave[at].append(max(end_ns, enter[at][0] + (j + 1) * (going_ns[at] + coming_ns[at])))
    return _Waves(enter_ns=enter, turn_ns=turn, again_ns=again, leave_ns=leave)
