"""When orders end: a Problem and the orders of its ranks as arrays in, their end out, or that of many samples; kernels.

Orders are codes of whole blocks (`tables`; width 1), which may mix fused and split backwards. The clock is the simulator's; only
where a trunk serves several ranks and ops take no time may ties be decided otherwise. Of a graph, values that wait for others do
not count in what ranks hold. The samples are the same problem with other costs. A pass over all ops times one sample; what an order
cannot reach any more, because the samples so far have cost too much, is given up before the last.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from schedc.compiled.kernel import kernel
from schedc.ir import Objective, Problem
from schedc.ir.index import tables_of
from schedc.solvers.kernel.list_kernel import soonest_of
from schedc.solvers.kernel.tables import BW, KINDS, NEVER as STRANDED, B, F, W

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNLIMITED = np.int64(1) << 60
GRAPHS = True
"""Graphs and slices, which a compiled form may leave out."""
SLACK = 1e-12
"""Of a sum of shares: what rounding may make of it."""


class ProblemArrays(NamedTuple):
    """A problem as flat arrays, or lists; per stage unless it says otherwise.

    Transfers are per kind and stage, entry kind × stages + stage. Of a graph, or with slices, they are per hop and slice, entry
    hop × slices + slice, and what is held is per stage and slice in the same way.
    """

    stage_rank: Any
    count: Any
    """How many microbatches visit the stage."""
    fed_by: Any
    """The stage before on the path, or -1."""
    feeds: Any
    """The stage after, or -1. Of a graph this has no meaning, and `fed_by` is -1 of stages without edges in alone."""
    occupancy: Any
    latency: Any
    resource: Any
    """The link or trunk of what the block sends, or -1."""
    gather: Any
    """What its all-gather takes."""
    scatter: Any
    """What its reduce-scatter takes; -1: it has none."""
    gathered: Any
    """Per link, trunk or lane for collectives: when all all-gathers have left it."""
    collectives: Any
    """Per rank, the resource of its collectives."""
    gathering: Any
    """Per rank, when the first of its all-gathers starts."""
    held: Any
    kept: Any
    again: Any
    """What a backward takes besides when it starts."""
    limit: Any
    """Per rank, bytes."""
    hop_begin: Any
    """As of `Tables`, for one path, as the next two. This and all to `slices` are of graphs and slices, and not read elsewhere."""
    hop_to: Any
    hop_carrier: Any
    needs: Any
    """[F or backward × stages + stage]: how many values or gradients come over hops."""
    state: Any
    """Per stage and slice, what the backward gives back of gradients of states; below 0: what it takes."""
    slices: int
    """How many a microbatch has; 0: a chain of whole microbatches."""
    microbatches: int
    in_turn: bool
    """Whether a trunk serves several ranks, so that ops are to be timed in the order of their ends."""
    span: bool
    """Whether each rank's clock starts with its first op (stage span), or at 0 (makespan)."""
    in_order: bool
    """Whether microbatches enter in the order of their numbers."""


def example_facts() -> ProblemArrays:
    """ProblemArrays of no problem, but of the right types."""
    row = np.zeros(1, np.int64)
    return ProblemArrays(*(row,) * 21, 1, 1, False, False, False)


class Orders(NamedTuple):
    """The ops of all ranks in order; a search changes them in place."""

    codes: NDArray[np.int64]
    """[rank, position]: wide enough for every backward split, if backwards may be."""
    lengths: NDArray[np.int64]
    """Per rank, how many of its positions count."""

    def copy(self) -> Orders:
        """The same orders in arrays of their own."""
        return Orders(self.codes.copy(), self.lengths.copy())


class Workspace(NamedTuple):
    """What `time_orders` writes."""

    ready: Any
    """[F or B, stage, microbatch]: when its input is there; -1 while it is not."""
    done_backward: Any
    """[stage, microbatch]: the same for W."""
    left: Any
    """Per stage."""
    entered: Any
    """Per stage: no microbatch below this one may enter; kept where microbatches enter in order."""
    gate_ns: Any
    """Per stage: when its all-gather ends; -1 while its place among the rank's is not known."""
    placed: Any
    """Per rank, as the next five: how many of its ops have run."""
    free_ns: Any
    begun_ns: Any
    left_bytes: Any
    gathering_ns: Any
    """When its next all-gather starts."""
    due_ns: Any
    """When its next op ends, `STRANDED` while that is not known; kept where ops are timed in turn."""
    link_free_ns: Any
    """Per link, trunk or lane for collectives."""
    missing: Any
    """[F or B, stage, microbatch]: how many of its needs are not met; of graphs and slices, as the next."""
    arrival_ns: Any
    """Per hop: when the last message arrived."""
    ends_ns: Any
    """[rank, position]: when the op there ended."""


def workspace_of(facts: ProblemArrays) -> Workspace:
    """Room for `time_orders` on this problem."""
    ranks, stages, microbatches = len(facts.limit), len(facts.stage_rank), facts.microbatches
    of_all = 2, stages, microbatches
    sizes = of_all, (stages, microbatches), *(stages,) * 3, *(ranks,) * 6, len(facts.gathered)
    width = 3 * int(np.bincount(facts.stage_rank, facts.count).max())
    joined = of_all if facts.slices else (1, 1, 1), len(facts.hop_to), (ranks, width)
    return Workspace(*(np.zeros(size, np.int64) for size in (*sizes, *joined)))


@kernel(inline=True)
def due(facts: ProblemArrays, duration: Any, scratch: Workspace, rank: int, kind: int, stage: int, microbatch: int) -> Any:
    """When this op ends as the rank's next; `STRANDED` while it has not what it needs."""
    if kind == F:
        ready_ns = scratch.ready[0, stage, microbatch]
        gate_ns = scratch.gate_ns[stage]
        gate_ns = gate_ns if gate_ns >= 0 else scratch.gathering_ns[rank] + facts.gather[stage]
    else:
        ready_ns = scratch.done_backward[stage, microbatch] if kind == W else scratch.ready[1, stage, microbatch]
        gate_ns = 0
    if GRAPHS and facts.slices > 0 and kind != W and scratch.missing[0 if kind == F else 1, stage, microbatch] > 0:
        return STRANDED
    if ready_ns < 0:
        return STRANDED
    return max(ready_ns, gate_ns, scratch.free_ns[rank]) + duration[kind, stage, microbatch if duration.shape[2] > 1 else 0]


@kernel()
def due_next(facts: ProblemArrays, duration: Any, orders: Orders, scratch: Workspace, rank: int) -> Any:
    """When the rank's next op ends; `STRANDED` while that is not known, or where all have run."""
    at, stages = scratch.placed[rank], len(facts.stage_rank)
    if at >= orders.lengths[rank]:
        return STRANDED
    code = orders.codes[rank, at]
    block = code // KINDS
    return due(facts, duration, scratch, rank, code % KINDS, block % stages, block // stages)


@kernel()
def time_orders(facts: ProblemArrays, duration: Any, orders: Orders, scratch: Workspace) -> Any:
    """The end of the orders; `STRANDED` if they deadlock, run an op before its needs, or exceed a memory limit.

    The same if microbatches enter out of order where they must not. `duration` is [kind, stage, microbatch], or [kind, stage, 0]
    where microbatches are alike; `scratch` is room.
    """
    ready, done_backward, left, entered, gate_ns, placed, free_ns, begun_ns, left_bytes, gathering_ns, due_ns, link_free_ns = (
        scratch[:12]
    )
    codes, lengths = orders
    stages, ranks = len(facts.stage_rank), len(facts.limit)
    differ = 1 if duration.shape[2] > 1 else 0
    for stage in range(stages):
        left[stage], entered[stage], gate_ns[stage] = facts.count[stage], 0, -1
        for microbatch in range(facts.microbatches):
            ready[0, stage, microbatch] = 0 if facts.fed_by[stage] < 0 else -1
            ready[1, stage, microbatch] = done_backward[stage, microbatch] = -1
            if GRAPHS and facts.slices > 0:
                expect(facts, scratch, stage, microbatch)
    for rank in range(ranks):
        placed[rank] = free_ns[rank] = begun_ns[rank] = 0
        left_bytes[rank], gathering_ns[rank] = facts.limit[rank], facts.gathering[rank]
        if facts.in_turn:
            due_ns[rank] = due_next(facts, duration, orders, scratch, rank)
    for link in range(len(link_free_ns)):
        link_free_ns[link] = facts.gathered[link]
    scattered_ns, rank, waiting = 0, 0, 0
    while waiting < ranks:  # each rank goes on as far as it can; or always the one whose op ends first
        if facts.in_turn:
            rank = soonest_of(due_ns)
            if due_ns[rank] >= STRANDED:
                break
        end_ns = STRANDED
        if placed[rank] < lengths[rank]:
            code = codes[rank, placed[rank]]
            kind = code % KINDS
            stage = (code // KINDS) % stages
            microbatch = (code // KINDS) // stages
            end_ns = due(facts, duration, scratch, rank, kind, stage, microbatch)
        if end_ns >= STRANDED:
            waiting += 1
            rank = rank + 1 if rank + 1 < ranks else 0
            continue
        waiting = 0
        at = stage
        if GRAPHS and facts.slices > 0:
            at = stage * facts.slices + microbatch % facts.slices
        if kind == F:
            if facts.in_order and facts.fed_by[stage] < 0:
                if microbatch < entered[stage]:
                    return STRANDED
                entered[stage] = microbatch
            left_bytes[rank] -= facts.held[at]
            if gate_ns[stage] < 0:
                gathering_ns[rank] += facts.gather[stage]
                gate_ns[stage] = gathering_ns[rank]
        if GRAPHS and facts.slices > 0 and kind in (B, BW):
            left_bytes[rank] += min(0, facts.state[at])
        if left_bytes[rank] < (facts.again[at] if kind in (B, BW) else 0):
            return STRANDED
        if placed[rank] == 0:
            begun_ns[rank] = end_ns - duration[kind, stage, differ * microbatch]
        free_ns[rank] = scratch.ends_ns[rank, placed[rank]] = end_ns
        placed[rank] += 1
        way = 0 if kind == F else 1
        neighbour = -1
        if kind == F:
            neighbour = facts.feeds[stage]
            if neighbour < 0:
                ready[1, stage, microbatch] = end_ns
        elif kind == W:
            left_bytes[rank] += facts.kept[at]
        else:
            left_bytes[rank] += facts.held[at] - (facts.kept[at] if kind == B else 0)
            done_backward[stage, microbatch] = end_ns
            neighbour = facts.fed_by[stage]
        if GRAPHS and facts.slices > 0:
            neighbour = -1
            if kind in (B, BW):
                left_bytes[rank] += max(0, facts.state[at])
            if kind != W:
                pass_on(facts, scratch, way, stage, microbatch, end_ns)
        if neighbour >= 0:
            link = facts.resource[way * stages + stage]
            arrival_ns = end_ns
            if link >= 0:
                link_free_ns[link] = max(end_ns, link_free_ns[link]) + facts.occupancy[way * stages + stage]
                arrival_ns = link_free_ns[link] + facts.latency[way * stages + stage]
            ready[way, neighbour, microbatch] = arrival_ns
        if kind in (W, BW):
            left[stage] -= 1
            if left[stage] == 0 and facts.scatter[stage] >= 0:
                link = facts.collectives[rank]
                link_free_ns[link] = max(end_ns, link_free_ns[link]) + facts.scatter[stage]
                scattered_ns = max(scattered_ns, link_free_ns[link])
        if facts.in_turn:
            due_ns[rank] = due_next(facts, duration, orders, scratch, rank)
            if neighbour >= 0:
                other = facts.stage_rank[neighbour]
                if due_ns[other] >= STRANDED:
                    due_ns[other] = due_next(facts, duration, orders, scratch, other)
            if GRAPHS and facts.slices > 0 and kind != W:
                for hop in range(facts.hop_begin[way * stages + stage], facts.hop_begin[way * stages + stage + 1]):
                    other = facts.stage_rank[facts.hop_to[hop]]
                    if due_ns[other] >= STRANDED:
                        due_ns[other] = due_next(facts, duration, orders, scratch, other)
    span_ns, latest_ns = 0, scattered_ns
    for rank in range(ranks):
        if placed[rank] < lengths[rank]:
            return STRANDED
        span_ns = max(span_ns, free_ns[rank] - begun_ns[rank])
        latest_ns = max(latest_ns, free_ns[rank])
    return span_ns if facts.span else latest_ns


@kernel(inline=True)
def expect(facts: ProblemArrays, scratch: Workspace, stage: int, microbatch: int) -> None:
    """What F and the backward wait for, of graphs and slices, before anything has run."""
    stages, slices = len(facts.stage_rank), facts.slices
    scratch.ready[0, stage, microbatch] = scratch.ready[1, stage, microbatch] = 0
    at, gradients = microbatch % slices, facts.needs[stages + stage]
    scratch.missing[0, stage, microbatch] = facts.needs[stage] + (1 if at > 0 else 0)
    scratch.missing[1, stage, microbatch] = (gradients if gradients > 0 else 1) + (1 if at < slices - 1 else 0)


@kernel(inline=True)
def pass_on(facts: ProblemArrays, scratch: Workspace, way: int, stage: int, microbatch: int, end_ns: Any) -> None:
    """What needs an F (way 0) or a backward (1) that has ended: stages over hops, the next slice; of a loss its own backward."""
    ready, missing, link_free_ns = scratch.ready, scratch.missing, scratch.link_free_ns
    stages, slices = len(facts.stage_rank), facts.slices
    at = microbatch % slices
    for hop in range(facts.hop_begin[way * stages + stage], facts.hop_begin[way * stages + stage + 1]):
        entry, carrier, to = hop * slices + at, facts.hop_carrier[hop], facts.hop_to[hop]
        link, arrival_ns = facts.resource[entry], end_ns
        if carrier != hop:
            arrival_ns = scratch.arrival_ns[carrier]
        elif link >= 0:
            link_free_ns[link] = max(end_ns, link_free_ns[link]) + facts.occupancy[entry]
            arrival_ns = link_free_ns[link] + facts.latency[entry]
        scratch.arrival_ns[hop] = arrival_ns
        ready[way, to, microbatch] = max(ready[way, to, microbatch], arrival_ns)
        missing[way, to, microbatch] -= 1
    step = 1 - 2 * way
    if 0 <= at + step < slices:
        ready[way, stage, microbatch + step] = max(ready[way, stage, microbatch + step], end_ns)
        missing[way, stage, microbatch + step] -= 1
    if way == 0 and facts.needs[stages + stage] == 0:
        ready[1, stage, microbatch] = max(ready[1, stage, microbatch], end_ns)
        missing[1, stage, microbatch] -= 1


class Sampled(NamedTuple):
    """What differs from sample to sample, and what makes one number of their ends."""

    occupancy: Any
    """[sample, kind × stages + stage], as `ProblemArrays.occupancy`."""
    latency: Any
    """The same shape."""
    duration: Any
    """[sample, kind, stage, microbatch], as `time_orders` takes them; with one sample, the same for all."""
    share: Any
    """Per sample, of the whole weight."""
    percentile: float
    """The share of the samples that end by then; 0: the mean counts."""
    rest_ns: Any
    """Per sample, a lower bound on what it and those after it add to the mean; one more at the end."""
    ends_ns: Any
    """Room, by sample."""


def unsampled(duration: NDArray[np.int64]) -> Sampled:
    """No samples: what counts is the end on the problem itself, whose ops take this long, [kind, stage, microbatch]."""
    table, row = np.zeros((0, 0), np.int64), np.zeros(0)
    return Sampled(table, table, duration[None], row, 0.0, row, np.zeros(0, np.int64))


@kernel()
def value_of(facts: ProblemArrays, duration: Any, sampled: Sampled, orders: Orders, scratch: Workspace, limit_ns: Any) -> Any:
    """What the orders' ends come to; `STRANDED` if they cannot run; anything above `limit_ns` if it is above that.

    `facts` and `duration` are changed to each sample's in turn. Without samples it is the end on the problem as they have it.
    """
    total_ns = 0.0
    late = 0.0
    samples = len(sampled.share)
    if samples == 0:
        return 1.0 * time_orders(facts, duration, orders, scratch)
    for sample in range(samples):
        for entry in range(len(facts.latency)):
            facts.latency[entry] = sampled.latency[sample, entry]
            facts.occupancy[entry] = sampled.occupancy[sample, entry]
        if len(sampled.duration) > 1 or sample == 0:
            for kind in range(duration.shape[0]):
                for stage in range(duration.shape[1]):
                    for microbatch in range(duration.shape[2]):
                        duration[kind, stage, microbatch] = sampled.duration[sample, kind, stage, microbatch]
        end_ns = time_orders(facts, duration, orders, scratch)
        if end_ns >= STRANDED:
            return 1.0 * STRANDED
        sampled.ends_ns[sample] = end_ns
        total_ns += sampled.share[sample] * end_ns
        if sampled.percentile == 0.0:
            if total_ns + sampled.rest_ns[sample + 1] > limit_ns * (1.0 + SLACK):
                return 2.0 * limit_ns + 1.0
        elif end_ns > limit_ns:
            late += sampled.share[sample]
            if late > 1.0 - sampled.percentile + SLACK:
                return 2.0 * limit_ns + 1.0
    if sampled.percentile == 0.0:
        return total_ns
    best_ns = 1.0 * STRANDED
    for sample in range(samples):
        by_then = 0.0
        for other in range(samples):
            if sampled.ends_ns[other] <= sampled.ends_ns[sample]:
                by_then += sampled.share[other]
        if by_then >= sampled.percentile - SLACK:
            best_ns = min(best_ns, 1.0 * sampled.ends_ns[sample])
    return best_ns


def problem_arrays_of(problem: Problem) -> ProblemArrays:
    """The problem as the kernel's arrays, but for durations."""
    tables = tables_of(problem)
    stages = len(problem.stages)
    columns, path_of = np.arange(stages), np.zeros(stages, np.int64)
    count = np.zeros(stages, np.int64)
    for path, visits in Counter(problem.path_of).items():
        on_path = list(problem.paths[path])
        path_of[on_path], count[on_path] = path, visits
    rows = ((np.arange(2)[:, None] * len(problem.paths) + path_of) * stages + columns).ravel()
    first, end = tables.hop_begin[rows], tables.hop_begin[rows + 1]
    hops = np.concatenate([np.arange(*ends) for ends in zip(first, end, strict=True)])  # of each stage on its path, F, then B
    hop_begin = np.append(0, np.cumsum(end - first))
    senders = np.repeat(np.tile(columns, 2), end - first)
    slices = 0 if problem.is_chain and not problem.slices else len(problem.slices) or 1
    if slices:
        number = np.zeros(len(tables.hop_to), np.int64)
        number[hops] = np.arange(len(hops))
        carrier, fed_by, feeds = number[tables.hop_carrier[hops]], np.where(tables.inputs[0, path_of, columns] > 0, 0, -1), path_of
        each = [
            tables.hop_occupancy_ns[hops],
            *(np.repeat(per[hops, None], slices, 1) for per in (tables.hop_latency_ns, tables.hop_resource)),
        ]
    else:
        carrier, neighbours = hops, np.full(2 * stages, -1, np.int64)
        neighbours[first < end] = tables.hop_to[hops]
        feeds, fed_by = neighbours[:stages], neighbours[stages:]
        each = [np.full(3 * stages, nothing, np.int64) for nothing in (0, 0, -1)]
        for array, per in zip(each, (tables.hop_occupancy_ns[:, 0], tables.hop_latency_ns, tables.hop_resource), strict=True):
            array[: 2 * stages][first < end] = per[hops]
    occupancy, latency, resource = each
    needs = tables.inputs[:, path_of, columns].ravel()
    held, kept, again, state = _bytes_of(problem, max(1, slices))
    rank_of_stage, parallel = tables.rank_of_stage, problem.data_parallel
    gather = np.array(parallel.all_gather_ns if parallel and parallel.all_gather_ns else [0] * stages, np.int64)
    scatter = np.array(parallel.reduce_scatter_ns if parallel else [-1] * stages, np.int64)
    gathered, gathering = np.zeros(len(tables.resources), np.int64), np.zeros(problem.ranks, np.int64)
    for rank, lane in enumerate(tables.collective_resource):  # on a trunk, those of lower ranks go first
        gathering[rank] = gathered[lane]
        gathered[lane] += gather[(rank_of_stage == rank) & (count > 0)].sum()
    users = {(on, rank_of_stage[stage]) for on, stage in zip(tables.hop_resource[hops], senders, strict=True) if on >= 0}
    users |= set(zip(tables.collective_resource, range(problem.ranks), strict=True))
    return ProblemArrays(
        stage_rank=rank_of_stage,
        count=count,
        fed_by=fed_by,
        feeds=feeds,
        occupancy=occupancy.ravel(),
        latency=latency.ravel(),
        resource=resource.ravel(),
        gather=gather,
        scatter=scatter,
        gathered=gathered,
        collectives=tables.collective_resource,
        gathering=gathering,
        held=held,
        kept=kept,
        again=again,
        limit=np.array([UNLIMITED if limit is None else limit for limit in problem.memory_limit_bytes], np.int64),
        hop_begin=hop_begin,
        hop_to=tables.hop_to[hops],
        hop_carrier=carrier,
        needs=needs,
        state=state,
        slices=slices,
        microbatches=problem.microbatches,
        in_turn=len({on for on, _ in users}) < len(users),
        span=problem.objective is Objective.STAGE_SPAN,
        in_order=problem.in_order,
    )


def _bytes_of(problem: Problem, slices: int) -> NDArray[np.int64]:
    """[held, kept, again, state][stage × slices + slice]: see `ProblemArrays`."""
    rows = []
    for stage in problem.stages:
        sizes = stage.activation_bytes, stage.activation_after_input_bytes, stage.recomputed_bytes, stage.state_gradient_bytes
        shares = np.array([[problem.share_bytes(size, at) for at in range(slices)] for size in sizes], np.int64)
        shares[3, -1] = -shares[3, :-1].sum()
        rows.append(shares)
    return np.stack(rows, axis=1).reshape(4, -1)
