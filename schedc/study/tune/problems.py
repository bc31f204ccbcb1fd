"""A candidate as a problem of the compiler, with the layers of its microbatch size.

The partition is the balanced one. Nothing is written or read: `folder` writes the best one as a job, which has the same problem.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from schedc.costs.memory import Besides, besides
from schedc.errors import Defect
from schedc.frontend.checks import check_size
from schedc.frontend.cost_keys import MemorySection
from schedc.frontend.sections import Memory, check_room, exactly
from schedc.io.location import Location
from schedc.ir import DataParallel, Device, Layout, Network, Problem, TiedWeight, Updates, Workload
from schedc.lower.partition import balanced_partition
from schedc.lower.placement import place
from schedc.lower.problem import problem_of, stage_static_bytes, static_bytes
from schedc.study.tune.replicas import bytes_per_parameter, collectives_ns, costs_of, gathered_bytes, optimizer_ns, shared
from schedc.study.tune.sites import first_ranks, ranks_devices, slowest, with_own_links
from schedc.study.tune.unlike import THOUSANDTHS, placed_costs, speeds_of
from schedc.verify.layout import verify_layout
from schedc.verify.workload import verify_workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.study.tune.candidates import TuneCandidate
    from schedc.study.tune.layer_costs import LayerCosts
    from schedc.study.tune.request import TuneRequest

JOB = Location("the job")
"""What messages call a candidate's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateProblem:
    """A candidate that can be compiled."""

    costs: LayerCosts
    """Its layers; where ranks have unlike devices, such that each takes what it takes on its rank at the rank's speed."""
    workload: Workload
    layout: Layout
    problem: Problem
    collectives_ns: tuple[int, ...]
    """Of each rank, if nothing overlapped them."""
    besides: tuple[Besides, ...]
    """Of each rank, what a device holds besides its parameters' states and activations; none of layers that were measured."""
    optimizer_ns: tuple[int, ...]
    """Of each stage: the optimizer's step of its parameters."""

    @property
    def update_ns(self) -> int:
        """What the optimizer's step takes after a step that ends, of the rank where it takes longest; a period has it in itself."""
        if self.problem.updates is not None:
            return 0
        return max(sum(self.optimizer_ns[stage] for stage in self.problem.stages_on(rank)) for rank in range(self.problem.ranks))

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
    of_ranks, firsts = ranks_devices(request.sites, candidate), list(first_ranks(request.sites, candidate))
    kinds = [costs_of(request, candidate, rank) for rank in firsts]
    kind_of_rank = [[of_ranks[first] for first in firsts].index(devices) for devices in of_ranks]
    speeds = speeds_of(kinds)
    memory = Memory(
        devices=tuple(
            Device(capacity_bytes=devices.fullest.room_bytes, speed=Fraction(speeds[kind], THOUSANDTHS))
            for devices, kind in zip(of_ranks, kind_of_rank, strict=True)
        ),
        bytes_per_parameter=exactly(each),
        bytes_per_expert_parameter=exactly(of_expert),
    )
    costs = kinds[0]
    sites, between = candidate.ranks_of_site, None
    if len(sites) > 1:  # each rank has its share of what all pipelines use at the same time
        assert request.between is not None
        between = shared(
            request.between, candidate.data_parallel * candidate.degrees.group, slowest(devices.within for devices in of_ranks)
        )
    site_of_rank = tuple(site for site, ranks in enumerate(sites) for _ in range(ranks))
    workload = Workload(
        name=request.name,
        microbatches=candidate.microbatches,
        layers=memory.held_by(costs.layers),
        devices=memory.devices,
        network=Network(site_of_rank=site_of_rank, within=of_ranks[0].within, between=between),
        split_backward=costs.split_backward,
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
    if len(kinds) > 1:  # of each layer what it takes where it is
        rank_of_layer = {
            layer: rank for rank, own in zip(layout.rank_of_stage, layout.layers_of_stage, strict=True) for layer in range(*own)
        }
        costs = placed_costs(kinds, speeds, [kind_of_rank[rank_of_layer[layer]] for layer in range(len(costs.layers))])
        ends = rank_of_layer[0], rank_of_layer[costs.shared_layer]  # of the exchange of a shared matrix
        pairs = {pair for pair in (*layout.crossed(), ends) if pair[0] != pair[1]}
        network = with_own_links(workload.network, of_ranks, pairs)
        workload = replace(workload, layers=memory.held_by(costs.layers), network=network)
    durations_ns, optimizers_ns, parameters = [], [], []
    once = _counted_twice(costs, layout)
    parts = zip(layout.rank_of_stage, layout.layers_of_stage, once, strict=True)
    for rank, (first, last), less in parts:  # from the parameters of one device of each stage
        experts = sum(layer.expert_parameters for layer in workload.layers[first:last])
        others = sum(layer.parameters for layer in workload.layers[first:last]) - experts - less
        parameters.append(others + experts)
        begins = workload.layers[first]
        of_first = begins.parameters - begins.expert_parameters, begins.expert_parameters
        durations_ns.append(collectives_ns(request, candidate, others, experts, of_first, rank=rank))
        optimizers_ns.append(optimizer_ns(request, candidate, others, experts, rank))
    reduce_ns, gather_ns = zip(*durations_ns, strict=True)
    of_collectives = [0] * candidate.ranks
    for rank, both_ns in zip(layout.rank_of_stage, durations_ns, strict=True):
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
            planned = candidate.gathers == "plan"
            parallel = DataParallel(
                size=candidate.degrees.replicas(candidate.data_parallel),
                zero_stage=3 if planned else min(1, candidate.zero_stage),  # what goes on beside the blocks is in them
                reduce_scatter_ns=reduce_ns,
                all_gather_ns=gather_ns if candidate.zero_stage else (),
                gathered_bytes=tuple(request.file.memory.weight_bytes * own for own in parameters) if planned else (),
                gradient_bytes=tuple(request.file.memory.gradient_bytes * own for own in parameters) if planned else (),
            )
            workload = replace(workload, data_parallel=parallel)
        if costs.shared_parameters:
            gradient_bytes = costs.shared_parameters * request.file.memory.gradient_bytes
            tie = TiedWeight(layers=(0, costs.shared_layer), gradient_bytes=gradient_bytes)
            workload = replace(workload, ties=(tie,))
    held = _besides(request, candidate, costs, layout)
    if held:  # said for each stage, as it is in the job that `folder` writes
        own = zip(stage_static_bytes(workload, layout), _static_of(layout, held), once, strict=True)
        static = tuple(states + besides - int(each * less) for states, besides, less in own)
        workload = replace(workload, layers=costs.layers, static_bytes=static)
    problem = problem_of(workload, layout)
    section = MemorySection(**capacities(request, candidate))
    check_room(problem, workload.devices, section, JOB / "memory")
    for violation in (*verify_workload(workload), *verify_layout(workload, layout)):
        raise Defect(f"{request.name}: what is made of a candidate breaks a rule: {violation}")
    check_size(problem, JOB / "profile")
    return CandidateProblem(
        costs=costs,
        workload=workload,
        layout=layout,
        problem=problem,
        collectives_ns=tuple(of_collectives),
        besides=held,
        optimizer_ns=tuple(optimizers_ns),
    )


def capacities(request: TuneRequest, candidate: TuneCandidate) -> dict[str, Any]:
    """What a device of each rank has, and the part of it that no plan uses; one value where all have the same."""
    fullest = [devices.fullest for devices in ranks_devices(request.sites, candidate)]
    each = {name: tuple(getattr(site, name) for site in fullest) for name in ("capacity_bytes", "reserve_bytes")}
    return {name: values if len(set(values)) > 1 else values[0] for name, values in each.items()}


def _counted_twice(costs: LayerCosts, layout: Layout) -> tuple[int, ...]:
    """Of each stage's parameters, those that its rank has in another stage or layer, too: a second embedding, say."""
    rank = layout.rank_of_stage[layout.paths[0][0]]
    return tuple(
        costs.shared_parameters if first <= costs.shared_layer < last and of == rank else 0
        for of, (first, last) in zip(layout.rank_of_stage, layout.layers_of_stage, strict=True)
    )


def _besides(request: TuneRequest, candidate: TuneCandidate, costs: LayerCosts, layout: Layout) -> tuple[Besides, ...]:
    """Of each rank: buffers of all its stages together, and the working set of the one that needs most."""
    if costs.setting is None and candidate.zero_stage < 2:
        return ()
    made, hidden = [], 0 if request.architecture is None else request.architecture.hidden
    for rank in range(candidate.ranks):
        stages = zip(layout.rank_of_stage, layout.layers_of_stage, strict=True)
        own, most = [range(*layers) for at, layers in stages if at == rank], Besides(0, 0, "")
        if costs.setting is not None:
            of = partial(besides, setting=costs.setting, hidden=hidden, split_backward=costs.split_backward)
            most = max((of([costs.parts[at] for at in stage]) for stage in own), key=lambda each: each.working_bytes)
            most = most._replace(buffers_bytes=of([costs.parts[at] for stage in own for at in stage]).buffers_bytes)
        largest = max(costs.layers[at].parameters for stage in own for at in stage)
        gathered = gathered_bytes(request, candidate, largest)
        made.append(most._replace(buffers_bytes=most.buffers_bytes + gathered))
    return tuple(made)


def _static_of(layout: Layout, held: Sequence[Besides]) -> tuple[int, ...]:
    """What each rank holds besides, on its first stage."""
    first = {rank: stage for stage, rank in reversed(list(enumerate(layout.rank_of_stage)))}
    return tuple(held[rank].total_bytes if first[rank] == stage else 0 for stage, rank in enumerate(layout.rank_of_stage))
