"""What a memory limit costs in time: an activation stays on its rank for a round trip, and a limited number fits.

Takes a frame of a problem; gives the least time that the limits of the ranks leave, and the least limits with which any
schedule exists. A problem whose stages recompute becomes one in which none does and no schedule is lost, so that every bound on it
holds: memory is taken by F alone there; all else is the same.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from schedc.ir import Problem, with_whole_weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schedc.analysis.bounds.heads_and_tails import Frame, HeadsAndTails


class _Stay(NamedTuple):
    """The activations of one class of microbatches at one stage: how long they stay, and what must come before and after."""

    microbatches: int
    stage: int
    whole_bytes: int
    """What F takes."""
    kept_bytes: int
    """What is left of it between B and W."""
    head_ns: int
    until_gradient_ns: int
    """From the start of F to the end of the backward's gradient part."""
    after_gradient_ns: int
    until_release_ns: int
    """From the start of F until all of the activation is released."""
    byte_ns: int
    """Bytes × time of one activation until all of it is released."""
    after_release_ns: int


def minimum_limit_bytes(problem: Problem) -> tuple[int, ...]:
    """Per rank, a memory limit that is necessary: below it no schedule exists.

    Proof: when a stage starts a microbatch's backward, it and every stage of the path before it have run their F and none of them
    has ended its backward, so their rank holds what all of these took, and what the backward takes when it starts. Of a graph, that
    holds for the stages from which edges with gradients lead to it; of slices, for this and all before it. The gradients of their
    states on the stage itself have been taken by the last slice, which is behind or is this one. Of sharded weights
    those of the stage are there, and with a backward that is fused its gradients: the least of the rank's stages counts.
    """
    if problem.is_sharded:
        besides = _least_gathered(problem, backward=True)
        return tuple(map(int.__add__, minimum_limit_bytes(with_whole_weights(problem)), besides))
    least = [0] * problem.ranks
    if problem.edges or problem.slices:
        for index in set(problem.path_of):
            for rank, held_bytes in _held_at_backwards(problem, index):
                least[rank] = max(least[rank], held_bytes)
        return tuple(least)
    for index in set(problem.path_of):
        held = [0] * problem.ranks
        for stage in problem.paths[index]:
            costs = problem.stages[stage]
            held[costs.rank] += costs.activation_bytes
            least[costs.rank] = max(least[costs.rank], held[costs.rank] + costs.recomputed_bytes)
    return tuple(least)


def _held_at_backwards(problem: Problem, path: int) -> Iterator[tuple[int, int]]:
    """Per stage of the path and slice: its rank, and what that holds at least when the backward starts."""
    parts = range(len(problem.slices) or 1)
    place, before = {stage: at for at, stage in enumerate(problem.paths[path])}, dict[int, set[int]]()
    for edge in sorted(problem.edges_of(path), key=lambda edge: place[edge.source]):
        behind = before.setdefault(edge.destination, set())
        if edge.has_gradient:
            behind |= {edge.source} | before.get(edge.source, set())
    for stage in problem.paths[path]:
        costs, held = problem.stages[stage], 0
        mine = [problem.stages[each] for each in {stage} | before.get(stage, set())]
        for part in parts:
            held += sum(problem.share_bytes(each.activation_bytes, part) for each in mine if each.rank == costs.rank)
            held += 0 if problem.is_last_slice(part) else problem.share_bytes(costs.state_gradient_bytes, part)
            yield costs.rank, held + problem.share_bytes(costs.recomputed_bytes, part)


def rank_without_room(problem: Problem) -> tuple[int, int, int] | None:
    """The first rank whose limit is below `minimum_limit_bytes`, with both; None: there is none."""
    for rank, (limit, needed) in enumerate(zip(problem.memory_limit_bytes, minimum_limit_bytes(problem), strict=True)):
        if limit is not None and limit < needed:
            return rank, limit, needed
    return None


def beside_gathered(problem: Problem) -> Problem:
    """The problem whose weights are whole, and whose ranks have less memory by the least that one of their stages gathers.

    Proof: a schedule of the problem, with all its times, is one of this, but for gathers that are left out. While an op runs, its
    stage's weights are there, so activations take no more than the limit here. Between two ops they take no more than in the first.
    """
    if not problem.is_sharded:
        return problem
    limits = [
        None if limit is None else max(0, limit - least)
        for limit, least in zip(problem.memory_limit_bytes, _least_gathered(problem), strict=True)
    ]
    return replace(with_whole_weights(problem), memory_limit_bytes=tuple(limits))


def _least_gathered(problem: Problem, *, backward: bool = False) -> list[int]:
    """Per rank, what gathered weights take at least while an op runs, in bytes; while a backward does, with fused gradients."""
    parallel = problem.data_parallel
    assert parallel is not None
    sizes = list(parallel.gathered_bytes)
    if backward and not problem.split_backward:
        sizes = list(map(int.__add__, sizes, parallel.gradient_bytes))
    return [min((sizes[stage] for stage in problem.stages_on(rank)), default=0) for rank in range(problem.ranks)]


def without_recomputed_bytes(problem: Problem) -> Problem:
    """The problem in which a stage that recomputes holds its input until its backward ends, and nothing after it.

    A rank all of whose stages recompute has less memory, by what the least of its recomputations takes. Values that wait, and
    gradients of states, count in no bound.

    Proof: a schedule of the problem, with all its times, is one of this. What a rank holds there at a time is no more than here: of
    a stage that recomputes the input alone, of others the same. Let all stages of the rank recompute, and look at any time. If no
    input is held, nothing is, there. Else a backward runs, or one will: until the next one starts, F are all that changes
    what is held of inputs, and they only add. When that one starts, the inputs then held and what it takes fit the limit here; so
    the inputs held before fit the limit there, less by the least that any backward of the rank takes. While it runs, it holds that.
    """
    if not any(stage.recomputed_bytes for stage in problem.stages):
        return problem
    stages = tuple(
        replace(stage, recomputed_bytes=0, activation_after_input_bytes=0) if stage.recomputed_bytes else stage
        for stage in problem.stages
    )
    limits = list(problem.memory_limit_bytes)
    for rank, limit_bytes in enumerate(limits):
        mine, parts = (stage for stage in problem.stages if stage.rank == rank), range(len(problem.slices) or 1)
        least = min((problem.share_bytes(stage.recomputed_bytes, part) for stage in mine for part in parts), default=0)
        limits[rank] = None if limit_bytes is None else max(0, limit_bytes - least)
    return replace(problem, stages=stages, memory_limit_bytes=tuple(limits))


def slices_as_microbatches(problem: Problem) -> Problem:
    """The problem in which each slice is a microbatch, and has the sizes of the smallest one; itself where there are none.

    For bounds that count microbatches. Proof: the times of a schedule here keep all needs there, which are
    fewer; transfers take no longer there, and no rank holds more.
    """
    if not problem.slices:
        return problem
    least = problem.slices.index(min(problem.slices))
    stages = tuple(
        replace(
            stage,
            activation_bytes=problem.share_bytes(stage.activation_bytes, least),
            activation_after_input_bytes=problem.share_bytes(stage.activation_after_input_bytes, least),
            recomputed_bytes=problem.share_bytes(stage.recomputed_bytes, least),
            message_bytes=problem.share_bytes(stage.message_bytes, least),
            gradient_message_bytes=problem.share_bytes(stage.gradient_message_bytes, least),
            state_gradient_bytes=0,
        )
        for stage in problem.stages
    )
    edges = tuple(
        replace(
            edge,
            message_bytes=problem.share_bytes(edge.message_bytes, least),
            gradient_message_bytes=None if (back := edge.gradient_message_bytes) is None else problem.share_bytes(back, least),
        )
        for edge in problem.edges
    )
    return replace(problem, slices=(), stages=stages, edges=edges)


def residency_bound_of_rank(frame: Frame, rank: int) -> int:
    """The least span of the frame that the rank's memory limit leaves; 0 where it has none. The largest of three arguments.

    All stays of a set of stages lie between the least head of its F and what must follow after the last of them. In that time:

    - Bytes × time (Little's law). A stay of a stage with activation a and remainder k takes a × (round trip + BW), or
      a × (round trip + B) + k × W if that is less and allowed; the sum cannot exceed limit × that time.
    - The same up to the end of the gradient part alone, which a longer tail follows.
    - Slots. If each stay takes at least a bytes, no more than c = limit // a exist at once. Intervals of which no more than c
      overlap can be put into c slots, each of which holds one at a time, so that time is no shorter than the fullest slot.
      And with remainders of at least k bytes, when an F starts there are no more than (limit - a) // k others whose W is not done.
    """
    problem = frame.problem
    limit = problem.memory_limit_bytes[rank]
    stays = [stay for each in frame.classes for stay in _stays(problem, each, rank)]
    if limit is None or limit == 0 or not stays:
        return 0
    stages = sorted({stay.stage for stay in stays})
    sets = [stays, *([stay for stay in stays if stay.stage == stage] for stage in stages if len(stages) > 1)]
    best_ns = 0
    for some in sets:
        head_ns = min(stay.head_ns for stay in some)
        byte_ns = sum(stay.microbatches * stay.byte_ns for stay in some)
        best_ns = max(best_ns, head_ns + -(-byte_ns // limit) + min(stay.after_release_ns for stay in some))

        after_ns = min(stay.after_gradient_ns for stay in some)
        byte_ns = sum(stay.microbatches * stay.until_gradient_ns * stay.whole_bytes for stay in some)
        best_ns = max(best_ns, head_ns + -(-byte_ns // limit) + after_ns)

        activation = min(stay.whole_bytes for stay in some)
        remainder = min(stay.kept_bytes for stay in some)
        if activation:
            lengths = [(stay.until_gradient_ns, stay.microbatches) for stay in some]
            best_ns = max(best_ns, head_ns + load_of_slots(lengths, max(1, limit // activation)) + after_ns)
        if remainder:
            lengths = [(stay.until_release_ns, stay.microbatches) for stay in some]
            slots = max(1, 1 + (limit - activation) // remainder)
            after_ns = min(stay.after_release_ns for stay in some)
            best_ns = max(best_ns, head_ns + load_of_slots(lengths, slots) + after_ns)
    return best_ns


def load_of_slots(lengths: Sequence[tuple[int, int]], slots: int) -> int:
    """A least length of the fullest of some slots that hold all intervals, given as (length, how many).

    Of the k × slots + 1 longest intervals, some slot holds k + 1, no shorter together than the shortest k + 1 of them.
    """
    ordered = [length for length, count in sorted(lengths, reverse=True) for _ in range(count)]
    sums = list(accumulate(ordered, initial=0))
    return max(sums[last + 1] - sums[last - last // slots] for last in range(0, len(ordered), slots))


def _stays(problem: Problem, frame: HeadsAndTails, rank: int) -> list[_Stay]:
    microbatches, trip = frame.microbatches, frame.microbatches.trip
    found = []
    for at in reversed(frame.positions()):
        stage = problem.stages[trip.stages[at]]
        if stage.rank != rank:
            continue
        costs, round_trip_ns = microbatches.costs[at], microbatches.round_trip_ns[at]
        whole_bytes = problem.share_bytes(stage.activation_bytes, trip.slices[at])
        kept_bytes = problem.share_bytes(stage.activation_after_input_bytes, trip.slices[at])
        until_gradient_ns = round_trip_ns + costs.gradient_ns
        byte_ns = whole_bytes * until_gradient_ns
        until_release_ns, after_release_ns = until_gradient_ns, frame.gradient_tail_ns[at]
        if frame.counted[at]:
            byte_ns = whole_bytes * (round_trip_ns + costs.fused_ns)
            if costs.split_ns is not None:
                input_ns, weight_ns = costs.split_ns
                byte_ns = min(byte_ns, whole_bytes * (round_trip_ns + input_ns) + kept_bytes * weight_ns)
            until_release_ns, after_release_ns = round_trip_ns + costs.backward_ns, frame.after_weight_ns[at]
        found.append(
            _Stay(
                microbatches=microbatches.count,
                stage=trip.stages[at],
                whole_bytes=whole_bytes,
                kept_bytes=kept_bytes,
                head_ns=frame.forward_head_ns[at],
                until_gradient_ns=until_gradient_ns,
                after_gradient_ns=frame.gradient_tail_ns[at],
                until_release_ns=until_release_ns,
                byte_ns=byte_ns,
                after_release_ns=after_release_ns,
            )
        )
    return found
