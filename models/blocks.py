"""What a formulation schedules: the blocks and transfers of a Problem, in ticks, and what must come before what.

Every formulation reads this one table, so that CP-SAT and MILP are asked the same question. Blocks are whole, or W in equal
parts where the problem allows its weights to be cut. Where the problem does not split, backwards are fused. Where it splits, each
backward is B and W, or fused where BW takes less than both (`Blocks.fused`); elsewhere B followed by W at once does everything
that BW does, no later (cost model). Only its gradient is ready sooner, which decides who goes first on a trunk (`Blocks.later`).

On a stage, each kind of block runs in microbatch order, B and BW as one kind, among microbatches that are alike (a group: the same
path, the same durations; of slices, the same ones of microbatches that are alike in all their slices). This loses nothing. Proof:
take any schedule, keep every start, and name the blocks of each stage and group anew: the k-th forward, the k-th backward (B or BW)
belong to the k-th microbatch of the group, the k-th W to the k-th B among its backwards that are B. What a rank does at any time
stays the same; only names change. Between groups the order is open, but for what the problem asks: where microbatches enter in the
order of their numbers, the forwards of each stage that takes from no other are one chain. There the new names are the old ones.

This speaks of starts, and so of the makespan at once: the simulator starts no op of the named order later. It may start a rank
earlier, which began with a microbatch that arrived late and now has the name of one that arrived before. So for the stage span what
is proven holds for the models, in which a rank may begin as before (`models.start_windows`), and not for orders of ops.

- If x(m) + d <= y(m) for every microbatch m, then the k-th least x, plus d, is at most the k-th least y: of the k microbatches
  with the least y, each has an x that is at most its y - d. So every need and every transfer between a sorted kind and a sorted
  kind is kept: F to F (all take the same time), F to backward.
- A gradient is ready at the end of its backward. Backwards of one stage do not overlap, so they end in the order in which they
  start, whatever each one takes; the same argument holds for the ends.
- W needs a B of its own. The k-th B ends before the k-th W starts, by the same argument among the split ones alone. With W in
  parts, the B that the k-th group of parts belongs to has ended: before it, fewer than k B had let parts start.
- An op of a graph has several needs, over edges; each of them is one of these by itself. So are those between slices, F of the k-th
  slice j before F of the k-th slice j + 1, backwards the other way: their groups have the same microbatches, in the same order.
- The transfers of a group over one edge are of one size, and leave in the order in which their producers end: the k-th of them
  brings what the k-th producer sent. Of one producer they leave in the order of its edges, each behind those before it.
- What a rank holds at a time is a sum over groups, of how many have started and ended: each takes and gives back the same bytes
  as the others of its group, activations, states' gradients and recomputed ones alike. So it stays the same. Values that wait
  are those that have arrived, of one size for each edge and group, less those whose op has started: also as many as before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from itertools import pairwise
from math import gcd
from typing import TYPE_CHECKING

from schedc.ir import BLOCKS, WHOLE, Kind, Op, Parts, Problem, Resource, groups_of, sent_to, share_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable


MOST_TICKS = 1 << 40
"""A horizon of more ticks (1,100 s in nanoseconds) is rounded to a grid of as many or down to half; sums stay far from overflow."""
TRIED = 1000
"""This many ticks, from the finest allowed to twice that, are tried where one must round: most times are near a few multiples."""


@dataclass(frozen=True, slots=True)
class TimeGrid:
    """A tick's length: the coarsest that represents every duration exactly, or one that rounds down.

    Solvers get small integers this way. Where rounding is needed, durations are rounded *down*, so that a solver's lower bound
    stays one of the true problem; the schedule that it finds is timed again exactly. Proof: with the ends of a true schedule's ops
    rounded down, too, and the starts of its transfers, all that came first still does.
    """

    tick_ns: int
    exact: bool

    def ticks(self, time_ns: int) -> int:
        """The duration in ticks, rounded down."""
        return time_ns // self.tick_ns


def grid_of(problem: Problem, horizon_ns: int, most_ticks: int = MOST_TICKS) -> TimeGrid:
    """The grid for schedules that end by the horizon; where it must round, one of `TRIED` with the least sum of remainders."""
    times_ns = {time_ns for stage in problem.stages for kind in BLOCKS for time_ns in stage.durations_ns(kind)}
    sizes = {size_bytes for stage in problem.stages for size_bytes in (stage.message_bytes, stage.gradient_message_bytes)}
    if problem.edges:
        sizes = {size_bytes or 0 for edge in problem.edges for size_bytes in (edge.message_bytes, edge.gradient_message_bytes)}
    sizes = {share_bytes(size_bytes, problem.slices, index) for size_bytes in sizes for index in range(len(problem.slices) or 1)}
    for link in problem.links:
        times_ns |= {link.latency_ns, *map(link.occupancy_ns, sizes)}
    if problem.data_parallel is not None:
        times_ns |= {*problem.data_parallel.reduce_scatter_ns, *problem.data_parallel.all_gather_ns}
    tick_ns, coarse_ns = max(gcd(*times_ns), 1), -(-horizon_ns // most_ticks)
    if tick_ns >= coarse_ns:
        return TimeGrid(tick_ns, True)
    ticks_ns = {coarse_ns + coarse_ns * part // TRIED for part in range(TRIED)}
    return TimeGrid(min(sorted(ticks_ns), key=lambda tick_ns: sum(time_ns % tick_ns for time_ns in times_ns)), False)


class NothingAtMost(Exception):
    """Of the blocks of a model no schedule has an objective of at most `upper` ticks, as `least` ticks bound it from below."""

    def __init__(self, upper: int, least: int) -> None:
        super().__init__(f"no schedule of the model has an objective of at most {upper} ticks; none is below {least}")


@dataclass(frozen=True, slots=True)
class BlockTransfer:
    """One message: after its producer, on its resource for the occupancy, then the latency before its consumers."""

    name: Op
    """Its producer; where stages are a graph, with the stage that it goes to (`ir.ops.sent_to`)."""
    producer: Op
    consumers: tuple[Op, ...]
    """One; where stages are a graph, all on its rank that take this value."""
    resource: Resource
    occupancy: int
    latency: int


@dataclass(frozen=True, slots=True)
class WaitingValue:
    """A value that its consumer needs with others: it counts on the rank from its arrival until the consumer starts."""

    brought_by: Op
    """The name of its transfer, or the op of the same rank that makes it."""
    consumer: Op
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a problem. Durations are in ticks."""

    duration: dict[Op, int]
    """Every op, by stage, kind, microbatch, part; what B and W take where they are not fused."""
    fused: dict[Op, int]
    """Per B that may run fused with its W, as that takes less time: what BW takes. It is in the place of B; its W takes no time."""
    later: dict[Op, int]
    """Per B that is split here as BW takes no less: by how much later its gradient is ready where it is fused all the same.
    That turns no order on one rank, but may on a trunk."""
    needs: tuple[tuple[Op, Op], ...]
    """(before, after) without a transfer: on one rank."""
    transfers: tuple[BlockTransfer, ...]
    chains: tuple[tuple[Op, ...], ...]
    """Ops of one stage and kind that run one after another: those of each group of microbatches that are alike, in the order of
    their numbers, as this loses nothing (CrossPipe 4.1), or all that enter in order."""
    parts: tuple[Parts, ...]
    gather: dict[int, int]
    """Per stage, its all-gather, where there is one."""
    scatter: dict[int, int]
    """Per stage, its reduce-scatter, where there is one."""
    waiting: tuple[WaitingValue, ...] = ()
    """None on a grid that rounds, where it is not known from which tick on they count."""

    def backward_of(self, weight: Op) -> Op:
        """The B whose W this op is, or is a part of."""
        return Op(Kind.B, weight.stage, weight.microbatch)

    def may_vanish(self, op: Op) -> bool:
        """Whether the op is a W, or a part of one, that may be fused into its backward."""
        return op.kind is Kind.W and self.backward_of(op) in self.fused

    def least(self, op: Op) -> int:
        """The least time that the op takes, fused or not."""
        return 0 if self.may_vanish(op) else min(self.duration[op], self.fused.get(op, self.duration[op]))


def blocks_of(problem: Problem, grid: TimeGrid, weight_parts: int = 1) -> Blocks:
    """The blocks of the problem on a grid, every W cut into `weight_parts` equal parts."""
    backward = Kind.B if problem.split_backward else Kind.BW
    kinds = (Kind.F, Kind.B, Kind.W) if problem.split_backward else (Kind.F, Kind.BW)
    duration: dict[Op, int] = {}
    fused, later = dict[Op, int](), dict[Op, int]()
    needs: list[tuple[Op, Op]] = []
    transfers: list[BlockTransfer] = []
    chains: dict[tuple[int, Kind, int], list[Op]] = {}
    cut = weight_parts if problem.split_backward and problem.cut_blocks else 1
    parts = tuple(Parts(kind=Kind.W, stage=stage, shares=(1,) * cut) for stage in range(len(problem.stages))) if cut > 1 else ()
    groups, entries = groups_of(problem), entries_of(problem)
    for stage, microbatch in problem.blocks():
        halves = 0
        for kind in kinds:
            block_ns = problem.duration_ns(kind, stage, microbatch)
            if kind is Kind.W and cut > 1:
                shares_ns = parts[stage].durations_ns(block_ns)
                ops = [(Op(kind, stage, microbatch, part), share_ns) for part, share_ns in enumerate(shares_ns)]
            else:
                ops = [(Op(kind, stage, microbatch), block_ns)]
            for op, op_ns in ops:
                duration[op] = grid.ticks(op_ns)
                halves += duration[op] if kind is not Kind.F else 0
                enters = problem.in_order and kind is Kind.F and stage in entries[problem.path_of[microbatch]]
                group = -1 - problem.path_of[microbatch] if enters else groups[microbatch]
                chains.setdefault((stage, kind, group), []).append(op)
        needs.append((Op(Kind.F, stage, microbatch), Op(backward, stage, microbatch)))
        if problem.split_backward:
            needs.append((Op(Kind.B, stage, microbatch), Op(Kind.W, stage, microbatch, 0 if cut > 1 else WHOLE)))
            together = grid.ticks(problem.duration_ns(Kind.BW, stage, microbatch))
            if together < halves:
                fused[Op(Kind.B, stage, microbatch)] = together
            else:
                later[Op(Kind.B, stage, microbatch)] = together - duration[Op(Kind.B, stage, microbatch)]
    edges = [problem.edges_of(path) for path in range(len(problem.paths))]
    inputs: dict[Op, list[WaitingValue]] = {}
    for microbatch, path in enumerate(problem.path_of):
        if problem.slice_of(microbatch):
            for stage in problem.paths[path]:
                needs.append((Op(Kind.F, stage, microbatch - 1), Op(Kind.F, stage, microbatch)))
                needs.append((Op(backward, stage, microbatch), Op(backward, stage, microbatch - 1)))
        carriers: dict[tuple[Op, int, int], int] = {}  # by producer, value and rank, the place of the transfer among all
        for edge in edges[path]:
            source, destination = (Op(Kind.F, stage, microbatch) for stage in (edge.source, edge.destination))
            hops = [(source, destination, edge.value, edge.message_bytes)]
            if edge.gradient_message_bytes is not None:
                ends = destination._replace(kind=backward), source._replace(kind=backward)
                hops.append((*ends, -1 - edge.source, edge.gradient_message_bytes))
            for producer, consumer, value, size_bytes in hops:
                held_bytes = problem.share_bytes(size_bytes, microbatch)
                name = producer if problem.is_chain else sent_to(producer, consumer.stage)
                ranks = problem.rank_of(producer), problem.rank_of(consumer)
                known = carriers.setdefault((producer, value, ranks[1]), len(transfers))
                if ranks[0] == ranks[1]:
                    name = producer
                    needs.append((producer, consumer))
                elif known < len(transfers):
                    name = transfers[known].name
                    transfers[known] = replace(transfers[known], consumers=(*transfers[known].consumers, consumer))
                else:
                    link = problem.link(*ranks)
                    occupancy, latency = grid.ticks(link.occupancy_ns(held_bytes)), grid.ticks(link.latency_ns)
                    transfers.append(BlockTransfer(name, producer, (consumer,), Resource.of_link(link), occupancy, latency))
                if problem.edges:
                    inputs.setdefault(consumer, []).append(WaitingValue(name, consumer, held_bytes))
    parallel = problem.data_parallel
    used = {op.stage for op in duration}
    gathers = parallel.all_gather_ns if parallel else ()
    scatters = parallel.reduce_scatter_ns if parallel else ()
    return Blocks(
        duration,
        fused,
        later,
        tuple(needs),
        tuple(transfers),
        tuple(map(tuple, chains.values())),
        parts,
        {stage: grid.ticks(time_ns) for stage, time_ns in enumerate(gathers) if stage in used},
        {stage: grid.ticks(time_ns) for stage, time_ns in enumerate(scatters) if stage in used},
        tuple(value for values in inputs.values() if len(values) > 1 and grid.exact for value in values),
    )


def entries_of(problem: Problem) -> list[set[int]]:
    """Per path, the stages that take from no other."""
    return [
        set(path).difference(edge.destination for edge in problem.edges_of(number)) for number, path in enumerate(problem.paths)
    ]


def followers_of(blocks: Blocks) -> dict[Op, list[tuple[Op, int]]]:
    """Per op, what follows it directly, and how many ticks after its end at the least; every op is behind all that it follows.

    An op follows what it needs, what sends to it (what that sends over the same link before it goes first), and the one before it
    in its chain. A W that is fused follows, at a moment at which nothing need happen: when its backward and all W before it
    have ended.
    """
    edges = [(before, op, 0) for before, op in blocks.needs]
    ahead: dict[tuple[Op, Resource], int] = {}
    for move in blocks.transfers:
        left = ahead[move.producer, move.resource] = ahead.get((move.producer, move.resource), 0) + move.occupancy
        edges += [(move.producer, consumer, left + move.latency) for consumer in move.consumers]
    edges += [(before, op, 0) for chain in blocks.chains for before, op in pairwise(chain)]
    sorter: TopologicalSorter[Op] = TopologicalSorter(dict.fromkeys(blocks.duration, ()))
    for before, op, _ in edges:
        sorter.add(op, before)
    followers: dict[Op, list[tuple[Op, int]]] = {op: [] for op in sorter.static_order()}
    for before, op, gap in edges:
        followers[before].append((op, gap))
    return followers


def most_bytes(problem: Problem, blocks: Blocks, rank: int) -> int:
    """More than a rank ever holds: all that its blocks take, and all values that wait there."""
    taken = sum(
        problem.taken_bytes(Kind.F, *block) + problem.taken_bytes(Kind.BW, *block)
        for block in problem.blocks()
        if problem.stages[block[0]].rank == rank
    )
    return taken + sum(value.held_bytes for value in blocks.waiting if problem.rank_of(value.consumer) == rank)


def may_be_held_up(problem: Problem, blocks: Blocks, move: BlockTransfer) -> bool:
    """Whether others may go first on the link or trunk of a message without occupancy, for which models have no start."""
    if move.occupancy:
        return False
    parallel = problem.data_parallel
    if parallel is not None and move.resource == Resource.of_collectives(parallel, problem.rank_of(move.producer)):
        return True
    return any(other.occupancy for other in blocks.transfers if other.resource == move.resource)


def unit_bytes(held_bytes: Iterable[int], limit_bytes: int, most: int) -> int:
    """How many bytes a unit has: the least that keeps sums small, and exact (a common divisor) where one is large enough.

    Bytes become the numbers that a solver gets: small enough that nothing overflows and no tolerance counts, and still a
    relaxation. A solver is given how much each thing holds and a limit, both in units of `unit` bytes and both rounded down.
    Nothing is lost: if things of h1, h2, … bytes fit together into the limit, h1 + h2 + … <= limit, then floor(h1 / unit) +
    floor(h2 / unit) + … is an integer that is at most limit / unit, so at most its floor. So bounds of such a model hold for the
    problem in bytes. The other way is true only where the unit divides all that is held: a schedule that the model allows is
    checked in bytes before it is taken. The sum of all that is held, and the limit, are at most `most` units.
    """
    total_bytes, divisor = 0, 0
    for held in held_bytes:
        total_bytes += held
        divisor = gcd(divisor, held)
    return max(divisor, -(-max(total_bytes, limit_bytes) // most), 1)
