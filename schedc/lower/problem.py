"""Workload + Layout → Problem: each stage costs what its layers do together, and the links are those that the placement crosses.

`problem_of` is a pure function for what `schedc.verify.workload` and `schedc.verify.layout` accept; a search over layouts calls it
thousands of times a second. `problem_under` gives a Problem the costs that links and ranks have at the time.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.ir import (
    Conditions,
    DataParallel,
    Edge,
    Kind,
    Layer,
    Layout,
    Origin,
    Placement,
    Problem,
    Semantics,
    Stage,
    Workload,
    are_alike,
)
from schedc.lower.slices import in_slices
from schedc.lower.split_head import with_split_head
from schedc.units import MAX_QUANTITY
from schedc.verify.problem import verify_problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from fractions import Fraction

    from schedc.ir import TiedWeight


def problem_of(workload: Workload, layout: Layout) -> Problem:
    """The problem of training the workload in this layout.

    Raises:
        ValueError: the placement crosses from one rank to another that nothing connects.
    """
    if not workload.slices:
        workload = in_slices(workload, layout.slices)
    if layout.split_head:
        workload, layout = with_split_head(workload, layout)
    parts = enumerate(zip(layout.rank_of_stage, layout.layers_of_stage, _static_where_it_counts(workload, layout), strict=True))
    stages = tuple(
        _stage(rank, workload.layers[first:last], workload.devices[rank].speed, stage in layout.recomputed, held)
        for stage, (rank, (first, last), held) in parts
    )
    if workload.semantics is Semantics.TORCH:
        stages = as_torch_executes(stages, layout.paths[0][0])
    if not workload.slices:  # no slice leaves a state to the next
        stages = tuple(replace(stage, state_gradient_bytes=0) if stage.state_gradient_bytes else stage for stage in stages)
    count = len(stages)
    edges = edges_between(workload.edges, layout.layers_of_stage)
    if (
        edges
        and all(edge.has_gradient for edge in edges)
        and sorted((e.source, e.destination) for e in edges) == list(pairwise(range(count)))
    ):
        stages, edges = _as_chain(stages, edges), ()
    if layout.recomputed:
        stages = as_recomputed(stages, layout.paths, edges)
    if workload.updates is not None:
        takes_ns, sizes = _spread(workload.update_ns, len(stages)), _spread(workload.version_bytes, len(stages))
        stages = tuple(
            replace(stage, update_ns=took_ns, version_bytes=size + ceil(workload.bytes_per_version_parameter * stage.parameters))
            for stage, took_ns, size in zip(stages, takes_ns, sizes, strict=True)
        )
    links = []
    for source, destination in crossed_by(layout, edges):
        link = workload.network.link(source, destination)
        if link is None:
            raise ValueError(f"nothing connects rank {source} to rank {destination}")
        links.append(link)
    problem = Problem(
        name=workload.name,
        ranks=workload.ranks,
        microbatches=workload.microbatches,
        stages=stages,
        paths=layout.paths,
        path_of=_path_of(workload, layout),
        edges=edges,
        slices=workload.slices,
        links=tuple(links),
        memory_limit_bytes=_memory_limits(workload, layout, stages),
        split_backward=workload.split_backward,
        cut_blocks=workload.semantics is Semantics.SCHEDC,
        placement=layout.placement,
        data_parallel=_collectives(workload, layout),
        objective=workload.objective,
        updates=workload.updates,
        origin=Origin(layers_of_stage=layout.layers_of_stage, network=workload.network),
    )
    # The order of microbatches that are alike says nothing.
    return replace(problem, in_order=True) if workload.in_order and not are_alike(problem) else problem


def _collectives(workload: Workload, layout: Layout) -> DataParallel | None:
    """Those of each stage. A weight that two stages of different ranks hold is summed behind the reduce-scatter of each.

    The sum begins when the gradients of both are there, at g1 and g2, and takes d: a message each way. A step ends no sooner than
    max(g1, g2) + d, which is max(g1 + d, g2 + d): so d is a part of both stages' `RS`.
    """
    parallel, rank, count = workload.data_parallel, layout.rank_of_stage, len(layout.rank_of_stage)
    scatter_ns = [0] * count if parallel is None else list(_spread(parallel.reduce_scatter_ns, count))
    for tie, one, other in tied_apart(workload, layout.layers_of_stage, rank):
        links = [workload.network.link(*ends) for ends in ((rank[one], rank[other]), (rank[other], rank[one]))]
        if None in links:
            raise ValueError(f"nothing connects ranks {rank[one]} and {rank[other]}, which hold a tied weight")
        took_ns = max(link.occupancy_ns(tie.gradient_bytes) + link.latency_ns for link in links if link is not None)
        scatter_ns[one], scatter_ns[other] = scatter_ns[one] + took_ns, scatter_ns[other] + took_ns
    if parallel is None:
        return DataParallel(size=1, zero_stage=0, reduce_scatter_ns=tuple(scatter_ns)) if any(scatter_ns) else None
    return replace(
        parallel,
        reduce_scatter_ns=tuple(scatter_ns),
        all_gather_ns=_spread(parallel.all_gather_ns, count),
        gathered_bytes=_spread(parallel.gathered_bytes, count),
        gradient_bytes=_spread(parallel.gradient_bytes, count),
    )


def tied_apart(
    workload: Workload, layers_of_stage: Sequence[tuple[int, int]], rank_of_stage: Sequence[int]
) -> Iterator[tuple[TiedWeight, int, int]]:
    """The tied weights that stages of two ranks hold, with the two stages; those of one rank share theirs."""
    stage_of = {layer: stage for stage, (first, last) in enumerate(layers_of_stage) for layer in range(first, last)}
    for tie in workload.ties:
        one, other = (stage_of[layer] for layer in tie.layers)
        if rank_of_stage[one] != rank_of_stage[other]:
            yield tie, one, other


def edges_between(edges: Sequence[Edge], layers_of_stage: Sequence[tuple[int, int]]) -> tuple[Edge, ...]:
    """What stages take from each other: between two of them one edge, with all values that layers of the one take of the other's.

    A value that several layers of a stage take goes there once, and once back: the sum of its gradients, as large as the largest.
    Edges of a stage that carry the same values carry the same value.

    Args:
        edges: between layers; none: these, and so the stages, are a chain, whose edges are not named.
        layers_of_stage: per stage, its layers [first, last).
    """
    stage_of = {layer: stage for stage, (first, last) in enumerate(layers_of_stage) for layer in range(first, last)}
    crossing: dict[tuple[int, int], dict[tuple[int, int], Edge]] = {}
    for edge in edges:
        ends = stage_of[edge.source], stage_of[edge.destination]
        if ends[0] == ends[1]:
            continue
        values = crossing.setdefault(ends, {})
        same = values.setdefault((edge.source, edge.value), edge)
        if (edge.gradient_message_bytes or -1) > (same.gradient_message_bytes or -1) or not same.has_gradient:
            values[edge.source, edge.value] = edge
    numbers: dict[int, dict[frozenset[tuple[int, int]], int]] = {}
    made = []
    for (source, destination), values in crossing.items():
        known = numbers.setdefault(source, {})
        back = [size for each in values.values() if (size := each.gradient_message_bytes) is not None]
        made.append(
            Edge(
                source=source,
                destination=destination,
                message_bytes=sum(each.message_bytes for each in values.values()),
                gradient_message_bytes=sum(back) if back else None,
                value=known.setdefault(frozenset(values), len(known)),
            )
        )
    return tuple(made)


def _as_chain(stages: Sequence[Stage], edges: Sequence[Edge]) -> tuple[Stage, ...]:
    """The stages of a graph whose edges lead from each one to the next: a chain, whose messages are the stages'."""
    sizes = {edge.source: (edge.message_bytes, edge.gradient_message_bytes or 0) for edge in edges}
    return tuple(
        replace(stage, message_bytes=forth, gradient_message_bytes=back)
        for stage, (forth, back) in ((stage, sizes.get(index, (0, 0))) for index, stage in enumerate(stages))
    )


def crossed_by(placement: Placement, edges: Sequence[Edge]) -> list[tuple[int, int]]:
    """The directed pairs of ranks that messages cross, ascending: along the edges and back; without edges, along the paths."""
    if not edges:
        return placement.crossed()
    rank = placement.rank_of_stage
    forth = {(rank[edge.source], rank[edge.destination]) for edge in edges}
    back = {(rank[edge.destination], rank[edge.source]) for edge in edges if edge.has_gradient}
    return sorted((source, destination) for source, destination in forth | back if source != destination)


def _path_of(workload: Workload, layout: Layout) -> tuple[int, ...]:
    """The path of each microbatch; slices take that of their microbatch."""
    each = len(workload.slices) or 1
    return tuple(path for path in layout.path_of(workload.microbatches // each) for _ in range(each))


def stage_static_bytes(workload: Workload, layout: Layout) -> tuple[int, ...]:
    """What each stage holds all the time."""
    given = _spread(workload.static_bytes, len(layout.rank_of_stage))
    return tuple(
        size + sum([layer.static_bytes for layer in workload.layers[first:last]])
        for (first, last), size in zip(layout.layers_of_stage, given, strict=True)
    )


def static_bytes(workload: Workload, layout: Layout) -> tuple[int, ...]:
    """What each rank holds all the time: the sum over its stages."""
    held = [0] * workload.ranks
    for rank, size in zip(layout.rank_of_stage, stage_static_bytes(workload, layout), strict=True):
        held[rank] += size
    return tuple(held)


def _static_where_it_counts(workload: Workload, layout: Layout) -> tuple[int | None, ...]:
    """What each stage holds all the time, of ranks whose device has a capacity; else None."""
    counts = [device.capacity_bytes is not None for device in workload.devices]
    if not any(counts):
        return (None,) * len(layout.rank_of_stage)
    sizes = zip(layout.rank_of_stage, stage_static_bytes(workload, layout), strict=True)
    return tuple(size if counts[rank] else None for rank, size in sizes)


def _stage(rank: int, layers: Sequence[Layer], speed: Fraction, recompute: bool, held: int | None) -> Stage:
    first, last = layers[0].position, layers[-1].position
    forward, gradient, weight, fused = (
        together_ns([getattr(layer, name) for layer in layers])
        for name in ("forward_ns", "backward_input_ns", "backward_weight_ns", "backward_ns")
    )
    if recompute:
        again_ns = together_ns([layer.forward_ns if layer.forward_again_ns is None else layer.forward_again_ns for layer in layers])
        gradient, fused = together_ns([again_ns, gradient]), together_ns([again_ns, fused])
    if speed != 1:  # on such a device, each to the nearest nanosecond, ties to even
        forward, gradient, weight, fused = (
            tuple(round(duration_ns / speed) for duration_ns in durations_ns) for durations_ns in (forward, gradient, weight, fused)
        )
    return Stage(
        rank=rank,
        recompute=recompute,
        forward_ns=forward,
        backward_input_ns=gradient,
        backward_weight_ns=weight,
        backward_ns=fused,
        activation_bytes=sum([layer.activation_bytes for layer in layers]),
        activation_after_input_bytes=sum([layer.activation_after_input_bytes for layer in layers]),
        message_bytes=layers[-1].message_bytes,
        gradient_message_bytes=layers[-1].gradient_message_bytes,
        layers=None if first is None or last is None else (first[0], last[1]),
        static_bytes=held,
        parameters=sum([layer.parameters for layer in layers]),
        expert_parameters=sum([layer.expert_parameters for layer in layers]),
        state_gradient_bytes=sum([layer.state_gradient_bytes for layer in layers]),
    )


def together_ns(durations_ns: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The sum of durations: one for all microbatches if that holds for each of them, else one per microbatch."""
    if len(durations_ns) == 1:
        return tuple(durations_ns[0])
    microbatches = max(map(len, durations_ns))
    if microbatches == 1:
        return (sum([duration_ns for (duration_ns,) in durations_ns]),)
    return tuple(map(sum, zip(*(_spread(each, microbatches) for each in durations_ns), strict=True)))


def _memory_limits(workload: Workload, layout: Layout, stages: Sequence[Stage]) -> tuple[int | None, ...]:
    """How much of activations each rank can hold, in bytes; None: no limit."""
    devices = workload.devices
    limits: list[int | None] = []
    for rank, device in enumerate(devices):
        if device.capacity_bytes is not None:
            limits.append(device.capacity_bytes - sum(stage.static_bytes or 0 for stage in stages if stage.rank == rank))
        elif device.in_flight is not None:
            waiting = [_waiting_bytes(workload, stage) if stage.rank == rank else 0 for stage in stages]
            held = [sum(waiting[stage] for stage in path) for path in layout.paths]
            again = max((stage.recomputed_bytes for stage in stages if stage.rank == rank), default=0)
            limits.append(min(device.in_flight * max(held) + again, MAX_QUANTITY))  # no rank of a job holds more than that in all
        else:
            limits.append(device.limit_bytes)
    return tuple(limits)


def _waiting_bytes(workload: Workload, stage: Stage) -> int:
    """What a microbatch of the stage holds at most while none of its blocks runs."""
    return max(stage.activation_bytes, stage.activation_after_input_bytes if workload.split_backward else 0)


def _spread(values: Sequence[int], count: int) -> tuple[int, ...]:
    """One value for all becomes one for each."""
    return (values[0],) * count if len(values) == 1 else tuple(values)


def as_recomputed(stages: Sequence[Stage], paths: Sequence[Sequence[int]], edges: Sequence[Edge] = ()) -> tuple[Stage, ...]:
    """The stages, those that recompute with what they hold, as if none did but for `recompute` and the durations before.

    Between F and its backward that is the input alone, from which the backward runs the forward again. The backward takes all
    activations when it starts; what W still needs of them stays until W has ended (cost model, "Recomputation").
    """
    input_bytes = [0] * len(stages)
    for edge in edges:
        input_bytes[edge.destination] += edge.message_bytes
    for path in paths if not edges else ():
        for before, after in pairwise(path):
            input_bytes[after] = stages[before].message_bytes
    return tuple(
        replace(stage, activation_bytes=of_input, recomputed_bytes=stage.activation_bytes) if stage.recompute else stage
        for stage, of_input in zip(stages, input_bytes, strict=True)
    )


def as_torch_executes(stages: Sequence[Stage], first: int) -> tuple[Stage, ...]:
    """The stages with the costs that they have in torch (`[pipeline] semantics`); `first` is the first of the one path.

    `torch.distributed.pipelining` (2.13) cannot split every backward:

    - **Its first stage does not split** (`stage.py`, `backward_one_chunk`): B there does nothing, and W is the whole backward,
      which takes what the fused one does.
    - **Its B releases no activation**: it keeps the autograd graph for W (`_backward.py`, `stage_backward_input`,
      `retain_graph=True`), on every stage. So all of the activation is held until the end of W.
    """
    return tuple(
        replace(
            stage,
            activation_after_input_bytes=stage.activation_bytes,
            backward_input_ns=(0,) * len(stage.backward_ns) if index == first else stage.backward_input_ns,
            backward_weight_ns=stage.backward_ns if index == first else stage.backward_weight_ns,
        )
        for index, stage in enumerate(stages)
    )


def problem_under(problem: Problem, conditions: Conditions) -> Problem:
    """The problem with these costs. Memory limits and collectives stay.

    A bandwidth takes the place of an occupancy that is given outright. A fused backward slows down by what B and W together do.
    """
    if not conditions.links and not conditions.slowdown:
        return problem
    return replace(
        problem,
        links=tuple(conditions.link(link) for link in problem.links),
        stages=tuple(_slowed(stage, conditions) for stage in problem.stages),
    )


def checked_under(problem: Problem, conditions: Conditions, where: str) -> Problem:
    """The problem with these costs, verified; `where` says of messages which conditions they are.

    Raises:
        InvalidInput: it contradicts itself, or its steps overlap: what asks for other conditions plans steps that end.
    """
    if problem.updates is not None:
        raise InvalidInput(f"{problem.name}: {where}: its steps overlap; expected a job whose steps end before the next begins")
    under = problem_under(problem, conditions)
    if violations := verify_problem(under):
        raise InvalidInput(f"{problem.name}: {where}: {violations[0]}")
    return under


def _slowed(stage: Stage, conditions: Conditions) -> Stage:
    forward, gradient, weight = [conditions.slowdown.get((stage.rank, kind), 1.0) for kind in (Kind.F, Kind.B, Kind.W)]
    if forward == gradient == weight == 1.0:
        return stage
    backward_input_ns, backward_weight_ns = _times(stage.backward_input_ns, gradient), _times(stage.backward_weight_ns, weight)
    before_ns = sum(stage.backward_input_ns) / len(stage.backward_input_ns)
    before_ns += sum(stage.backward_weight_ns) / len(stage.backward_weight_ns)
    after_ns = sum(backward_input_ns) / len(backward_input_ns) + sum(backward_weight_ns) / len(backward_weight_ns)
    return replace(
        stage,
        forward_ns=_times(stage.forward_ns, forward),
        backward_input_ns=backward_input_ns,
        backward_weight_ns=backward_weight_ns,
        backward_ns=_times(stage.backward_ns, after_ns / before_ns if before_ns else gradient),
    )


def _times(durations_ns: Sequence[int], factor: float) -> tuple[int, ...]:
    return tuple([round(duration_ns * factor) for duration_ns in durations_ns])
