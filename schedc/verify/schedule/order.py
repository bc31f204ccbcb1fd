"""The positions of a schedule's blocks and what waits for what: the lookups behind the order and deadlock checks.

Takes a problem and a schedule; gives, per block, the position of its first and last op, the needs between blocks, and the graph of
ops that wait for each other across ranks. A *position* counts the ops of all ranks' orders, one order after another. A *block* is
the number `(microbatch × stages + stage) × 4 + kind`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from schedc.ir import BLOCKS, Problem, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_KINDS = len(BLOCKS)
_F, _B, _W, _BW = range(_KINDS)
_MOST_NODES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockEnds:
    """The positions of a schedule's blocks."""

    first: list[int]
    """Per block, the position of its first op; −1: it is not in the schedule."""
    last: list[int]
    """Per block, the position of its last op; −1: it is not in the schedule."""
    rank: list[int]
    """Per position, its rank."""
    offset: list[int]
    """Per rank, the position of its first op."""

    def waits(self, problem: Problem) -> dict[int, list[int]]:
        """Per position that receives something from another rank, the positions that send it."""
        first, last, rank = self.first, self.last, self.rank
        waits: dict[int, list[int]] = {}
        for producer, consumer in needs(problem):
            source, target = last[producer], first[consumer]
            if source >= 0 and target >= 0 and rank[source] != rank[target]:
                waits.setdefault(target, []).append(source)
        return waits


def ends_of_blocks(problem: Problem, schedule: Schedule) -> BlockEnds:
    """Where each block starts and ends in the orders; ops with fields out of range are left out."""
    stages, microbatches = len(problem.stages), problem.microbatches
    first, last = ([-1] * (stages * microbatches * _KINDS) for _ in range(2))
    rank_of: list[int] = []
    position = 0
    for rank, order in enumerate(schedule.orders):
        for kind, stage, microbatch, _ in order:
            if 0 <= stage < stages and 0 <= microbatch < microbatches and 0 <= kind < _KINDS:
                block = (microbatch * stages + stage) * _KINDS + kind
                last[block] = position
                if first[block] < 0:
                    first[block] = position
            position += 1
        rank_of += [rank] * len(order)
    offset = [0, *accumulate(len(order) for order in schedule.orders)]
    return BlockEnds(first=first, last=last, rank=rank_of, offset=offset)


def needs(problem: Problem) -> Iterator[tuple[int, int]]:
    """Every (producer, consumer) pair of blocks, fused and split backwards alike (cost model, "Time"; "Graphs and slices")."""
    stages, slices = len(problem.stages), len(problem.slices)
    for microbatch in range(problem.microbatches):
        begin = microbatch * stages
        previous = -1
        for stage in problem.path(microbatch):
            block = (begin + stage) * _KINDS
            yield block + _F, block + _B
            yield block + _F, block + _BW
            yield block + _B, block + _W
            if previous >= 0 and not problem.edges:
                yield previous + _F, block + _F
                for source in (block + _B, block + _BW):
                    yield source, previous + _B
                    yield source, previous + _BW
            if slices and microbatch % slices:  # the slice before it, of the same microbatch
                before = block - stages * _KINDS
                yield before + _F, block + _F
                yield from _backward(block, before)
            previous = block
        for edge in problem.edges:
            source, destination = ((begin + stage) * _KINDS for stage in (edge.source, edge.destination))
            yield source + _F, destination + _F
            if edge.has_gradient:
                yield from _backward(destination, source)


def _backward(producer: int, consumer: int) -> Iterator[tuple[int, int]]:
    """The pairs of two blocks of which the backward of the one, fused or split, needs that of the other."""
    for source in (producer + _B, producer + _BW):
        yield source, consumer + _B
        yield source, consumer + _BW


def first_blocked(schedule: Schedule, ends: BlockEnds, waits: Mapping[int, Sequence[int]]) -> list[int] | None:
    """Run all orders as far as they go. Per rank, the position where it stays blocked; None if every rank reaches its end."""
    at = ends.offset[: len(schedule.orders)]
    stop = ends.offset[1:]
    sleepers: dict[int, list[int]] = {}
    awake = list(range(len(at)))
    while awake:
        rank = awake.pop()
        while at[rank] < stop[rank]:
            missing = next((source for source in waits.get(at[rank], ()) if at[ends.rank[source]] <= source), None)
            if missing is not None:
                sleepers.setdefault(missing, []).append(rank)
                break
            awake += sleepers.pop(at[rank], ())
            at[rank] += 1
    return None if at == stop else at


def waiting_graph(ends: BlockEnds, waits: Mapping[int, Sequence[int]], blocked: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """The blocked ops that send or receive between ranks, as positions, and per op the indices of those that wait for it.

    An op waits for every op before it on its rank and for what it receives, so a cycle of ranks has two ops of each rank at most.
    That makes many edges: of a schedule with more than `_MOST_NODES` such ops, only those are taken at which the ranks are blocked
    and those that they wait for there. As every blocked rank waits for another blocked one, they always contain a cycle.
    """
    stuck = {position for position, end in zip(blocked, ends.offset[1:], strict=True) if position < end}
    kept = {*stuck, *(source for target in stuck for source in waits[target] if source >= blocked[ends.rank[source]])}
    others = {
        position
        for target, sources in waits.items()
        for source in sources
        if blocked[ends.rank[target]] <= target and blocked[ends.rank[source]] <= source
        for position in (source, target)
    }
    nodes = sorted(others if len(others) <= _MOST_NODES else kept)
    number = {position: index for index, position in enumerate(nodes)}
    successors: list[list[int]] = []
    for index, position in enumerate(nodes):
        after = index + 1
        while after < len(nodes) and ends.rank[nodes[after]] == ends.rank[position]:
            after += 1
        successors.append(list(range(index + 1, after)))
    for target in nodes:
        for source in waits.get(target, ()):
            if source in number:
                successors[number[source]].append(number[target])
    return nodes, successors
