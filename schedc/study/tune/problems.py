"""A candidate as a problem of the compiler, with the layers of its microbatch size.

The partition is the balanced one. Nothing is written or read: `folder` writes the best one as a job, which has the same problem.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from schedc.errors import Defect
from schedc.frontend.checks import check_size
from schedc.frontend.job_file import MemorySection
from schedc.frontend.sections import Memory, check_room, exactly
from schedc.io.location import Location
from schedc.ir.layout import Layout
from schedc.ir.problem import DataParallel, Problem
from schedc.ir.workload import Device, Network, Workload
from schedc.lower.partition import balanced_partition
from schedc.lower.placement import place
from schedc.lower.problem import problem_of, static_bytes
from schedc.study.tune.collectives import collectives_ns, shared
from schedc.verify.layout import verify_layout
from schedc.verify.workload import verify_workload

if TYPE_CHECKING:
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

    @property
    def static_bytes(self) -> tuple[int, ...]:
        """What each rank holds all the time."""
        return static_bytes(self.workload, self.layout)

    @property
    def collectives_ns(self) -> tuple[int, ...]:
        """Of each rank, if nothing overlapped them."""
        found = [0] * self.problem.ranks
        parallel = self.problem.data_parallel
        for durations_ns in () if parallel is None else (parallel.reduce_scatter_ns, parallel.all_gather_ns):
            for stage, duration_ns in enumerate(durations_ns):
                found[self.layout.rank_of_stage[stage]] += duration_ns
        return tuple(found)


def candidate_problem(request: TuneRequest, candidate: TuneCandidate) -> CandidateProblem:
    """The problem of a candidate.

    Raises:
        InvalidInput: a rank has no room for what it holds all the time, or a step is too long to be exact.
    """
    placed = place(candidate.placement, candidate.ranks, candidate.chunks)
    recomputed = frozenset(range(len(placed.rank_of_stage)) if candidate.recompute == "full" else ())
    memory = Memory(
        devices=(Device(capacity_bytes=request.room_bytes),) * candidate.ranks,
        bytes_per_parameter=exactly(bytes_per_parameter(request, candidate)),
        bytes_per_expert_parameter=exactly(bytes_per_parameter(request, candidate, request.file.model.ep)),
    )
    workload = Workload(
        name=request.name,
        microbatches=candidate.microbatches,
        layers=memory.held_by(request.layers[candidate.microbatch_size]),
        devices=memory.devices,
        network=network_of(request, candidate),
        split_backward=request.file.tune.split_backward,
        semantics=request.file.tune.semantics,
    )
    layout = Layout(
        layers_of_stage=balanced_partition(workload, placed, recomputed),
        rank_of_stage=placed.rank_of_stage,
        paths=placed.paths,
        recomputed=recomputed,
        placement=candidate.placement,
    )
    workload = replace(workload, data_parallel=_data_parallel(request, candidate, workload, layout))
    problem = problem_of(workload, layout)
    section = MemorySection(capacity_bytes=request.capacity_bytes, reserve_bytes=request.reserve_bytes)
    check_room(problem, workload.devices, section, JOB / "memory")
    for violation in (*verify_workload(workload), *verify_layout(workload, layout)):
        raise Defect(f"{request.name}: what is made of a candidate breaks a rule: {violation}")
    check_size(problem, JOB / "profile")
    return CandidateProblem(workload=workload, layout=layout, problem=problem)


def bytes_per_parameter(request: TuneRequest, candidate: TuneCandidate, divided: int = 1) -> float:
    """What a device holds all the time for each of its parameters; ZeRO 1 divides the optimizer's state by its replicas.

    `divided` is the expert parallel size for parameters of experts, which have that many times fewer replicas than others.
    """
    memory = request.file.memory
    optimizer = memory.optimizer_bytes / (candidate.data_parallel // divided if candidate.zero_stage else 1)
    return memory.weight_bytes + memory.gradient_bytes + optimizer


def network_of(request: TuneRequest, candidate: TuneCandidate) -> Network:
    """What connects the ranks of a pipeline: between sites, its share of what all pipelines use at the same time."""
    sites = candidate.ranks_of_site
    between = None
    if len(sites) > 1:
        assert request.between is not None
        between = shared(request.between, candidate.data_parallel * request.group, request.within)
    site_of_rank = tuple(site for site, ranks in enumerate(sites) for _ in range(ranks))
    return Network(site_of_rank=site_of_rank, within=request.within, between=between)


def _data_parallel(request: TuneRequest, candidate: TuneCandidate, workload: Workload, layout: Layout) -> DataParallel | None:
    """The collectives of each stage, from the parameters of one device of it."""
    if candidate.data_parallel == 1:
        return None
    durations_ns = []
    for first, last in layout.layers_of_stage:
        layers = workload.layers[first:last]
        experts = sum(layer.expert_parameters for layer in layers)
        others = sum(layer.parameters for layer in layers) - experts
        durations_ns.append(collectives_ns(request, candidate, others, experts))
    return DataParallel(
        size=candidate.data_parallel,
        zero_stage=candidate.zero_stage,
        reduce_scatter_ns=tuple(reduce_ns for reduce_ns, _ in durations_ns),
        all_gather_ns=tuple(gather_ns for _, gather_ns in durations_ns) if candidate.zero_stage else (),
    )
