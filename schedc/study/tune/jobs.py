"""A candidate as a job of the compiler, with a profile of its microbatch size: what `schedc compile` would be given.

The partition is the balanced one, and is said, so that the durations of the collectives, one for each stage, belong to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schedc.frontend.job import checked_job
from schedc.frontend.job_source import source_of_table
from schedc.ir.workload import Semantics
from schedc.lower.problem import static_bytes
from schedc.study.tune.collectives import Collectives, Path
from schedc.study.tune.request import PROFILE
from schedc.units import format_duration_ns

if TYPE_CHECKING:
    from pathlib import Path as FilePath

    from schedc.frontend.job import Job
    from schedc.study.tune.candidates import TuneCandidate
    from schedc.study.tune.request import TuneRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateJob:
    """A candidate that can be compiled."""

    table: dict[str, Any]
    """The job; `profile.path` is `PROFILE`."""
    job: Job
    static_bytes: tuple[int, ...]
    """What each rank holds all the time."""
    collectives_ns: tuple[int, ...]
    """Of each rank, if nothing overlapped them."""


def job_of(request: TuneRequest, candidate: TuneCandidate, directory: FilePath) -> CandidateJob:
    """The job of a candidate.

    Args:
        request: what is asked.
        candidate: how.
        directory: has a file `PROFILE` of the candidate's microbatch size.

    Raises:
        InvalidInput: a rank has no room for what it holds all the time, or there are too many compute ops.
    """
    table = _table(request, candidate)
    job = _read(table, request, directory)
    layout = job.layout
    counts = [last - first for first, last in (layout.layers_of_stage[stage] for stage in layout.paths[0])]
    table["pipeline"]["partition"] = counts
    if candidate.data_parallel > 1:
        stages = [job.workload.layers[first:last] for first, last in layout.layers_of_stage]
        experts = [sum(layer.expert_parameters for layer in stage) for stage in stages]
        others = [sum(layer.parameters for layer in stage) - own for stage, own in zip(stages, experts, strict=True)]
        table["data_parallel"] = _data_parallel(request, candidate, others, experts)
    job = _read(table, request, directory)
    collectives = [0] * candidate.ranks
    parallel = job.problem.data_parallel
    if parallel is not None:
        for durations_ns in (parallel.reduce_scatter_ns, parallel.all_gather_ns):
            for stage, duration_ns in enumerate(durations_ns):
                collectives[layout.rank_of_stage[stage]] += duration_ns
    return CandidateJob(
        table=table, job=job, static_bytes=static_bytes(job.workload, job.layout), collectives_ns=tuple(collectives)
    )


def _read(table: dict[str, Any], request: TuneRequest, directory: FilePath) -> Job:
    return checked_job(source_of_table(table, directory=directory, name=request.name))


def _table(request: TuneRequest, candidate: TuneCandidate) -> dict[str, Any]:
    """The job but for the partition and the collectives."""
    tune = request.file.tune
    pipeline: dict[str, Any] = {
        "ranks": candidate.ranks,
        "microbatches": candidate.microbatches,
        "placement": candidate.placement,
    }
    if candidate.chunks > 1:
        pipeline["chunks"] = candidate.chunks
    if not tune.split_backward:
        pipeline["split_backward"] = False
    if tune.semantics is not Semantics.SCHEDC:
        pipeline["semantics"] = str(tune.semantics)
    if candidate.recompute != "none":
        pipeline["recompute"] = candidate.recompute
    table: dict[str, Any] = {
        "name": request.name,
        "pipeline": pipeline,
        "profile": {"path": PROFILE},
        "memory": {
            "capacity": f"{request.capacity_bytes} B",
            "reserve": f"{request.reserve_bytes} B",
            "bytes_per_parameter": bytes_per_parameter(request, candidate),
        },
        "topology": {"sites": list(candidate.ranks_of_site), "within": _link(request.within)},
    }
    if any(layer.expert_parameters for layer in request.layers[candidate.microbatch_size]):
        table["memory"]["bytes_per_expert_parameter"] = bytes_per_parameter(request, candidate, request.file.model.ep)
    if len(candidate.ranks_of_site) > 1:
        assert request.between is not None
        table["topology"]["between"] = _link(_share(request.between, candidate.data_parallel * request.group, request.within))
    return table


def bytes_per_parameter(request: TuneRequest, candidate: TuneCandidate, divided: int = 1) -> float:
    """What a device holds all the time for each of its parameters; ZeRO 1 divides the optimizer's state by its replicas.

    `divided` is the expert parallel size for parameters of experts, which have that many times fewer replicas than others.
    """
    memory = request.file.memory
    optimizer = memory.optimizer_bytes / (candidate.data_parallel // divided if candidate.zero_stage else 1)
    return memory.weight_bytes + memory.gradient_bytes + optimizer


def collectives_ns(request: TuneRequest, candidate: TuneCandidate, others: int, experts: int) -> tuple[int, int]:
    """Reduce-scatter and all-gather of a stage, from the parameters of one device of it, those of experts apart.

    With ZeRO 0 the first is an all-reduce, and there is no second.
    """
    memory = request.file.memory
    groups = [(_among(request, candidate, 1), others)]
    if experts:
        groups.append((_among(request, candidate, request.file.model.ep), experts))
    reduce_ns, gather_ns = (
        sum(collectives.one_way_ns(count * each) for collectives, count in groups)
        for each in (memory.gradient_bytes, memory.weight_bytes)
    )
    return (reduce_ns, gather_ns) if candidate.zero_stage else (2 * reduce_ns, 0)


def _among(request: TuneRequest, candidate: TuneCandidate, divided: int) -> Collectives:
    """Those among the replicas of a stage, or of experts that expert parallelism of this size divides.

    Groups of experts' replicas are beside each other, so each has its part of what connects sites.
    """
    between = None
    if len(candidate.replicas_of_site) > 1:
        assert request.between is not None
        between = _share(request.between, candidate.ranks * request.group * divided, None)
    return Collectives(
        replicas_of_site=tuple(replicas // divided for replicas in candidate.replicas_of_site),
        within=request.within,
        between=between,
    )


def _data_parallel(request: TuneRequest, candidate: TuneCandidate, others: list[int], experts: list[int]) -> dict[str, Any]:
    """The section of that name, from the parameters of one device of each stage."""
    durations_ns = [collectives_ns(request, candidate, *counts) for counts in zip(others, experts, strict=True)]
    section: dict[str, Any] = {
        "size": candidate.data_parallel,
        "zero_stage": candidate.zero_stage,
        "reduce_scatter": _durations([reduce_ns for reduce_ns, _ in durations_ns]),
    }
    if candidate.zero_stage:
        section["all_gather"] = _durations([gather_ns for _, gather_ns in durations_ns])
    return section


def _share(path: Path, senders: int, own: Path | None) -> Path:
    """An equal part of a bandwidth for each of the senders, and no more than a sender's own."""
    if path.bytes_per_second is None:
        return path
    share = max(1, path.bytes_per_second // senders)
    if own is not None and own.bytes_per_second is not None:
        share = min(share, own.bytes_per_second)
    return Path(path.latency_ns, share)


def _link(path: Path) -> dict[str, Any]:
    link = {"latency": format_duration_ns(path.latency_ns, 9)}
    return link if path.bytes_per_second is None else link | {"bandwidth": f"{path.bytes_per_second} B/s"}


def _durations(durations_ns: list[int]) -> list[str]:
    return [format_duration_ns(each, 9) for each in durations_ns]
