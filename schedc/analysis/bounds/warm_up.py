"""Heads and tails that know how many microbatches came before: the waves that memory, stages and links let through.

Takes the frames of one path, a chain or a graph; gives, per position of the path and per place j in line, the least time before the
j-th forward or backward can start or end there, and the least time that must follow the j-th from last. The microbatches need not
come in any particular order: "the j-th" is the j-th smallest of the times, whichever microbatch it belongs to. If every
microbatch's time at one place is at least c after its time at another, the j-th smallest there is at least c after the j-th
smallest here.

With activation a and limit L a rank holds at most c = L // a activations of a stage, so its n-th forward cannot start before
the (n − c)-th backward there has ended. With remainder k, at most c' = 1 + (L − a) // k are not wholly released when a forward
starts, so the n-th cannot start before the (n − c')-th W has ended. Durations are the least over the path's microbatches.
In a graph, stages of the rank from which edges with gradients lead to this one hold all of their activations as long as it does:
they count in a.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from operator import add, lt, sub
from typing import TYPE_CHECKING, NamedTuple

from schedc.analysis.bounds.clock import Until, check
from schedc.analysis.bounds.one_machine import Backward, Task
from schedc.ir import Problem, Resource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from schedc.analysis.bounds.heads_and_tails import HeadsAndTails, Hop


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """The stages of one path inside a frame, with the least costs over the microbatches that take it.

    Each is behind those that it takes from: the edges of F lead onward, and those of gradients back.
    """

    microbatches: int
    forward_ns: list[int]
    gradient_ns: list[int]
    fused_ns: list[int]
    split_ns: list[int]
    """B and W together; BW where they may not be apart."""
    rest_ns: list[int]
    """What is left of the backward after its gradient part, if it is counted."""
    takes: list[list[tuple[int, int, Hop]]]
    """Per stage, the stages whose F its F needs, with the number of the edge, and its hop."""
    returns: list[list[tuple[int, int, Hop]]]
    """Per stage, the stages whose gradient its backward needs."""
    edges: int
    """How many there are, of either kind."""
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
        takes=_turned(line.returns),
        returns=_turned(line.takes),
        before_ns=list(map(add, line.rest_ns, line.after_ns)),
    )
    tails = _waves(mirrored, until)
    # Where fusing gains nothing, nobody looks at what follows a sent gradient.
    sent_tails_ns = _sent_tails(line, tails) if any(map(lt, line.fused_ns, line.split_ns)) else tails.forward_start_ns
    place = {position: at for at, position in enumerate(first.positions())}
    sent: list[list[tuple[Resource, bool, int, list[int], Hop]]] = [[] for _ in place]
    for forward, sender, receivers, hop in first.microbatches.trip.messages:
        to = [place[each] for each in receivers if each in place]
        if sender in place and to and hop.resource is not None:
            sent[min(place[sender], *to)].append((hop.resource, forward, place[sender], to, hop))
    microbatches = line.microbatches
    for at, position in enumerate(first.positions()):
        rank = Resource.of_rank(problem.stages[first.microbatches.path[position]].rank)
        for j in range(microbatches):
            from_last = microbatches - 1 - j
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
        for resource, forward, sender, to, hop in sent[at]:
            begin_ns, follow_ns = heads.gradient_end_ns[sender], [tails.forward_end_ns[each] for each in to]
            if forward:
                begin_ns, follow_ns = heads.forward_end_ns[sender], [tails.gradient_end_ns[each] for each in to]
            for j in range(microbatches):
                tail_ns = hop.latency_ns + max(each[microbatches - 1 - j] for each in follow_ns)
                yield resource, Task(begin_ns[j] + hop.queued_ns, hop.occupancy_ns, tail_ns)


def _line(problem: Problem, alike: Sequence[HeadsAndTails]) -> _Line:
    first, positions = alike[0], alike[0].positions()
    costs = [[each.microbatches.costs[at] for each in alike] for at in positions]
    microbatches = sum(each.microbatches.count for each in alike)
    gradient_ns = [min(cost.gradient_ns for cost in here) for here in costs]
    backward_ns = [min(cost.backward_ns for cost in here) for here in costs]
    counted = [first.counted[at] for at in positions]
    slots, slots_until_weight = [], []
    trip, held = first.microbatches.trip, [{at} for at in range(len(first.microbatches.path))]
    for at, here in enumerate(trip.returns if problem.edges else ()):
        for other, _, _ in here:
            held[other] |= held[at]
    for at in positions:
        stage, with_it = problem.stages[trip.stages[at]], [problem.stages[trip.stages[each]] for each in held[at]]
        limit, after = problem.memory_limit_bytes[stage.rank], stage.activation_after_input_bytes
        whole = sum(each.activation_bytes for each in with_it if each.rank == stage.rank)
        slots.append(microbatches if limit is None or whole == 0 else max(1, limit // whole))
        slots_until_weight.append(microbatches if limit is None or after == 0 else max(1, 1 + (limit - whole) // after))
    place, number = {position: at for at, position in enumerate(positions)}, count()

    def inside(edges: Iterable[tuple[int, Hop]]) -> list[tuple[int, int, Hop]]:
        return [(place[each], next(number), hop) for each, hop in edges if each in place]

    takes = [inside(trip.takes[at]) for at in positions]
    returns = [inside((other, back) for other, _, back in trip.returns[at]) for at in positions]
    return _Line(
        microbatches=microbatches,
        forward_ns=[min(cost.forward_ns for cost in here) for here in costs],
        gradient_ns=gradient_ns,
        fused_ns=[min(cost.fused_ns for cost in here) for here in costs],
        split_ns=[min(cost.total_split_ns for cost in here) for here in costs],
        rest_ns=[rest if counts else 0 for rest, counts in zip(map(sub, backward_ns, gradient_ns), counted, strict=True)],
        takes=takes,
        returns=returns,
        edges=next(number),
        slots=slots,
        slots_until_weight=slots_until_weight,
        before_ns=[first.gather_ns[at] for at in positions],
        after_ns=[first.after_weight_ns[at] if first.counted[at] else 0 for at in positions],
    )


def _turned(edges: list[list[tuple[int, int, Hop]]]) -> list[list[tuple[int, int, Hop]]]:
    """The same edges, at their other ends."""
    found: list[list[tuple[int, int, Hop]]] = [[] for _ in edges]
    for at, here in enumerate(edges):
        for other, number, hop in here:
            found[other].append((at, number, hop))
    return found


def _waves(line: _Line, until: Until) -> _Waves:
    """Let the microbatches in one after another: along the line (F at each stage), and back.

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
    sent_ns = [0] * line.edges
    for j in range(line.microbatches):
        check(until)
        for at in range(size):
            start_ns = line.before_ns[at]
            for other, number, hop in line.takes[at]:
                sent_ns[number] = max(sent_ns[number], forward_end_ns[other][j] + hop.queued_ns) + hop.occupancy_ns
                start_ns = max(start_ns, sent_ns[number] + hop.latency_ns)
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
            for other, number, hop in line.returns[at]:
                sent_ns[number] = max(sent_ns[number], gradient_end_ns[other][j] + hop.queued_ns) + hop.occupancy_ns
                start_ns = max(start_ns, sent_ns[number] + hop.latency_ns)
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
    sends, sent_ns = _turned(line.returns), [0] * line.edges
    for at, after_ns in enumerate(line.after_ns):
        times_ns: list[int] = []
        least_ns = after_ns
        for j in range(line.microbatches):
            for other, number, hop in sends[at]:
                sent_ns[number] = max(sent_ns[number], tails.forward_end_ns[other][j] + hop.queued_ns) + hop.occupancy_ns
                least_ns = max(least_ns, sent_ns[number] + hop.latency_ns)
            if j >= line.slots[at]:
                least_ns = max(least_ns, tails.gradient_end_ns[at][j - line.slots[at]])
            times_ns.append(least_ns)
        found.append(times_ns)
    return found
