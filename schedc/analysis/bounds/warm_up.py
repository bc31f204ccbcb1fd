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

from dataclasses import dataclass, replace
from operator import add, lt, sub
from typing import TYPE_CHECKING, NamedTuple

from schedc.analysis.bounds.clock import Until, check
from schedc.analysis.bounds.one_machine import Backward, Task
from schedc.ir import Problem, Resource

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schedc.analysis.bounds.heads_and_tails import HeadsAndTails


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """The stages of one path inside a frame, with the least costs over the microbatches that take it."""

    microbatches: int
    forward_ns: list[int]
    gradient_ns: list[int]
    fused_ns: list[int]
    split_ns: list[int]
    """B and W together; BW where they may not be apart."""
    rest_ns: list[int]
    """What is left of the backward after its gradient part, if it is counted."""
    forward_hops: list[tuple[int, int]]
    """Per stage, (occupancy, latency) of the transfer to the next one; one entry fewer than stages."""
    gradient_hops: list[tuple[int, int]]
    """Per stage, (occupancy, latency) of the gradient that comes to it from the next one."""
    slots: list[int]
    """Per stage, how many activations fit at once; the number of microbatches if all do."""
    slots_until_weight: list[int]
    """Per stage, how many may be not wholly released when a forward starts, itself included."""
    before_ns: list[int]
    after_ns: list[int]


class _Waves(NamedTuple):
    """Per stage of a line and place in line: times from one end of the frame. Heads count from its start, tails from its end."""

    forward_start_ns: list[list[int]]
    """Heads: least start of F. Tails: least time after the end of the gradient part."""
    forward_end_ns: list[list[int]]
    """Heads: least end of F. Tails: least time after the start of the backward."""
    gradient_start_ns: list[list[int]]
    """Heads: least start of the backward. Tails: least time after the end of F."""
    gradient_end_ns: list[list[int]]
    """Heads: least end of the gradient part. Tails: least time after the start of F."""


def wave_tasks(problem: Problem, alike: Sequence[HeadsAndTails], until: Until) -> Iterator[tuple[Resource, Task | Backward]]:
    """The tasks of every rank, link and trunk, for all microbatches of one path.

    Tasks of one kind and stage pair the j-th head with the tail of the j-th place, though the j-th to start need not be the
    j-th to end. That is right for a bound over sets: of n blocks, at least k − j + 1 start no earlier than the j-th and end no
    later than the k-th.

    Raises:
        TimeUp: the time is up.
    """
    line, first = _line(problem, alike), alike[0]
    heads = _waves(line, until)
    # Backwards in time the line is another one: gradient parts come first, and transfers arrive before they leave.
    mirrored = replace(
        line,
        forward_ns=line.gradient_ns,
        gradient_ns=line.forward_ns,
        forward_hops=line.gradient_hops,
        gradient_hops=line.forward_hops,
        before_ns=list(map(add, line.rest_ns, line.after_ns)),
    )
    tails = _waves(mirrored, until)
    # Where fusing gains nothing, nobody looks at what follows a sent gradient.
    sent_tails_ns = _sent_tails(line, tails) if any(map(lt, line.fused_ns, line.split_ns)) else tails.forward_start_ns
    count = line.microbatches
    for at, position in enumerate(first.positions()):
        rank = Resource.of_rank(problem.stages[first.microbatches.path[position]].rank)
        for j in range(count):
            from_last = count - 1 - j
            yield rank, Task(heads.forward_start_ns[at][j], line.forward_ns[at], tails.gradient_start_ns[at][from_last])
            gradient_ns, after_ns = line.gradient_ns[at], line.after_ns[at]
            head_ns, later_head_ns = heads.gradient_start_ns[at][j], heads.gradient_end_ns[at][j]
            tail_ns = tails.forward_start_ns[at][from_last]
            if line.fused_ns[at] < line.split_ns[at]:
                yield (
                    rank,
                    Backward(
                        microbatches=1,
                        gradient_ns=gradient_ns,
                        fused_ns=line.fused_ns[at],
                        split_ns=line.split_ns[at],
                        head_ns=head_ns,
                        later_head_ns=later_head_ns,
                        gradient_tail_ns=tail_ns,
                        sent_tail_ns=sent_tails_ns[at][from_last],
                        after_ns=after_ns if first.counted[position] else None,
                    ),
                )
            else:  # most problems; splitting costs nothing, and what a choice may change is not looked at
                yield rank, Task(head_ns, gradient_ns, tail_ns)
                if line.rest_ns[at]:
                    yield rank, Task(later_head_ns, line.rest_ns[at], after_ns)
            if at == len(line.forward_hops):
                continue
            forward_hop, gradient_hop = first.microbatches.forward[position], first.microbatches.backward[position]
            if forward_hop.resource is not None:
                tail_ns = forward_hop.latency_ns + tails.gradient_end_ns[at + 1][from_last]
                yield forward_hop.resource, Task(heads.forward_end_ns[at][j], forward_hop.occupancy_ns, tail_ns)
            if gradient_hop.resource is not None:
                tail_ns = gradient_hop.latency_ns + tails.forward_end_ns[at][from_last]
                yield gradient_hop.resource, Task(heads.gradient_end_ns[at + 1][j], gradient_hop.occupancy_ns, tail_ns)


def _line(problem: Problem, alike: Sequence[HeadsAndTails]) -> _Line:
    first, positions = alike[0], alike[0].positions()
    costs = [[each.microbatches.costs[at] for each in alike] for at in positions]
    microbatches = sum(each.microbatches.count for each in alike)
    gradient_ns = [min(cost.gradient_ns for cost in here) for here in costs]
    backward_ns = [min(cost.backward_ns for cost in here) for here in costs]
    counted = [first.counted[at] for at in positions]
    slots, slots_until_weight = [], []
    for at in positions:
        stage = problem.stages[first.microbatches.path[at]]
        limit, whole, after = problem.memory_limit_bytes[stage.rank], stage.activation_bytes, stage.activation_after_input_bytes
        slots.append(microbatches if limit is None or whole == 0 else max(1, limit // whole))
        slots_until_weight.append(microbatches if limit is None or after == 0 else max(1, 1 + (limit - whole) // after))
    return _Line(
        microbatches=microbatches,
        forward_ns=[min(cost.forward_ns for cost in here) for here in costs],
        gradient_ns=gradient_ns,
        fused_ns=[min(cost.fused_ns for cost in here) for here in costs],
        split_ns=[min(cost.total_split_ns for cost in here) for here in costs],
        rest_ns=[rest if counts else 0 for rest, counts in zip(map(sub, backward_ns, gradient_ns), counted, strict=True)],
        forward_hops=[(hop.occupancy_ns, hop.latency_ns) for hop in first.microbatches.forward[first.begin :]],
        gradient_hops=[(hop.occupancy_ns, hop.latency_ns) for hop in first.microbatches.backward[first.begin :]],
        slots=slots,
        slots_until_weight=slots_until_weight,
        before_ns=[first.gather_ns[at] for at in positions],
        after_ns=[first.after_weight_ns[at] if first.counted[at] else 0 for at in positions],
    )


def _waves(line: _Line, until: Until) -> _Waves:
    """Let the microbatches in one after another: along the line (F at each stage, `forward_hops` between them), and back.

    Each end is the later of: its own start, and the end before it, plus its duration (a rank runs one at a time, and the argument
    holds for interrupted blocks: those that ended j-th or earlier, but started k-th or later, ran after the k-th start); and the
    first start plus all that its stage must have done by then. Transfers of one hop leave one after another.
    """
    size, onward_ns, returning_ns = len(line.forward_ns), line.forward_ns, line.gradient_ns
    waves = _Waves(
        forward_start_ns=[[] for _ in range(size)],
        forward_end_ns=[[] for _ in range(size)],
        gradient_start_ns=[[] for _ in range(size)],
        gradient_end_ns=[[] for _ in range(size)],
    )
    forward_start_ns, forward_end_ns, gradient_start_ns, gradient_end_ns = waves
    sent_onward_ns, sent_back_ns = [0] * size, [0] * size
    for j in range(line.microbatches):
        check(until)
        for at in range(size):
            start_ns = line.before_ns[at]
            if at > 0:
                occupancy_ns, latency_ns = line.forward_hops[at - 1]
                sent_onward_ns[at] = max(sent_onward_ns[at], forward_end_ns[at - 1][j]) + occupancy_ns
                start_ns = max(start_ns, sent_onward_ns[at] + latency_ns)
            done = j + 1 - line.slots[at]  # this many must have come back before the (j+1)-th may enter
            if done > 0:
                start_ns = max(start_ns, gradient_end_ns[at][done - 1])
            if j >= line.slots_until_weight[at]:
                start_ns = max(start_ns, gradient_end_ns[at][j - line.slots_until_weight[at]] + line.rest_ns[at])
            if j > 0:
                start_ns = max(start_ns, forward_start_ns[at][j - 1])
            forward_start_ns[at].append(start_ns)
            end_ns = max(start_ns, forward_end_ns[at][j - 1] if j > 0 else 0) + onward_ns[at]
            forward_end_ns[at].append(
                max(end_ns, forward_start_ns[at][0] + (j + 1) * onward_ns[at] + max(0, done) * returning_ns[at])
            )
        for at in reversed(range(size)):
            start_ns = forward_end_ns[at][j]
            if at < size - 1:
                occupancy_ns, latency_ns = line.gradient_hops[at]
                sent_back_ns[at] = max(sent_back_ns[at], gradient_end_ns[at + 1][j]) + occupancy_ns
                start_ns = max(start_ns, sent_back_ns[at] + latency_ns)
            if j > 0:
                start_ns = max(start_ns, gradient_start_ns[at][j - 1])
            gradient_start_ns[at].append(start_ns)
            end_ns = max(start_ns, gradient_end_ns[at][j - 1] if j > 0 else 0) + returning_ns[at]
            gradient_end_ns[at].append(max(end_ns, forward_start_ns[at][0] + (j + 1) * (onward_ns[at] + returning_ns[at])))
    return waves


def _sent_tails(line: _Line, tails: _Waves) -> list[list[int]]:
    """Per stage and place from last, the least time after a gradient has been sent: after the end of B or BW, whichever it is.

    What must follow: the gradient's transfer and what its receiver does then; the forward that could start only when a fused
    backward, or the gradient part of a split one, had released memory; and what follows the weights.
    """
    found: list[list[int]] = []
    for at, after_ns in enumerate(line.after_ns):
        times_ns: list[int] = []
        least_ns, arrived_ns = after_ns, 0
        occupancy_ns, latency_ns = line.gradient_hops[at - 1] if at else (0, 0)
        for j in range(line.microbatches):
            if at:
                arrived_ns = max(arrived_ns, tails.forward_end_ns[at - 1][j]) + occupancy_ns
                least_ns = max(least_ns, arrived_ns + latency_ns)
            if j >= line.slots[at]:
                least_ns = max(least_ns, tails.gradient_end_ns[at][j - line.slots[at]])
            times_ns.append(least_ns)
        found.append(times_ns)
    return found
