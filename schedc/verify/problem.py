"""What must hold between the fields of a Problem, and between a plan's and a job's. Gives every violation, none if all is sound.

Rules within one field are checked where the field is made (`schedc.ir.problem`). All later stages of the compiler rely on these. A
plan and a job need the same pipeline for simulating the one under the other's costs; the same costs, too, for being its plan.
"""

from __future__ import annotations

from dataclasses import fields, replace
from enum import Enum
from itertools import pairwise

from schedc.ir import BLOCKS, DURATIONS, MOST_OPS, Objective, Plan, Problem, Updates
from schedc.verify.network import NETWORK
from schedc.verify.violation import (
    Checks,
    Found,
    Violation,
    absent,
    edge_faults,
    negative,
    path_faults,
    repeated,
    slice_faults,
    too_few,
)

CHECKS: Checks[[Problem]] = Checks()


def verify_problem(problem: Problem) -> tuple[Violation, ...]:
    """Every rule of a problem that is broken, with its place; empty if the problem is sound."""
    return CHECKS.broken(problem)


@CHECKS
def check_counts(problem: Problem) -> Found:
    """There is at least one rank, microbatch, stage and path."""
    counts = {"stages": len(problem.stages), "paths": len(problem.paths)}
    yield from too_few(ranks=problem.ranks, microbatches=problem.microbatches, **counts)


@CHECKS
def check_path_stages(problem: Problem) -> Found:
    """A path visits one or more stages that exist, each at most once."""
    yield from path_faults(len(problem.stages), problem.paths)


@CHECKS
def check_stage_on_path(problem: Problem) -> Found:
    """Every stage is on some path."""
    visited = {stage for path in problem.paths for stage in path}
    for stage in range(len(problem.stages)):
        if stage not in visited:
            yield f"stages[{stage}]", "is on no path, so no microbatch would ever visit it"


@CHECKS
def check_rank_range(problem: Problem) -> Found:
    """Every stage sits on a rank that exists."""
    yield from absent("rank", problem.ranks, ((f"stages[{index}].rank", stage.rank) for index, stage in enumerate(problem.stages)))


@CHECKS
def check_rank_has_stage(problem: Problem) -> Found:
    """Every rank has a stage."""
    used = {stage.rank for stage in problem.stages}
    for rank in range(problem.ranks):
        if rank not in used:
            yield f"ranks[{rank}]", "has no stage; place one on it or lower the number of ranks"


@CHECKS
def check_edges(problem: Problem) -> Found:
    """The edges of a graph join stages that exist, two of them once, and go forward on the one path, which has all stages.

    Edges of one source with the same value carry messages of the same size.
    """
    if not problem.edges:
        return
    if len(problem.paths) != 1:
        yield "edges", f"expected one path where stages are a graph, found {len(problem.paths)}"
        return
    yield from edge_faults("stage", problem.edges, problem.paths[0])


@CHECKS
def check_slices(problem: Problem) -> Found:
    """Slices have a length above 0, microbatches all of them, and states a gradient only where there are slices."""
    yield from slice_faults(problem.slices, problem.microbatches)
    for microbatch, path in enumerate(problem.path_of):
        if problem.slices and microbatch % len(problem.slices) and path != problem.path_of[microbatch - 1]:
            yield f"path_of[{microbatch}]", "is not the path of the other slices of its microbatch"
    for index, stage in enumerate(problem.stages):
        if stage.state_gradient_bytes and not problem.slices:
            yield f"stages[{index}].state_gradient_bytes", "expected 0 where microbatches are whole"


@CHECKS
def check_path_of(problem: Problem) -> Found:
    """Every microbatch has a path, and it exists."""
    if len(problem.path_of) != problem.microbatches:
        yield "path_of", f"expected one path for each of the {problem.microbatches} microbatches, found {len(problem.path_of)}"
    yield from absent("path", len(problem.paths), ((f"path_of[{at}]", path) for at, path in enumerate(problem.path_of)))


@CHECKS
def check_microbatch_costs(problem: Problem) -> Found:
    """Durations are one for all microbatches, or one for each."""
    for index, stage in enumerate(problem.stages):
        for name in DURATIONS.values():
            count = len(getattr(stage, name))
            if count not in (1, problem.microbatches):
                message = f"expected 1 duration, or {problem.microbatches}, one per microbatch; found {count}"
                yield f"stages[{index}].{name}", message


@CHECKS
def check_layers(problem: Problem) -> Found:
    """Where layers are known, all paths cut the model into the same pieces, in order; they say which stages are replicas."""
    pieces = [[(stage, problem.stages[stage].layers) for stage in path if _is_stage(problem, stage)] for path in problem.paths]
    for path in pieces:
        end: int | None = None
        for position, (stage, layers) in enumerate(path):
            place = f"stages[{stage}].layers"
            if (layers is None) != (path[0][1] is None):
                yield place, f"expected layers of all stages of a path or of none, found {_shown(layers)} here"
            elif layers is not None and (layers[0] >= layers[1] or (position and layers[0] != end)):
                begin = "the end of the stage before" if end is None else str(end)
                yield place, f"found {_shown(layers)}, expected one or more layers, from {begin} on"
            end = None if layers is None else layers[1]
    cuts = [[layers for _, layers in path] for path in pieces]
    for index, cut in enumerate(cuts):
        if cut != cuts[0] and any(cut + cuts[0]):
            yield f"paths[{index}]", "its stages hold other layers than those of path 0, in their order"


@CHECKS
def check_link_ranks(problem: Problem) -> Found:
    """A link joins ranks that exist."""
    for index, link in enumerate(problem.links):
        ends = ((f"links[{index}].source", link.source), (f"links[{index}].destination", link.destination))
        yield from absent("rank", problem.ranks, ends)


@CHECKS
def check_link_unique(problem: Problem) -> Found:
    """A directed pair of ranks has at most one link."""
    pairs = ((link.source, link.destination) for link in problem.links)
    yield from repeated("links", pairs, "the link from rank {} to rank {}")


@CHECKS
def check_links_present(problem: Problem) -> Found:
    """Every directed pair of ranks that a transfer crosses has a link: along each path or edge, and back."""
    present = {(link.source, link.destination) for link in problem.links}
    needed: dict[tuple[int, int], tuple[int, int]] = {}
    steps = [(a, b, True) for path in problem.paths for a, b in pairwise(stage for stage in path if _is_stage(problem, stage))]
    if problem.edges:
        ends = ((edge, _is_stage(problem, edge.source) and _is_stage(problem, edge.destination)) for edge in problem.edges)
        steps = [(edge.source, edge.destination, edge.has_gradient) for edge, known in ends if known]
    for a, b, returns in steps:
        source, destination = problem.stages[a].rank, problem.stages[b].rank
        if source != destination:
            needed.setdefault((source, destination), (a, b))
            if returns:
                needed.setdefault((destination, source), (b, a))
    for (source, destination), (a, b) in sorted(needed.items()):
        if (source, destination) not in present:
            yield "links", f"none from rank {source} to rank {destination}, which the transfers from stage {a} to stage {b} need"


@CHECKS
def check_memory_limits(problem: Problem) -> Found:
    """There is one memory limit for each rank, none below 0."""
    limits = problem.memory_limit_bytes
    if len(limits) != problem.ranks:
        yield "memory_limit_bytes", f"expected one limit for each of the {problem.ranks} ranks, found {len(limits)}"
    for rank, limit in enumerate(limits):
        if limit is not None and limit < 0:
            yield f"memory_limit_bytes[{rank}]", f"expected at least 0 bytes, found {limit}"


@CHECKS
def check_data_parallel(problem: Problem) -> Found:
    """Collectives have a group, one duration of at least 0 per stage, and a trunk that some link is on."""
    given = problem.data_parallel
    if given is None:
        return
    stages = len(problem.stages)
    if given.size < 1:
        yield "data_parallel.size", f"expected at least 1, found {given.size}"
    if given.zero_stage not in (0, 1, 3):
        yield "data_parallel.zero_stage", f"expected 0, 1 or 3, whose collectives are modelled, found {given.zero_stage}"
    if len(given.reduce_scatter_ns) != stages:
        message = f"expected one duration for each of the {stages} stages, found {len(given.reduce_scatter_ns)}"
        yield "data_parallel.reduce_scatter_ns", message
    if len(given.all_gather_ns) not in (0, stages):
        message = f"expected none, or one duration for each of the {stages} stages, found {len(given.all_gather_ns)}"
        yield "data_parallel.all_gather_ns", message
    yield from negative("data_parallel.reduce_scatter_ns", given.reduce_scatter_ns)
    yield from negative("data_parallel.all_gather_ns", given.all_gather_ns)
    for name in ("gathered_bytes", "gradient_bytes"):
        sizes, expected = getattr(given, name), (stages,) if given.zero_stage == 3 else (0,)
        if len(sizes) not in expected:
            yield f"data_parallel.{name}", f"expected {expected[0]} sizes, one per stage with ZeRO 3, else none, found {len(sizes)}"
        yield from negative(f"data_parallel.{name}", sizes)
    if given.zero_stage == 3 and (given.trunk is not None or problem.edges or not given.all_gather_ns):
        yield (
            "data_parallel.zero_stage",
            "ZeRO 3 is modelled for chains, with durations of gathers, on a rank's own resource: no trunk",
        )
    trunks = sorted({link.trunk for link in problem.links if link.trunk is not None})
    if given.trunk is not None and given.trunk not in trunks:
        yield "data_parallel.trunk", f"no link is on trunk {given.trunk!r}; the trunks are {', '.join(map(repr, trunks)) or 'none'}"


@CHECKS
def check_origin(problem: Problem) -> Found:
    """Where it says what it came from, each stage has layers there, on a path those that follow, and the network is sound."""
    origin = problem.origin
    if origin is None:
        return
    if len(origin.layers_of_stage) != len(problem.stages):
        message = f"expected layers of each of the {len(problem.stages)} stages, found {len(origin.layers_of_stage)}"
        yield "origin.layers_of_stage", message
    for stage, layers in enumerate(origin.layers_of_stage):
        if layers[0] >= layers[1]:
            yield f"origin.layers_of_stage[{stage}]", f"found {_shown(layers)}, expected one or more layers"
    of = dict(enumerate(origin.layers_of_stage))
    for before, stage in (step for path in problem.paths for step in pairwise(path)):
        if before in of and stage in of and of[before][1] != of[stage][0]:
            message = f"found {_shown(of[stage])}, expected layers from {of[before][1]} on, where those of stage {before} end"
            yield f"origin.layers_of_stage[{stage}]", message
    yield from ((f"origin.{place}", message) for _, place, message in NETWORK.broken(origin.network, problem.ranks))


@CHECKS
def check_objective(problem: Problem) -> Found:
    """The objective is one that exists."""
    if not isinstance(problem.objective, Objective):
        yield "objective", f"expected {' or '.join(Objective)}, found {problem.objective!r}"


@CHECKS
def check_updates(problem: Problem) -> Found:
    """Where steps overlap there are whole steps, of a period one, whose period is sought; no collectives, and no joint trunks."""
    updates = problem.updates
    if updates is None:
        return
    if problem.edges or problem.slices:
        yield "edges" if problem.edges else "slices", "are not planned where steps overlap; expected a chain of whole microbatches"
    if problem.objective is not Objective.MAKESPAN:
        yield "objective", f"expected {Objective.MAKESPAN} where steps overlap, found {problem.objective}"
    if problem.microbatches % updates.microbatches or (updates.is_period and problem.microbatches != updates.microbatches):
        whole = "one step" if updates.is_period else "whole steps"
        yield "microbatches", f"expected {whole} of {updates.microbatches} microbatches, found {problem.microbatches}"
    if problem.data_parallel is not None:
        yield "data_parallel", "is not modelled where steps overlap; what it takes before an update belongs to `update`"
    ends: dict[str, tuple[set[int], set[int]]] = {}
    for index, link in enumerate(problem.links):
        if link.trunk is not None:
            sources, destinations = ends.setdefault(link.trunk, (set(), set()))
            sources.add(link.source)
            destinations.add(link.destination)
            if updates.is_period and len(sources) > 1 and len(destinations) > 1:
                message = f"{link.trunk!r} joins several ranks with several, and no period has an order of theirs"
                yield f"links[{index}].trunk", f"{message}; expected one at one end"


@CHECKS
def check_size(problem: Problem) -> Found:
    """The problem is no larger than what the project plans."""
    known = all(0 <= path < len(problem.paths) for path in problem.path_of)  # else another rule is broken
    if known and problem.num_ops > MOST_OPS:
        message = f"expected at most {MOST_OPS} compute ops (3 for each stage that a microbatch visits), found {problem.num_ops}"
        yield "microbatches", message


@CHECKS
def check_length(problem: Problem) -> Found:
    """All work and transfers one after the other stay far below 2^63 ns, where times in 64 bits would wrap around."""
    work_ns = sum(stage.update_ns + sum(max(stage.durations_ns(kind)) for kind in BLOCKS) for stage in problem.stages)
    largest = max((max(stage.message_bytes, stage.gradient_message_bytes) for stage in problem.stages), default=0)
    largest = max([largest, *(max(edge.message_bytes, edge.gradient_message_bytes or 0) for edge in problem.edges)])
    transfers_ns = sum(link.latency_ns + link.occupancy_ns(largest) for link in problem.links)
    whole_ns = problem.microbatches * (work_ns + 2 * max(len(problem.stages), len(problem.edges)) * transfers_ns)
    if whole_ns >= 2**62:
        yield "stages", f"expected a step below 2^62 ns, found up to {whole_ns} ns of work and transfers"


def _shown(layers: tuple[int, int] | None) -> str:
    return "none" if layers is None else f"{layers[0]} to {layers[1]}"


def _is_stage(problem: Problem, stage: int) -> bool:
    return 0 <= stage < len(problem.stages)


PIPELINE = ("ranks", "microbatches", "paths", "path_of", "edges", "slices", "split_backward")
"""The fields of a Problem that decide which orders make sense for it; and the ranks of its stages."""
FOR_PEOPLE = ("name", "placement", "origin")
"""The fields that mean nothing to a plan's orders and times."""
COSTS = tuple(field.name for field in fields(Problem) if field.name not in PIPELINE + FOR_PEOPLE)
"""All other fields, so that none is forgotten."""


def check_pipeline(plan: Plan, problem: Problem) -> tuple[Violation, ...]:
    """The plan and the job have the same ranks, microbatches, stages and paths, so the plan's orders make sense for the job."""
    found = _differences(plan.problem, problem, PIPELINE, "pipeline")
    ranks = ([stage.rank for stage in plan.problem.stages], [stage.rank for stage in problem.stages])
    if ranks[0] != ranks[1]:
        message = f"the plan's stages are on ranks {ranks[0]}, the job's on {ranks[1]}; compile the job again"
        found.append(Violation("same-pipeline", "pipeline.stages", message))
    return tuple(found)


def check_costs(plan: Plan, problem: Problem) -> tuple[Violation, ...]:
    """The plan was made for exactly the job's costs, links, limits and objective.

    What stages hold all the time, and their parameters, may be missing in a plan; they are a part of the limits.
    """
    stages = plan.problem.stages
    if all(stage.static_bytes is None for stage in stages):
        problem = replace(problem, stages=tuple(replace(stage, static_bytes=None) for stage in problem.stages))
    if not any(stage.parameters for stage in stages):
        problem = replace(problem, stages=tuple(replace(stage, parameters=0, expert_parameters=0) for stage in problem.stages))
    return tuple(_differences(plan.problem, problem, COSTS, "costs"))


def _differences(ours: Problem, theirs: Problem, names: tuple[str, ...], section: str) -> list[Violation]:
    found = []
    for name in names:
        mine, other = getattr(ours, name), getattr(theirs, name)
        if mine == other:
            continue
        place, mine, other = _first_difference(f"{section}.{name}", mine, other)
        message = f"the plan has {_value(mine)}, the job {_value(other)}"
        found.append(Violation(f"same-{section}", place, f"{message}; compile the job again"))
    return found


def _first_difference(place: str, mine: object, other: object) -> tuple[str, object, object]:
    """Where two different values first differ, with what is there in each: an entry of both, a field of both, or all."""
    if isinstance(mine, tuple) and isinstance(other, tuple) and len(mine) == len(other):
        parts = [(f"{place}[{index}]", *pair) for index, pair in enumerate(zip(mine, other, strict=True))]
    elif isinstance(mine, Updates) and isinstance(other, Updates):
        parts = [(f"{place}.{each.name}", getattr(mine, each.name), getattr(other, each.name)) for each in fields(Updates)]
    else:
        return place, mine, other
    return _first_difference(*next(part for part in parts if part[1] != part[2]))


def _value(value: object) -> str:
    return repr(value.value if isinstance(value, Enum) else value)
