"""What must hold between the fields of a Problem. Takes a problem; gives every violation, none if it is sound.

Rules within one field are checked where the field is made (`schedc.ir.problem`). All later stages of the compiler rely on these.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from schedc.ir.ops import Kind
from schedc.ir.problem import MOST_OPS, Objective, Problem
from schedc.verify.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator


def verify_problem(problem: Problem) -> tuple[Violation, ...]:
    """Every rule of a problem that is broken, with its place; empty if the problem is sound."""
    return tuple(violation for check in _CHECKS for violation in check(problem))


def check_counts(problem: Problem) -> Iterator[Violation]:
    """There is at least one rank, microbatch, stage and path."""
    counts = {
        "ranks": problem.ranks,
        "microbatches": problem.microbatches,
        "stages": len(problem.stages),
        "paths": len(problem.paths),
    }
    for name, count in counts.items():
        if count < 1:
            yield Violation("counts", name, f"expected at least 1, found {count}")


def check_path_stages(problem: Problem) -> Iterator[Violation]:
    """A path visits one or more stages that exist, each at most once."""
    for index, path in enumerate(problem.paths):
        if not path:
            yield Violation("path-stages", f"paths[{index}]", "visits no stage")
        seen: dict[int, int] = {}
        for position, stage in enumerate(path):
            place = f"paths[{index}][{position}]"
            if not _is_stage(problem, stage):
                yield Violation(
                    "path-stages", place, f"stage {stage} does not exist; the stages are 0 to {len(problem.stages) - 1}"
                )
            elif stage in seen:
                yield Violation("path-stages", place, f"stage {stage} is a duplicate, first at position {seen[stage]}")
            seen.setdefault(stage, position)


def check_stage_on_path(problem: Problem) -> Iterator[Violation]:
    """Every stage is on some path."""
    visited = {stage for path in problem.paths for stage in path}
    for stage in range(len(problem.stages)):
        if stage not in visited:
            yield Violation("stage-on-path", f"stages[{stage}]", "is on no path, so no microbatch would ever visit it")


def check_rank_range(problem: Problem) -> Iterator[Violation]:
    """Every stage sits on a rank that exists."""
    for index, stage in enumerate(problem.stages):
        if not _is_rank(problem, stage.rank):
            message = f"rank {stage.rank} does not exist; the ranks are 0 to {problem.ranks - 1}"
            yield Violation("rank-range", f"stages[{index}].rank", message)


def check_rank_has_stage(problem: Problem) -> Iterator[Violation]:
    """Every rank has a stage."""
    used = {stage.rank for stage in problem.stages}
    for rank in range(problem.ranks):
        if rank not in used:
            yield Violation("rank-has-stage", f"ranks[{rank}]", "has no stage; place one on it or lower the number of ranks")


def check_path_of(problem: Problem) -> Iterator[Violation]:
    """Every microbatch has a path, and it exists."""
    if len(problem.path_of) != problem.microbatches:
        message = f"expected one path for each of the {problem.microbatches} microbatches, found {len(problem.path_of)}"
        yield Violation("path-of", "path_of", message)
    for microbatch, path in enumerate(problem.path_of):
        if not 0 <= path < len(problem.paths):
            message = f"path {path} does not exist; the paths are 0 to {len(problem.paths) - 1}"
            yield Violation("path-of", f"path_of[{microbatch}]", message)


def check_microbatch_costs(problem: Problem) -> Iterator[Violation]:
    """Durations are one for all microbatches, or one for each."""
    names = {Kind.F: "forward_ns", Kind.B: "backward_input_ns", Kind.W: "backward_weight_ns", Kind.BW: "backward_ns"}
    for index, stage in enumerate(problem.stages):
        for kind, name in names.items():
            count = len(stage.durations_ns(kind))
            if count not in (1, problem.microbatches):
                message = f"expected 1 duration, or {problem.microbatches}, one per microbatch; found {count}"
                yield Violation("microbatch-costs", f"stages[{index}].{name}", message)


def check_layers(problem: Problem) -> Iterator[Violation]:
    """Where layers are known, all paths cut the model into the same pieces, in order; they say which stages are replicas."""
    pieces = [[(stage, problem.stages[stage].layers) for stage in path if _is_stage(problem, stage)] for path in problem.paths]
    for path in pieces:
        end: int | None = None
        for position, (stage, layers) in enumerate(path):
            place = f"stages[{stage}].layers"
            if (layers is None) != (path[0][1] is None):
                yield Violation("layers", place, f"expected layers of all stages of a path or of none, found {_shown(layers)} here")
            elif layers is not None and (layers[0] >= layers[1] or (position and layers[0] != end)):
                begin = "the end of the stage before" if end is None else str(end)
                yield Violation("layers", place, f"found {_shown(layers)}, expected one or more layers, from {begin} on")
            end = None if layers is None else layers[1]
    cuts = [[layers for _, layers in path] for path in pieces]
    for index, cut in enumerate(cuts):
        if cut != cuts[0] and any(cut + cuts[0]):
            yield Violation("layers", f"paths[{index}]", "its stages hold other layers than those of path 0, in their order")


def check_link_ranks(problem: Problem) -> Iterator[Violation]:
    """A link joins ranks that exist."""
    for index, link in enumerate(problem.links):
        for name, rank in (("source", link.source), ("destination", link.destination)):
            if not _is_rank(problem, rank):
                message = f"rank {rank} does not exist; the ranks are 0 to {problem.ranks - 1}"
                yield Violation("link-ranks", f"links[{index}].{name}", message)


def check_link_unique(problem: Problem) -> Iterator[Violation]:
    """A directed pair of ranks has at most one link."""
    first: dict[tuple[int, int], int] = {}
    for index, link in enumerate(problem.links):
        pair = (link.source, link.destination)
        if pair in first:
            message = f"the link from rank {link.source} to rank {link.destination} is already given by links[{first[pair]}]"
            yield Violation("link-unique", f"links[{index}]", message)
        first.setdefault(pair, index)


def check_links_present(problem: Problem) -> Iterator[Violation]:
    """Every directed pair of ranks that a transfer crosses has a link: along each path and back."""
    present = {(link.source, link.destination) for link in problem.links}
    needed: dict[tuple[int, int], tuple[int, int]] = {}
    for path in problem.paths:
        for a, b in pairwise(stage for stage in path if _is_stage(problem, stage)):
            source, destination = problem.stages[a].rank, problem.stages[b].rank
            if source != destination:
                needed.setdefault((source, destination), (a, b))
                needed.setdefault((destination, source), (b, a))
    for (source, destination), (a, b) in sorted(needed.items()):
        if (source, destination) not in present:
            message = f"none from rank {source} to rank {destination}, which the transfers from stage {a} to stage {b} need"
            yield Violation("links-present", "links", message)


def check_memory_limits(problem: Problem) -> Iterator[Violation]:
    """There is one memory limit for each rank, none below 0."""
    limits = problem.memory_limit_bytes
    if len(limits) != problem.ranks:
        message = f"expected one limit for each of the {problem.ranks} ranks, found {len(limits)}"
        yield Violation("memory-limits", "memory_limit_bytes", message)
    for rank, limit in enumerate(limits):
        if limit is not None and limit < 0:
            yield Violation("memory-limits", f"memory_limit_bytes[{rank}]", f"expected at least 0 bytes, found {limit}")


def check_data_parallel(problem: Problem) -> Iterator[Violation]:
    """Collectives have a group, one duration of at least 0 per stage, and a trunk that some link is on."""
    given = problem.data_parallel
    if given is None:
        return
    rule, stages = "data-parallel", len(problem.stages)
    if given.size < 1:
        yield Violation(rule, "data_parallel.size", f"expected at least 1, found {given.size}")
    if given.zero_stage not in (0, 1):
        message = f"expected 0 or 1, whose collectives are modelled, found {given.zero_stage}"
        yield Violation(rule, "data_parallel.zero_stage", message)
    if len(given.reduce_scatter_ns) != stages:
        message = f"expected one duration for each of the {stages} stages, found {len(given.reduce_scatter_ns)}"
        yield Violation(rule, "data_parallel.reduce_scatter_ns", message)
    if len(given.all_gather_ns) not in (0, stages):
        message = f"expected none, or one duration for each of the {stages} stages, found {len(given.all_gather_ns)}"
        yield Violation(rule, "data_parallel.all_gather_ns", message)
    for name, values in (("reduce_scatter_ns", given.reduce_scatter_ns), ("all_gather_ns", given.all_gather_ns)):
        for stage, value in enumerate(values):
            if value < 0:
                yield Violation(rule, f"data_parallel.{name}[{stage}]", f"expected at least 0, found {value}")
    trunks = sorted({link.trunk for link in problem.links if link.trunk is not None})
    if given.trunk is not None and given.trunk not in trunks:
        message = f"no link is on trunk {given.trunk!r}; the trunks are {', '.join(map(repr, trunks)) or 'none'}"
        yield Violation(rule, "data_parallel.trunk", message)


def check_size(problem: Problem) -> Iterator[Violation]:
    """The problem is no larger than what the project plans."""
    known = all(0 <= path < len(problem.paths) for path in problem.path_of)  # else another rule is broken
    if known and problem.num_ops > MOST_OPS:
        message = f"expected at most {MOST_OPS} compute ops (3 for each stage that a microbatch visits), found {problem.num_ops}"
        yield Violation("size", "microbatches", message)


def check_length(problem: Problem) -> Iterator[Violation]:
    """All work and transfers one after the other stay far below 2^63 ns, where times in 64 bits would wrap around."""
    work_ns = sum(max(stage.durations_ns(kind)) for stage in problem.stages for kind in Kind)
    largest = max((max(stage.message_bytes, stage.gradient_message_bytes) for stage in problem.stages), default=0)
    transfers_ns = sum(link.latency_ns + link.occupancy_ns(largest) for link in problem.links)
    whole_ns = problem.microbatches * (work_ns + 2 * len(problem.stages) * transfers_ns)
    if whole_ns >= 2**62:
        yield Violation("length", "stages", f"expected a step below 2^62 ns, found up to {whole_ns} ns of work and transfers")


def check_objective(problem: Problem) -> Iterator[Violation]:
    """The objective is one that exists."""
    if not isinstance(problem.objective, Objective):
        yield Violation("objective", "objective", f"expected {' or '.join(Objective)}, found {problem.objective!r}")


def _shown(layers: tuple[int, int] | None) -> str:
    return "none" if layers is None else f"{layers[0]} to {layers[1]}"


def _is_stage(problem: Problem, stage: int) -> bool:
    return 0 <= stage < len(problem.stages)


def _is_rank(problem: Problem, rank: int) -> bool:
    return 0 <= rank < problem.ranks


_CHECKS = (
    check_counts,
    check_path_stages,
    check_stage_on_path,
    check_rank_range,
    check_rank_has_stage,
    check_path_of,
    check_microbatch_costs,
    check_layers,
    check_link_ranks,
    check_link_unique,
    check_links_present,
    check_memory_limits,
    check_data_parallel,
    check_objective,
    check_size,
    check_length,
)
