"""What graphs and slices add to the tables of the list scheduler: hops between lanes, shares of slices, room for values that wait.

A Problem and its lanes go in, rows of `joints`, `units` and `hops` come out. Where an op needs several values, those that came
first wait on its rank, and count there (docs/graphs.md, "Memory"). When they come depends on times; the list scheduler counts
memory by the order of ops alone. So it keeps no room for them, and what it made is checked; or it keeps room for all that can ever
wait (`Room`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from schedc.ir import Problem, Resource
from schedc.ir.graph import shares_bytes
from schedc.solvers.kernel.tables import ROW

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schedc.ir import Edge


class Room(NamedTuple):
    """What the list scheduler does about all that it cannot count by the order of ops."""

    for_values: bool = False
    """It keeps room for all values of a graph that may wait for others; else such values are not counted, and a schedule may have
    too many of them for a memory limit."""
    most: int | None = None
    """Nothing is refused: a limit counts as room for one microbatch, as much as its slices can ever hold, and at most this many of
    them are in flight on a stage. The schedule may exceed it."""


NO_ROOM = Room()


class Hops(NamedTuple):
    """Tables of the `SchedulerState`."""

    joints: list[Any]
    hops: list[Any]
    occupancy_ns: list[int]


def takes_joints(problem: Problem) -> bool:
    """Whether it is a graph, or has slices; else the tables of this module are not needed."""
    return not problem.is_chain or bool(problem.slices)


def hops_of(problem: Problem, lanes: list[Any], resources: dict[Resource, int]) -> Hops:
    """What each lane sends and needs; resources that are not yet numbered get the next number.

    A lane's `previous` becomes a lane that its backward sends to, or -1.
    """
    links = {(link.source, link.destination): link for link in problem.links}
    number_of = {(lane.path, lane.stage): number for number, lane in enumerate(lanes)}
    forth: list[list[tuple[Edge, int, int]]] = [[] for _ in lanes]
    back: list[list[tuple[Edge, int, int]]] = [[] for _ in lanes]
    for path in {lane.path for lane in lanes}:
        for edge in problem.edges_of(path):
            source, destination = number_of[path, edge.source], number_of[path, edge.destination]
            forth[source].append((edge, destination, edge.message_bytes))
            if edge.gradient_message_bytes is not None:
                back[destination].append((edge, source, edge.gradient_message_bytes))
    joints = [ROW["joints"]() for _ in lanes]
    hops: list[Any] = []
    occupancy_ns: list[int] = []

    def add(number: int, sent: Iterable[tuple[Edge, int, int]], *, shared: bool) -> tuple[int, int]:
        begin, first = len(hops), dict[tuple[int, int], int]()
        for edge, to, size_bytes in sent:
            source, destination = lanes[number].rank, lanes[to].rank
            link = links[source, destination] if source != destination else None
            carrier = first.setdefault((edge.value, destination), len(hops)) if shared else len(hops)
            on = -1 if link is None else resources.setdefault(Resource.of_link(link), len(resources))
            hops.append(ROW["hops"](to, on, carrier, 0 if link is None else link.latency_ns))
            shares = shares_bytes(size_bytes, problem.slices)
            occupancy_ns.extend(0 if link is None else link.occupancy_ns(share) for share in shares)
        return begin, len(hops)

    for number, (joint, lane) in enumerate(zip(joints, lanes, strict=True)):
        joint.first_hop, joint.end_hop = add(number, forth[number], shared=True)
        joint.first_back, joint.end_back = add(number, back[number], shared=False)
        for _, to, _ in forth[number]:
            joints[to].needs_f += 1
        for _, to, _ in back[number]:
            joints[to].needs_b += 1
        lane.previous, lane.following = (back[number][0][1] if back[number] else -1), -1
    return Hops(joints, hops, occupancy_ns)


def units_of(problem: Problem, lanes: list[Any], blocks: list[Any]) -> list[Any]:
    """What each position holds and keeps: its slice's share, and room for the gradient of its state, as long as it holds anything.

    By the rule the backward of the last slice takes the gradients of all states, and the others give them back; room that is kept
    from their F on has the same effect on what fits, or less.
    """
    rows = []
    for lane in lanes:
        stage = problem.stages[lane.stage]
        state, whole, kept = (
            shares_bytes(size_bytes, problem.slices)
            for size_bytes in (stage.state_gradient_bytes, stage.activation_bytes, stage.activation_after_input_bytes)
        )
        state[-1] = 0
        for block in blocks[lane.first : lane.last]:
            at = problem.slice_of(block.microbatch)
            rows.append(ROW["units"](whole[at] + state[at], kept[at]))
    return rows


def again_bytes_of(problem: Problem, stage: int) -> int:
    """The most that a backward of the stage takes besides when it starts, but for the gradients of states."""
    recomputed_bytes = problem.stages[stage].recomputed_bytes
    return max(problem.share_bytes(recomputed_bytes, at) for at in range(len(problem.slices) or 1))


def values_wait(problem: Problem) -> bool:
    """Whether a rank with a memory limit has ops that need several values."""
    return any(
        limit is not None and (each or rest)
        for limit, each, rest in zip(problem.memory_limit_bytes, *_waiting_bytes(problem), strict=True)
    )


def room_for_values(problem: Problem, whole_bytes: list[int], free_bytes: list[int | None]) -> tuple[int, list[int]]:
    """How many microbatches (or slices) may be in flight in each lane, and, by rank, room enough for all values that wait then.

    A value waits at an op from the time when F of its source has ended, at the soonest, to the start of the op. Where the backward
    of the source needs that op, directly or by others, it has not run then; a cap on what is in flight there bounds what waits, in
    whatever times. So it is of gradients, which wait between F and the backward of the stage that needs them. Of other sources
    all may wait at once.

    The most that leaves, on each rank, room for as many as are in flight, or for as many as the longest path has stages; at least
    one whole microbatch.

    Args:
        problem: any.
        whole_bytes: by rank, all that one microbatch ever holds there, of slices all of them.
        free_bytes: by rank, what activations and values may take; None: no limit.
    """
    slices = len(problem.slices) or 1
    each_bytes, all_bytes = _waiting_bytes(problem)
    deep = max(map(len, problem.paths)) + slices - 1

    def fits(count: int) -> bool:
        for each, rest, whole, free in zip(each_bytes, all_bytes, whole_bytes, free_bytes, strict=True):
            wanted = max(whole, min(count, deep) * -(-whole // slices))
            if free is not None and rest + count * each + wanted > free:
                return False
        return True

    most = problem.microbatches
    if not fits(most):
        low, high = slices, most  # fits(low) or nothing does
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        most = low
    return most, [rest + most * each for each, rest in zip(each_bytes, all_bytes, strict=True)]


def _waiting_bytes(problem: Problem) -> tuple[list[int], list[int]]:
    """By rank, what values wait at most: of each microbatch (or slice) in flight; and of all of them, where no cap bounds them."""
    each_bytes, all_bytes = [0] * problem.ranks, [0] * problem.ranks
    if problem.is_chain:
        return each_bytes, all_bytes
    into: list[list[Edge]] = [[] for _ in problem.stages]
    out: list[list[Edge]] = [[] for _ in problem.stages]
    for edge in problem.edges:
        into[edge.destination].append(edge)
        if edge.has_gradient:
            out[edge.source].append(edge)
    before: dict[int, set[int]] = {}  # itself and all whose F it needs
    for stage in problem.paths[0]:
        before[stage] = {stage}.union(*(before[edge.source] for edge in into[stage]))
    needed: dict[int, set[int]] = {}  # all whose F its backward needs
    for stage in reversed(problem.paths[0]):
        needed[stage] = before[stage].union(*(needed[edge.destination] for edge in out[stage]))
    lengths = range(len(problem.slices) or 1)

    def most_bytes(size_bytes: int) -> int:
        return max(problem.share_bytes(size_bytes, at) for at in lengths)

    for stage, costs in enumerate(problem.stages):
        for edge in into[stage] if len(into[stage]) > 1 else ():
            if stage in needed[edge.source]:
                each_bytes[costs.rank] += most_bytes(edge.message_bytes)
            else:
                shares = sum(problem.share_bytes(edge.message_bytes, at) for at in lengths)
                all_bytes[costs.rank] += problem.microbatches // len(lengths) * shares
        for edge in out[stage] if len(out[stage]) > 1 else ():
            each_bytes[costs.rank] += most_bytes(edge.gradient_message_bytes or 0)
    return each_bytes, all_bytes
