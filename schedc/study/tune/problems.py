"""A candidate as a problem of the compiler, with the layers of its microbatch size.

The partition is the balanced one. Nothing is written or read: `folder` writes the best one as a job, which has the same problem.

How long the collectives of data parallelism take follows from bytes, replicas and links.

Within a site they are rings: of n devices, each sends (n − 1) / n of the bytes for a reduce-scatter, and as much for an
all-gather, in n − 1 messages. Where replicas of a stage are in several sites, collectives are hierarchical: each site reduces its
own, the sites exchange the parts in a ring of sites, and the all-gather goes the same way back. So between two sites each gradient
crosses once, half for the reduce-scatter and half for the all-gather.

The stages of a pipeline finish at about the same time, so the collectives of all of its ranks share what connects two sites: each
has an equal part of the bandwidth, all the time. What they gain when others are done is not counted.

Where steps overlap, the collectives of a stage and the optimizer's step are its update, `U`; its rank computes nothing meanwhile.

Experts have replicas of their own: with expert parallelism e, each pipeline has 1/e of them, and what reduces the gradients of one
are replicas ÷ e. The collectives of the others and those of experts follow each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import accumulate, pairwise
from math import ceil
from typing import TYPE_CHECKING

from schedc.costs.memory import Besides, besides
from schedc.errors import Defect
from schedc.frontend.checks import check_size
from schedc.frontend.cost_keys import MemorySection
from schedc.frontend.sections import Memory, check_room, exactly
from schedc.io.location import Location
from schedc.ir import DataParallel, Device, Layout, MessageCost, Network, Problem, TiedWeight, Updates, Workload
from schedc.lower.partition import balanced_partition
from schedc.lower.placement import place
from schedc.lower.problem import problem_of, stage_static_bytes, static_bytes
from schedc.verify.layout import verify_layout
from schedc.verify.workload import verify_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedc.study.tune.candidates import TuneCandidate
    from schedc.study.tune.request import TuneRequest

JOB = Location("the job")
"""What messages call a candidate's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateProblem:
    """A candidate that can be compiled."""

    workload: Workload
    layout: Layout
    problem: Problem
    collectives_ns: tuple[int, ...]
    """Of each rank, if nothing overlapped them."""
    besides: tuple[Besides, ...]
    """Of each rank, what a device holds besides its parameters' states and activations; none of layers that were measured."""
    update_ns: int
    """What the optimizer's step takes after a step that ends, of the rank where it takes longest; updates of a period are in it."""

    @property
    def static_bytes(self) -> tuple[int, ...]:
        """What each rank holds all the time."""
        return static_bytes(self.workload, self.layout)


def candidate_problem(request: TuneRequest, candidate: TuneCandidate, partition: Sequence[int] | None = None) -> CandidateProblem:
    """The problem of a candidate; a `partition` says how many layers each stage has instead of the balanced one.

    Raises:
        InvalidInput: a rank has no room for what it holds all the time, or a step is too long to be exact.
    """
    placed = place(candidate.placement, candidate.ranks, candidate.chunks)
    recomputed = frozenset(range(len(placed.rank_of_stage)) if candidate.recompute == "full" else ())
    each, of_expert = bytes_per_parameter(request, candidate)
    memory = Memory(
        devices=(Device(capacity_bytes=request.room_bytes),) * candidate.ranks,
        bytes_per_parameter=exactly(each),
        bytes_per_expert_parameter=exactly(of_expert),
    )
    sites, between = candidate.ranks_of_site, None
    if len(sites) > 1:  # each rank has its share of what all pipelines use at the same time
        assert request.between is not None
        between = shared(request.between, candidate.data_parallel * request.group, request.within)
    site_of_rank = tuple(site for site, ranks in enumerate(sites) for _ in range(ranks))
    workload = Workload(
        name=request.name,
        microbatches=candidate.microbatches,
        layers=memory.held_by(request.layers[candidate.microbatch_size]),
        devices=memory.devices,
        network=Network(site_of_rank=site_of_rank, within=request.within, between=between),
        split_backward=request.file.tune.split_backward,
        semantics=request.file.tune.semantics,
    )
    layout = Layout(
        layers_of_stage=balanced_partition(workload, placed, recomputed)
        if partition is None
        else tuple(pairwise(accumulate(partition, initial=0))),
        rank_of_stage=placed.rank_of_stage,
        paths=placed.paths,
        recomputed=recomputed,
        placement=candidate.placement,
    )
    durations_ns, optimizers_ns = [], []
    once = _counted_twice(request, layout)
    for (first, last), less in zip(layout.layers_of_stage, once, strict=True):  # from the parameters of one device of each stage
        experts = sum(layer.expert_parameters for layer in workload.layers[first:last])
        others = sum(layer.parameters for layer in workload.layers[first:last]) - experts - less
        durations_ns.append(collectives_ns(request, candidate, others, experts))
        optimizers_ns.append(optimizer_ns(request, candidate, others, experts))
    reduce_ns, gather_ns = zip(*durations_ns, strict=True)
    on_rank, of_collectives = [0] * candidate.ranks, [0] * candidate.ranks
    for rank, both_ns, takes_ns in zip(layout.rank_of_stage, durations_ns, optimizers_ns, strict=True):
        on_rank[rank] += takes_ns
        of_collectives[rank] += sum(both_ns)
    if candidate.versions is not None:
        workload = replace(
            workload,
            updates=Updates(
                versions=candidate.versions, microbatches=candidate.microbatches, is_period=True, most_delay=candidate.most_delay
            ),
            update_ns=tuple(sum(both_ns) + takes_ns for both_ns, takes_ns in zip(durations_ns, optimizers_ns, strict=True)),
            version_bytes=(0,) * len(optimizers_ns),
            bytes_per_version_parameter=exactly(float(request.file.memory.weight_bytes)),
        )
    else:
        if request.loss is None:  # else it is apart, as `update_ns`
            reduce_ns = tuple(map(sum, zip(reduce_ns, optimizers_ns, strict=True)))
        if any((*reduce_ns, *gather_ns)):
            parallel = DataParallel(
                size=request.degrees.replicas(candidate.data_parallel),
                zero_stage=candidate.zero_stage,
                reduce_scatter_ns=reduce_ns,
                all_gather_ns=gather_ns if candidate.zero_stage else (),
            )
            workload = replace(workload, data_parallel=parallel)
        if request.shared_parameters:
            gradient_bytes = request.shared_parameters * request.file.memory.gradient_bytes
            tie = TiedWeight(layers=(0, len(workload.layers) - 1), gradient_bytes=gradient_bytes)
            workload = replace(workload, ties=(tie,))
    held = _besides(request, candidate, layout)
    if held:  # said for each stage, as it is in the job that `folder` writes
        own = zip(stage_static_bytes(workload, layout), _static_of(layout, held), once, strict=True)
        static = tuple(states + besides - int(each * less) for states, besides, less in own)
        workload = replace(workload, layers=request.layers[candidate.microbatch_size], static_bytes=static)
    problem = problem_of(workload, layout)
    section = MemorySection(capacity_bytes=request.capacity_bytes, reserve_bytes=request.reserve_bytes)
    check_room(problem, workload.devices, section, JOB / "memory")
    for violation in (*verify_workload(workload), *verify_layout(workload, layout)):
        raise Defect(f"{request.name}: what is made of a candidate breaks a rule: {violation}")
    check_size(problem, JOB / "profile")
    return CandidateProblem(
        workload=workload,
        layout=layout,
        problem=problem,
        collectives_ns=tuple(of_collectives),
        besides=held,
        update_ns=max(on_rank) if candidate.versions is None else 0,
    )


def _counted_twice(request: TuneRequest, layout: Layout) -> tuple[int, ...]:
    """Of each stage's parameters, those that its rank has in another stage or layer, too: the head's, if it has the embedding."""
    ranks, (first, *_), last = layout.rank_of_stage, layout.paths[0], layout.paths[0][-1]
    return tuple(request.shared_parameters if stage == last and ranks[first] == ranks[last] else 0 for stage in range(len(ranks)))


def _besides(request: TuneRequest, candidate: TuneCandidate, layout: Layout) -> tuple[Besides, ...]:
    """Of each rank: buffers of all its stages together, and the working set of the one that needs most."""
    if request.architecture is None or request.setting is None:
        return ()
    parts, made = request.parts[candidate.microbatch_size], []
    setting = replace(request.setting, microbatch_size=candidate.microbatch_size)
    of = partial(besides, setting=setting, hidden=request.architecture.hidden, split_backward=request.file.tune.split_backward)
    for rank in range(candidate.ranks):
        stages = zip(layout.rank_of_stage, layout.layers_of_stage, strict=True)
        own = [parts[first:last] for at, (first, last) in stages if at == rank]
        most = max(map(of, own), key=lambda each: each.working_bytes)
        made.append(most._replace(buffers_bytes=of([part for stage in own for part in stage]).buffers_bytes))
    return tuple(made)


def _static_of(layout: Layout, held: Sequence[Besides]) -> tuple[int, ...]:
    """What each rank holds besides, on its first stage."""
    first = {rank: stage for stage, rank in reversed(list(enumerate(layout.rank_of_stage)))}
    return tuple(held[rank].total_bytes if first[rank] == stage else 0 for stage, rank in enumerate(layout.rank_of_stage))


def bytes_per_parameter(request: TuneRequest, candidate: TuneCandidate) -> tuple[float, float]:
    """What a device holds all the time for each parameter, and for one of an expert; ZeRO 1 divides optimizer state by replicas."""
    memory, degrees, pipelines = request.file.memory, request.degrees, candidate.data_parallel
    replicas = degrees.replicas(pipelines), degrees.expert_replicas(pipelines)
    each, of_expert = (
        memory.weight_bytes + memory.gradient_bytes + memory.optimizer_bytes / (many if candidate.zero_stage else 1)
        for many in replicas
    )
    return each, of_expert


def ring_ns(link: MessageCost, members: int, size_bytes: int) -> int:
    """A reduce-scatter or an all-gather of this many bytes among this many; a fraction of a nanosecond counts as a whole."""
    steps = members - 1
    if link.bytes_per_second is None or not steps:
        return steps * link.latency_ns
    return steps * link.latency_ns + -(-steps * size_bytes * 1_000_000_000 // (members * link.bytes_per_second))


def one_way_ns(replicas_of_site: Sequence[int], within: MessageCost, between: MessageCost | None, size_bytes: int) -> int:
    """A reduce-scatter, or an all-gather, of this many bytes of one device of a stage among the stage's replicas.

    Args:
        replicas_of_site: for each site that has some.
        within: of one device.
        between: of one rank's devices of all replicas in a site together, for one device of them; None: all are in one site.
        size_bytes: of the device.
    """
    within_ns = ring_ns(within, max(replicas_of_site), size_bytes)
    if between is None:
        return within_ns
    sites = len(replicas_of_site)
    # The slower of the two: what connects the sites, or the devices' own links for their parts.
    part_bytes = -(-size_bytes // min(replicas_of_site))
    own = MessageCost(latency_ns=between.latency_ns, bytes_per_second=within.bytes_per_second)
    return within_ns + max(ring_ns(between, sites, size_bytes), ring_ns(own, sites, part_bytes))


def collectives_ns(request: TuneRequest, candidate: TuneCandidate, others: int, experts: int) -> tuple[int, int]:
    """Reduce-scatter and all-gather of a stage, from the parameters of one device of it, those of experts apart.

    With ZeRO 0 the first is an all-reduce, and there is no second.
    """
    memory, degrees = request.file.memory, request.degrees

    def both_ns(bytes_of_each: int) -> int:
        total_ns = _among_ns(request, candidate, degrees.replicas, others * bytes_of_each)
        return total_ns + (_among_ns(request, candidate, degrees.expert_replicas, experts * bytes_of_each) if experts else 0)

    reduce_ns, gather_ns = both_ns(memory.gradient_bytes), both_ns(memory.weight_bytes)
    return (reduce_ns, gather_ns) if candidate.zero_stage else (2 * reduce_ns, 0)


def optimizer_ns(request: TuneRequest, candidate: TuneCandidate, others: int, experts: int) -> int:
    """The optimizer's step of a stage, from the parameters of one device of it, those of experts apart.

    ZeRO 1 leaves each replica its own part of what the step of the parameters takes, but not of what is done to all gradients.
    """
    degrees, pipelines, own = request.degrees, candidate.data_parallel, Fraction(others + experts)
    if candidate.zero_stage:
        own = Fraction(others, degrees.replicas(pipelines)) + Fraction(experts, degrees.expert_replicas(pipelines))
    return ceil(request.optimizer.own * own + request.optimizer.every * (others + experts))


def _among_ns(request: TuneRequest, candidate: TuneCandidate, replicas_of: Callable[[int], int], size_bytes: int) -> int:
    """Among the replicas of a stage's weights, whose number follows from that of pipelines.

    Groups that have different weights are beside each other, so each has its part of what connects sites.
    """
    between, members = None, [replicas_of(each) for each in candidate.replicas_of_site]
    if len(members) > 1:
        assert request.between is not None
        beside = candidate.ranks * request.group * candidate.replicas_of_site[0] // members[0]
        between = shared(request.between, beside)
    within, rate = request.within, request.within.bytes_per_second
    if rate is not None and request.file.topology.within.bytes_per_second is None:
        within = replace(within, bytes_per_second=round(rate * request.rates.link))
    fixed_ns = round(request.rates.collective_s * 1e9) if sum(members) > 1 and request.device is not None else 0
    return fixed_ns + one_way_ns(members, within, between, size_bytes)


def shared(link: MessageCost, senders: int, own: MessageCost | None = None) -> MessageCost:
    """An equal part of a bandwidth for each of the senders, and no more than a sender's own."""
    if link.bytes_per_second is None:
        return link
    share = max(1, link.bytes_per_second // senders)
    if own is not None and own.bytes_per_second is not None:
        share = min(share, own.bytes_per_second)
    return MessageCost(latency_ns=link.latency_ns, bytes_per_second=share)
